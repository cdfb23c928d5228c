"""The planner of a `TrainState`: its fields by their names, and parameters of another type."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import jax
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, place_of
from optax_bridge.checkpoints.locate import legacy_states, optimizers
from optax_bridge.checkpoints.moves import Converted, Item, Misfit, Move, Retyped, Side, Unpaired
from optax_bridge.checkpoints.same_names import (
    LEVEL,
    OWNERS,
    Paths,
    Scope,
    may_count_steps,
    missing_items,
    other_type,
    same_names,
    steps_misfit,
    surplus_items,
)
from optax_bridge.checkpoints.trees import (
    SAME_MAKE,
    dtype_of,
    fields_of,
    fill_outline,
    is_floating,
    is_key,
    kind,
    paths_in_state_dict,
    refill,
    state_dict_of,
)
from optax_bridge.correspondence.values import FINITE, Range
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.metadata.axis_metadata import has_boxes, unboxed
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.states import slots

REMEDY = (
    "This is a checkpoint of flax.optim: optax_bridge.checkpoints.restore_checkpoint (from_bytes, "
    "from_state_dict) reads it into this state, and `optax-bridge convert` makes a checkpoint of "
    "it that Flax and Orbax restore."
)
_BELOW_PARAMS = (
    "The checkpoint has them below 'params', as models before Linen did, and Linen's variables: "
    "make the state of {'params': params}, and give the model state.params as it is."
)

# A planner of the optimizer's state, from the template's and from parameters, for a scope.
Moments = Callable[[OptState, Params, Scope], Iterator[Item]]


def state_items(template: PyTree, saved: PyTree, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the items of a `TrainState`; raises if the checkpoint has something else there."""
    expected = f"a {type(template).__name__}: step, params, opt_state"
    if legacy_states(saved) is not None:
        found = "an Optimizer: target, state"
        raise CheckpointError(place_of(scope.place, paths.source), expected, found, REMEDY)
    if not isinstance(saved, Mapping) or not {"params", "opt_state"} <= set(saved):
        remedy = REMEDY if any(True for _ in optimizers(saved)) else SAME_MAKE
        raise CheckpointError(place_of(scope.place, paths.source), expected, kind(saved), remedy)
    scope = replace(scope, owner="state")
    for name in sorted(saved.keys() - set(fields_of(template))):
        yield from surplus_items(saved[name], paths / name, scope)
    yield from field_items(template, saved, paths, scope)


def field_items(
    template: PyTree,
    saved: Mapping[str, PyTree],
    paths: Paths,
    scope: Scope,
    places: Mapping[str, Names] | None = None,
    moments: Moments | None = None,
) -> Iterator[Item]:
    """Yields the items of a state's fields, the parameters' first, from values by field.

    The values stand at `places` where these are not the fields' names. The optimizer's state is
    that of a planner if one is given, and that is not asked where the parameters do not fit.
    """
    params, opt_state = template.params, template.opt_state
    for name in sorted(fields_of(template), key=lambda name: name != "params"):
        at = replace(paths / name, source=(places or {}).get(name, (*paths.source, name)))
        field_scope = replace(scope, owner=OWNERS.get(name, "state"))
        value = state_dict_of(opt_state if name == "opt_state" else getattr(template, name))
        if name == "params":
            items = parameter_items(params, saved[name], at, field_scope)
            yield from items
            wrong, unpaired = (
                any(isinstance(i, kind) for i in items) for kind in (Misfit, Unpaired)
            )
            if moments is not None and (wrong or (unpaired and not scope.keep)):
                return  # their states would all be named as well
            if any(isinstance(item, Converted) for item in items) and not wrong and not unpaired:
                leaves = {item.target: item.leaf for item in items if isinstance(item, Move)}
                params = refill(params, fill_outline(value, leaves, at.target))
                opt_state = retyped_state(template, params)
                names = paths_in_state_dict(opt_state)
                for path, leaf in zip(names, jax.tree.leaves(opt_state), strict=True):
                    yield Retyped((*paths.target, "opt_state", *path), leaf)
        elif name == "opt_state" and moments is not None:
            yield from moments(opt_state, params, field_scope)
        elif name not in saved:
            yield from missing_items(value, at)
        elif name == "step" and not may_count_steps(saved[name]):
            yield steps_misfit(saved[name], at.source)
        else:
            ranges = ranges_of(opt_state, at.target) if name == "opt_state" else {}
            yield from same_names(value, saved[name], at, replace(field_scope, ranges=ranges))


def parameter_items(params: Params, saved: PyTree, paths: Paths, scope: Scope) -> list[Item]:
    """The items of a state's parameters, all of which may have another type in floating point."""
    items = judge_types(same_names(state_dict_of(params), saved, paths, scope), paths.source)
    unpaired = [item for item in items if isinstance(item, Unpaired)]
    missing, surplus = (
        {item.path for item in unpaired if item.side is side}
        for side in (Side.MISSING, Side.SURPLUS)
    )
    end = len(paths.source)
    if missing and surplus == {(*path[:end], "params", *path[end:]) for path in missing}:
        others = [item for item in items if not isinstance(item, Unpaired)]
        return others + [replace(item, remedy=_BELOW_PARAMS) for item in unpaired]
    return items


def judge_types(items: Iterable[Item], path: Names) -> list[Item]:
    """Judges parameters of other types than the template's: all of them, or none."""
    items = list(items)
    types = {
        item.source: (np.dtype(item.template.dtype), dtype_of(item.leaf))
        for item in items
        if isinstance(item, Move) and hasattr(item.template, "dtype")
        if not item.cast and not is_key(item.template)
    }
    differing = {at: pair for at, pair in types.items() if pair[0] != pair[1]}
    pairs = {pair for pair in types.values() if is_floating(pair[0])}
    if differing and len(pairs) == 1:
        return [*items, Converted(path, *map(str, *pairs))]
    return items + [
        Misfit(at, f"{expected}, the template's type", str(actual), other_type(actual))
        for at, (expected, actual) in differing.items()
    ]


def retyped_state(template: PyTree, params: Params) -> OptState:
    """The template's optimizer state for parameters of other types."""
    tx = boxes_handled(template.tx) if has_boxes(template.params) else template.tx
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), dtype_of(x)), params)
    new = jax.tree.leaves(jax.eval_shape(tx.init, shapes))
    old, treedef = jax.tree.flatten(template.opt_state)
    if len(new) != len(old):
        return template.opt_state
    return treedef.unflatten(map(_with_dtype, old, new))


def ranges_of(opt_state: OptState, path: Names) -> dict[Names, Range]:
    """The leaves of a state at a path that cannot be negative, with the level of a box too."""
    ranges: dict[Names, Range] = {}
    for slot in slots(unboxed(opt_state), None):
        if slot.within != FINITE:
            at = (*path, *slot.path)
            ranges |= {at: slot.within, (*at, LEVEL): slot.within}
    return ranges


def _with_dtype(leaf: Leaf, like: Leaf) -> Leaf:
    """A template's leaf in another type."""
    if leaf.dtype == like.dtype:
        return leaf
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    return jax.ShapeDtypeStruct(leaf.shape, like.dtype) if is_shape else leaf.astype(like.dtype)
