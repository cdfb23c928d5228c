"""A training of `flax.optim` goes on in a trainer: parameters, moments and step."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import legacy_optim
from optax_bridge import TrainState
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.metadata.axis_metadata import key_names, unboxed
from optax_bridge.metadata.kept_axes import owners_of
from optax_bridge.metadata.trees import Leaf, OptState, Params
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.trainer.base import BaseTrainer
from optax_bridge.spmd.trainer.state import TrainerState
from optax_bridge.spmd.trees import flatten_items

StateBuilder = Callable[..., tuple[int, TrainerState]]


def legacy_checkpoint(
    path: str,
    *,
    optimizer: ConfigOr[str | legacy_optim.OptimizerDef | optax.GradientTransformation]
    | None = None,
    part: str | None = None,
    below: str = "",
    new: Sequence[str] = (),
    allow_nan: bool = False,
) -> StateBuilder:
    """The first state of a trainer from what `flax.optim` saved, for `init_state_builder`.

        cfg.init_state_builder = config_for_function(legacy_checkpoint).set(
            path="old/checkpoint_100", optimizer="Adam(learning_rate=1e-3)", below="net/params"
        )

    The learner's optimizer must be the one that the checkpoint was written with:
    `config_for_function(optax_bridge.adam).set(learning_rate=1e-3)`. Then the next step is the one
    that the old program would have taken.

    Args:
      path: a checkpoint of `flax.optim`, of any format that `optax-bridge inspect` knows; one of a
        `TrainState` becomes one by `optax-bridge convert --to legacy`.
      optimizer: the legacy constructor call, parsed and never evaluated; or the definition, or a
        transformation; or a config of either. None: read from the state where that is clear.
      part: which optimizer, where the checkpoint has several.
      below: the path of the checkpoint's parameters in the model's, such as "net/params".
      new: regular expressions for whole paths of what the checkpoint does not have, which then
        begins as in any other training: "model/net/batch_stats/.*", "learner/ema/.*".
      allow_nan: let NaN and infinities in parameters and moments through.

    Returns:
      `builder(trainer, *, prng_key) -> (step, TrainerState)`, which raises ValueError where the
      checkpoint is not of this model or optimizer.
    """

    def build(trainer: BaseTrainer, *, prng_key: jax.Array) -> tuple[int, TrainerState]:
        definition = maybe_instantiate(optimizer)
        if isinstance(definition, str):
            definition = parse_definition(definition)
        old = TrainState.from_legacy_checkpoint(
            path, optimizer_def=definition, part=part, allow_nan=allow_nan
        )
        old_leaves = _by_path(unboxed(old.params), unboxed(old.opt_state), below)
        trainer.init(prng_key)
        fresh = trainer.trainer_state
        assert fresh is not None
        shardings = trainer.trainer_state_partition_specs
        items = flatten_items(fresh)
        _check(old_leaves, dict(items), new, Path(path))
        leaves = [
            jax.device_put(np.asarray(old_leaves[where]), sharding) if where in old_leaves else leaf
            for (where, leaf), sharding in zip(items, jax.tree.leaves(shardings), strict=True)
        ]
        return int(old.step), jax.tree.unflatten(jax.tree.structure(fresh), leaves)

    return build


def _by_path(params: Params, opt_state: OptState, below: str) -> dict[str, jax.Array]:
    """The arrays of a checkpoint by their paths in a trainer's state."""
    prefix = tuple(below.strip("/").split("/")) if below.strip("/") else ()
    flat_params = jax.tree_util.tree_leaves_with_path(params)
    leaves = {"/".join(("model", *prefix, *key_names(path))): leaf for path, leaf in flat_params}
    by_path = {key_names(path): index for index, (path, _) in enumerate(flat_params)}
    flat_state = jax.tree_util.tree_leaves_with_path(opt_state)
    spans = owners_of([path for path, _ in flat_state], by_path)
    for (path, leaf), span in zip(flat_state, spans, strict=True):
        names = key_names(path)
        if span is not None:
            names = (*names[: span[0]], *prefix, *names[span[0] :])
        leaves["/".join(("learner", "optimizer", *names))] = leaf
    return leaves


def _check(
    old: dict[str, jax.Array], expected: dict[str, Leaf], new: Sequence[str], path: Path
) -> None:
    """Raises ValueError, naming the leaves, unless the checkpoint fits the trainer."""
    own_fields = {"prng_key"}
    missing = [
        where
        for where in expected.keys() - old.keys() - own_fields
        if not any(re.fullmatch(pattern, where) for pattern in new)
    ]
    problems = [f"missing in the checkpoint: {where}" for where in sorted(missing)]
    problems += [f"in the checkpoint only: {w}" for w in sorted(old.keys() - expected.keys())]
    for where in sorted(old.keys() & expected.keys()):
        there, here = old[where], expected[where]
        if jnp.shape(there) != here.shape or jnp.result_type(there) != here.dtype:
            problems.append(
                f"{where}: {jnp.result_type(there)}{list(jnp.shape(there))} in the checkpoint, "
                f"{here.dtype}{list(here.shape)} in the trainer"
            )
    if problems:
        raise ValueError(
            f"{path}: not of this model and learner.\n  "
            + "\n  ".join(problems)
            + "\nGive `below=` if the model has its parameters deeper, the optimizer that the "
            "checkpoint was written with to the learner, and in `new=` what is to begin anew."
        )
