"""What a training program calls: states from checkpoints, to checkpoints, and in memory."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

import legacy_optim
from optax_bridge.checkpoints.convert import Converted, convert_tree, legacy_tree
from optax_bridge.checkpoints.destination import written_whole
from optax_bridge.checkpoints.read import read_checkpoint
from optax_bridge.checkpoints.transfer import compare, on_device, write
from optax_bridge.checkpoints.transformed import is_transformation
from optax_bridge.conversion import from_legacy
from optax_bridge.train_state import TrainState

State = TypeVar("State", bound=TrainState)
Definition = legacy_optim.OptimizerDef | optax.GradientTransformation


def convert_state(
    state: Any,
    optimizer_def: Definition | None = None,
    *,
    exact: bool = True,
    part: str | None = None,
    allow_nan: bool = False,
) -> Any:
    """Converts in memory: a legacy state dict to a TrainState, a TrainState to a state dict.

    Args:
      state: a TrainState, or nested dicts as `flax.serialization.to_state_dict` makes them
        of an optimizer or of what holds one.
      optimizer_def: the legacy definition. From a state dict it may be None where the state's
        fields fit one optimizer only. Or a transformation, `optax_bridge.adafactor` by axis.
      exact: see `optax_bridge.from_legacy`.
      part: which optimizer of the tree, where there are several: its '/'-joined path.
      allow_nan: let NaN in the optimizer's state through.

    Returns:
      A `TrainState` for a state dict; `{'target', 'state': {'step', 'param_states'}}` for a
      TrainState.

    Raises:
      CheckpointError: the state is not of this optimizer.
    """
    if isinstance(state, TrainState):
        if optimizer_def is None:
            raise TypeError("convert_state(train_state) needs optimizer_def=, the definition")
        return legacy_tree(state.params, state.opt_state, state.step, optimizer_def)
    converted = convert_tree(state, optimizer_def, exact=exact, part=part, allow_nan=allow_nan)
    return _train_state(TrainState, converted, None, None, {})


def from_legacy_checkpoint(
    cls: type[State],
    path: Path | str,
    optimizer_def: Definition | None,
    apply_fn: Callable[..., Any] | None,
    *,
    exact: bool,
    part: str | None,
    sharding: Any,
    allow_nan: bool,
    fields: dict[str, Any],
) -> State:
    """See `TrainState.from_legacy_checkpoint`."""
    read = read_checkpoint(path)
    converted = convert_tree(
        read.tree, optimizer_def, exact=exact, part=part, allow_nan=allow_nan, place=read.path
    )
    return _train_state(cls, converted, apply_fn, sharding, fields)


def to_legacy_checkpoint(
    state: TrainState, path: Path | str, optimizer_def: Definition, force: bool
) -> None:
    """See `TrainState.to_legacy_checkpoint`."""
    path = Path(path)
    tree = legacy_tree(state.params, state.opt_state, state.step, optimizer_def)
    with written_whole(path, force=force) as part:
        write(part, tree, msgpack=True)
        compare(part, tree, path)


def _train_state(
    cls: type[State],
    converted: Converted,
    apply_fn: Callable[..., Any] | None,
    sharding: Any,
    fields: dict[str, Any],
) -> State:
    """A TrainState whose leaves are put on their devices one after another."""
    tree = {"params": converted.params, "opt_state": converted.opt_state}
    own = {field.name for field in dataclasses.fields(cls)} - {"step", "apply_fn", "tx", *tree}
    tree |= {name: value for name, value in converted.others.items() if name in own}
    placed = jax.tree_util.tree_map_with_path(
        lambda path, leaf: on_device(
            leaf, sharding(path, leaf) if callable(sharding) else sharding
        ),
        tree,
    )
    tx = converted.definition
    if not is_transformation(tx):
        tx = from_legacy(tx, converted.exact)
    step = jnp.asarray(converted.step, jnp.int32)
    return cls.create(apply_fn=apply_fn, tx=tx, step=step, **(placed | fields))
