"""A training of `flax.optim` goes on in a trainer: parameters, moments and step."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
import optax

import legacy_optim
from optax_bridge import TrainState
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.checkpoints.moves import (
    Plan,
    Side,
    Unpaired,
    leaves_of_training,
    rename_items,
    with_renamed_parameters,
)
from optax_bridge.metadata.paths import Names
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
    """The first state of a trainer from a checkpoint of `flax.optim`, for `init_state_builder`.

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
      new: regular expressions for whole paths of leaves that the checkpoint lacks, which then
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
        leaves = leaves_of_training(old.params, old.opt_state)
        names = _names_in_trainer(old.params, old.opt_state, below)
        trainer.init(prng_key)
        fresh = trainer.trainer_state
        assert fresh is not None
        shardings = trainer.trainer_state_partition_specs
        items = [(tuple(path.split("/")), leaf) for path, leaf in flatten_items(fresh)]
        plan = plan_of(Path(path), leaves, dict(items), names, new)
        plan.check()
        taken = plan.apply()
        state_leaves = [
            jax.device_put(np.asarray(taken[where]), sharding) if where in taken else leaf
            for (where, leaf), sharding in zip(items, jax.tree.leaves(shardings), strict=True)
        ]
        return int(old.step), jax.tree.unflatten(jax.tree.structure(fresh), state_leaves)

    return build


def _names_in_trainer(params: Params, opt_state: OptState, below: str) -> dict[Names, Names]:
    """The paths of a checkpoint's leaves -> those in a trainer's state."""
    prefix = tuple(below.strip("/").split("/")) if below.strip("/") else ()
    homes = {"params": ("model",), "opt_state": ("learner", "optimizer")}
    targets = with_renamed_parameters(params, opt_state, lambda path: (*prefix, *path))
    return {path: (*homes[new[0]], *new[1:]) for path, new in targets.items()}


def plan_of(
    path: Path,
    leaves: Mapping[Names, Leaf],
    expected: Mapping[Names, Leaf],
    names: Mapping[Names, Names],
    new: Sequence[str],
) -> Plan:
    """Returns the plan from a checkpoint to a trainer's state, without the fresh leaves."""

    def is_new(names: Names) -> bool:
        return names == ("prng_key",) or any(
            re.fullmatch(pattern, "/".join(names)) for pattern in new
        )

    items = (
        item
        for item in rename_items(leaves, expected, names)
        if not (isinstance(item, Unpaired) and item.side is Side.MISSING and is_new(item.path))
    )
    return Plan(
        path, tuple(items), "Pass `below=` if the model has its parameters deeper, give the learner"
        " the optimizer of the checkpoint, and list in `new=` the leaves that are new.",
        "the state of this model and learner", if_missing="",
    )  # fmt: skip
