"""What a `TrainState` calls: states from checkpoints, and to checkpoints."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.collections import beside, fields_filled
from optax_bridge.checkpoints.destination import written_whole
from optax_bridge.checkpoints.devices import on_device
from optax_bridge.checkpoints.errors import CheckpointError, LeftOverWarning, Place
from optax_bridge.checkpoints.fit import fields_of, is_state, listed_leaves, plain
from optax_bridge.checkpoints.layout import placed_among
from optax_bridge.checkpoints.mapping import Converted, convert_tree
from optax_bridge.checkpoints.mapping_back import legacy_tree
from optax_bridge.checkpoints.read import read_checkpoint
from optax_bridge.checkpoints.recognise import Names, find_parts
from optax_bridge.checkpoints.transformed import Definition, is_transformation
from optax_bridge.checkpoints.write import compare, write
from optax_bridge.legacy import from_legacy
from optax_bridge.metadata.trees import PyTree

State = TypeVar("State")  # of a `TrainState`, which knows this module, not the other way round
_OF_THE_OPTIMIZER = {"step", "params", "opt_state", "apply_fn", "tx", "ema_decay"}


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
    return train_state(cls, converted, apply_fn, sharding, fields, part, read.path)


def to_legacy_checkpoint(
    state: Any,
    path: Path | str,
    optimizer_def: Definition,
    *,
    part: str | None,
    force: bool,
) -> None:
    """See `TrainState.to_legacy_checkpoint`."""
    path = Path(path)
    tree = legacy_tree(state.params, state.opt_state, state.step, optimizer_def)
    if part is not None:
        tree = placed_among(_others(state), tuple(part.strip("/").split("/")), tree, path)
    with written_whole(path, force=force) as file:
        write(file, tree, "msgpack")
        compare(file, tree, path, "msgpack")


def _others(state: Any) -> dict[str, PyTree]:
    """What a state has besides the optimizer; keys as the bits that programs had then."""
    own = ("params", "opt_state")
    found = {name: getattr(state, name) for name in fields_of(state) if name not in own}
    given = {name: value for name, value in found.items() if value is not None}
    return plain(serialization.to_state_dict(given))


def train_state(
    cls: type[State],
    converted: Converted,
    apply_fn: Callable[..., Any] | None = None,
    sharding: Any = None,
    fields: dict[str, Any] | None = None,
    part: str | None = None,
    place: Place = "state",
) -> State:
    """A TrainState whose leaves are put on their devices one after another."""
    made: Any = cls
    fields = fields or {}
    tree = {"params": converted.params, "opt_state": converted.opt_state}
    found, left = _collections(made, converted, sharding, part)
    given = fields.get("dynamic_scale")
    scale = found.pop("dynamic_scale", None)
    tree |= {name: value for name, value in found.items() if name not in fields}
    placed = _placed(tree, sharding)
    if scale is not None:
        fields = fields | {"dynamic_scale": _scale(given, scale)}
    if "ema_params" in tree and fields.get("ema_decay") is None:
        _say_left(
            place,
            "ema_params are taken over and stay as they are: no checkpoint has the "
            "decay of an average. Pass ema_decay= to go on averaging.",
        )
    if left:
        _say_left(
            place,
            f"{listed_leaves(left)} left over: {made.__name__} has no field for it. "
            "FullTrainState has those of statistics, keys, averages and scales; a subclass with a "
            "field of that name has any other.",
        )
    tx = converted.definition
    if not is_transformation(tx):
        tx = from_legacy(tx, converted.exact is not False)
    step = jnp.asarray(converted.step, jnp.int32)
    return made.create(apply_fn=apply_fn, tx=tx, step=step, **(placed | fields))


def _collections(
    cls: Any, converted: Converted, sharding: Any, part: str | None
) -> tuple[dict[str, Any], list[Names]]:
    """The fields that the checkpoint fills besides the optimizer's, and what is left over."""
    names = {field.name for field in dataclasses.fields(cls)} - _OF_THE_OPTIMIZER
    if is_state(sharding):
        names = {name for name in names if getattr(sharding, name, None) is not None}
    entries = beside(converted.others, converted.layout.part)
    if part is not None:  # the caller knows that there are others
        entries = {path: v for path, v in entries.items() if not find_parts(v, part)}
    return fields_filled(names, entries, converted.params, int(converted.step))


def _scale(given: Any, found: Mapping[str, PyTree]) -> Any:
    """The loss scale with its settings as given: no checkpoint has them."""
    made = legacy_optim.DynamicScale() if given is None else given
    return serialization.from_state_dict(made, dict(found))


def _say_left(place: Place, text: str) -> None:
    warnings.warn(f"{place}: {text}", LeftOverWarning, stacklevel=5)


def _placed(tree: dict[str, PyTree], sharding: Any) -> dict[str, Any]:
    """The fields of a state with their leaves on devices, one after another."""
    if is_state(sharding):
        fields = {name: getattr(sharding, name) for name in tree}
        leaves, treedef = jax.tree.flatten(tree)
        each = jax.tree.leaves(fields)  # the same order, also where the parameters are in boxes
        if len(each) != len(leaves):
            raise CheckpointError(
                "sharding", f"a state with {len(leaves)} shardings, as the checkpoint has leaves",
                f"{len(each)}", "Make it by state_shardings of a state of the same optimizer.",
            )  # fmt: skip
        return treedef.unflatten(map(on_device, leaves, each))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: on_device(
            leaf, sharding(path, leaf) if callable(sharding) else sharding
        ),
        tree,
    )
