"""The planner of a `TrainState`: its fields by their names, and parameters of another type."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, place_of
from optax_bridge.checkpoints.locate import legacy_states, optimizers
from optax_bridge.checkpoints.moves import Converted, Item, Misfit, Move, Side, Unpaired
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
    is_floating,
    is_key,
    kind,
    state_dict_of,
)
from optax_bridge.correspondence.values import FINITE, Range
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import OptState, PyTree
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

Moments = Callable[[Scope], Iterator[Item]]  # a planner of the optimizer's state


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
    for name in sorted(fields_of(template), key=lambda name: name != "params"):
        at = replace(paths / name, source=(places or {}).get(name, (*paths.source, name)))
        field_scope = replace(scope, owner=OWNERS.get(name, "state"))
        value = state_dict_of(getattr(template, name))
        if name == "params":
            items = parameter_items(value, saved[name], at, field_scope)
            yield from items
            differing = (Misfit,) if scope.keep else (Misfit, Unpaired)
            if moments is not None and any(isinstance(item, differing) for item in items):
                return  # their states would all be named as well
            changes = (item for item in items if isinstance(item, Converted))
            scope = replace(scope, changes=frozenset((c.before, c.after) for c in changes))
        elif name == "opt_state" and moments is not None:
            yield from moments(field_scope)
        elif name not in saved:
            yield from missing_items(value, at)
        elif name == "step" and not may_count_steps(saved[name]):
            yield steps_misfit(saved[name], at.source)
        else:
            ranges = ranges_of(template.opt_state, at.target) if name == "opt_state" else {}
            yield from same_names(value, saved[name], at, replace(field_scope, ranges=ranges))


def parameter_items(params: PyTree, saved: PyTree, paths: Paths, scope: Scope) -> list[Item]:
    """The items of a state's parameters, which may have another type in floating point."""
    items = judge_types(same_names(params, saved, paths, scope), paths.source)
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
    """Judges parameters of other types: of all of them, or as a step in float32 made them."""
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
    if all(old.itemsize == 2 and new == np.float32 for old, new in differing.values()):
        return items + [Converted(at, *map(str, pair)) for at, pair in differing.items()]
    return items + [
        Misfit(at, f"{expected}, the template's type", str(actual), other_type(actual))
        for at, (expected, actual) in differing.items()
    ]


def ranges_of(opt_state: OptState, path: Names) -> dict[Names, Range]:
    """The leaves of a state at a path that cannot be negative, with the level of a box too."""
    ranges: dict[Names, Range] = {}
    for slot in slots(unboxed(opt_state), None):
        if slot.within != FINITE:
            at = (*path, *slot.path)
            ranges |= {at: slot.within, (*at, LEVEL): slot.within}
    return ranges
