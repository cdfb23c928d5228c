"""The planner that pairs the leaves of a checkpoint with those of a template by their names.

Every way into a state asks here, so that all take, refuse and say the same. There is a leaf in the
checkpoint for each of the template, and a `TrainState` has no others. Shape and type are the
template's, but:

- An array outside a state may have grown from one without elements.
- What keeps its value is cast, numbers in floating point outside a state alone, with a warning.
- All parameters of a state may have another type in floating point, as when a whole training was in
  half precision: they are taken unchanged, with the moments of that type, with a warning; also
  those that a step lifted from half precision to float32, in a legacy optimizer too.
- Where the template has a plain number of Python, any number is taken, and no text.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import jax
import numpy as np
from jax.core import Tracer

from optax_bridge.checkpoints.errors import CheckpointError, Place, brief, place_of
from optax_bridge.checkpoints.locate import legacy_states, optimizers
from optax_bridge.checkpoints.moves import Converted, Item, Misfit, Move, Side, Unpaired
from optax_bridge.checkpoints.trees import (
    SAME_MAKE,
    array_like,
    dtype_of,
    fields_of,
    is_floating,
    is_key,
    is_state,
    kind,
    state_dict_of,
)
from optax_bridge.checkpoints.values import STEPS, is_number_of_steps, one_copy
from optax_bridge.correspondence.claim import HALF_PRECISION
from optax_bridge.correspondence.values import FINITE, Range
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.paths import Names, leaves, paths_of
from optax_bridge.metadata.trees import Leaf, OptState, PyTree
from optax_bridge.states import COUNTS, slots

LEVEL = "value"  # the name of the array in Flax's boxes and, by custom, in a program's

# The owner of a leaf: the program, a legacy optimizer in it, a field of a state, or the optimizer,
# whose parameters and moments must be finite.
Owner = Literal["program", "legacy", "state", "params", "opt_state"]
OWNERS: dict[str, Owner] = {"params": "params", "ema_params": "params", "opt_state": "opt_state"}

# Types before and after a step whose rate is in float32.
_LIFTED = {(half, "float32") for half in HALF_PRECISION}
_NO_STEPS = "The file is damaged, or counts something else there: take an earlier checkpoint."
OTHER_STATE_TYPE = (
    "Casting would lose bits: the exact transformation (optax_bridge's own, "
    "from_legacy(definition), --recipe exact) keeps that dtype."
)
_OTHER_KIND = (
    "Put a value of that kind and shape into the template, or None, which accepts anything; an "
    "empty array, such as np.zeros(0), accepts any number of elements."
)
_REPLICATED = (
    "One of them is replicated, a copy for each device, and the other is not: restore into "
    "flax.jax_utils.unreplicate(state) and replicate the result."
)
REMEDY = (
    "This is a checkpoint of flax.optim: optax_bridge.checkpoints.restore_checkpoint (from_bytes, "
    "from_state_dict) reads it into this state, and `optax-bridge convert` makes a checkpoint of "
    "it that Flax and Orbax restore."
)
_BELOW_PARAMS = (
    "The checkpoint has them below 'params', as models before Linen did, and Linen's variables: "
    "make the state of {'params': params}, and give the model state.params as it is."
)


@dataclass(frozen=True)
class Paths:
    """A place in a checkpoint, and the one in the target that corresponds to it."""

    source: Names = ()
    target: Names = ()

    def __truediv__(self, name: str) -> "Paths":
        """The place of this name below, on both sides."""
        return Paths((*self.source, name), (*self.target, name))


# The planner of a `TrainState`.
StateItems = Callable[[PyTree, PyTree, Paths, "Scope"], Iterator[Item]]
Moments = Callable[["Scope"], Iterator[Item]]  # the planner of its optimizer's state


@dataclass(frozen=True)
class Scope:
    """Facts about all leaves of a tree, and about those of the state around them."""

    place: Place
    owner: Owner = "state"
    keep: bool = False  # missing leaves stay as the template has them
    ranges: Mapping[Names, Range] = field(default_factory=dict[Names, Range])
    changes: frozenset[tuple[str, str]] = frozenset()  # types of parameters: template's and file's
    copies: int | None = None  # the leading axis of a replicated checkpoint; the template has none
    state: StateItems | None = None  # the planner of a `TrainState` in the tree
    is_ordered: bool = False  # within an OrderedDict, where Flax wrote NamedTuples by index

    @property
    def in_state(self) -> bool:
        """True within a `TrainState`."""
        return self.owner not in ("program", "legacy")

    def move(self, paths: Paths, leaf: Leaf, template: Leaf, *, is_cast: bool = False) -> Move:
        """The move of a leaf, whose numbers are checked if they are trained."""
        is_trained = self.owner in ("params", "opt_state")
        return Move(
            paths.source, paths.target, leaf=leaf, template=template,
            cast=(str(dtype_of(leaf)), str(dtype_of(template))) if is_cast else None,
            within=self.ranges.get(paths.target, FINITE) if is_trained else None,
        )  # fmt: skip


def same_names(expected: PyTree, saved: PyTree, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the items of a part, a state dict whose `TrainState`s are objects."""
    if scope.state is not None and is_state(expected):
        yield from scope.state(expected, saved, paths, scope)
    elif scope.owner == "program" and legacy_states(expected) is not None:
        legacy = replace(scope, owner="legacy")
        yield from judge_types(_level(expected, saved, paths, legacy), paths.source)
    elif isinstance(expected, Mapping):
        yield from _level(expected, saved, paths, scope)
    elif isinstance(saved, Mapping):
        yield from _unbox(expected, saved, paths, scope)
    elif item := leaf_item(expected, saved, paths, scope):
        yield item


def _level(
    expected: Mapping[str, PyTree], saved: PyTree, paths: Paths, scope: Scope
) -> Iterator[Item]:
    if not isinstance(saved, Mapping):
        if set(expected) == {LEVEL} and saved is not None:  # a box in the template alone
            within = replace(paths, target=(*paths.target, LEVEL))
            yield from same_names(expected[LEVEL], saved, within, scope)
            return
        if saved is not None and any(True for _ in leaves(expected)):
            yield Misfit(paths.source, template=expected, leaf=saved)
            return
        yield from surplus_items(saved, paths, scope)
        saved = {}
    indices = list(map(str, range(len(expected))))
    is_by_index = scope.is_ordered and set(saved) == set(indices)
    names = dict(zip(indices if is_by_index else expected, expected, strict=True))
    is_ordered = scope.owner == "opt_state" and isinstance(expected, OrderedDict)
    scope = replace(scope, is_ordered=scope.is_ordered or is_ordered)
    for name in saved:
        if name not in names:
            yield from surplus_items(saved[name], paths / name, scope)
    for name, target in names.items():
        within = Paths((*paths.source, name), (*paths.target, target))
        if name in saved:
            yield from same_names(expected[target], saved[name], within, scope)
        else:
            yield from missing_items(expected[target], within)


def _unbox(
    expected: PyTree, saved: Mapping[str, PyTree], paths: Paths, scope: Scope
) -> Iterator[Item]:
    if set(saved) == {LEVEL} and (scope.in_state or array_like(expected)):
        within = replace(paths, source=(*paths.source, LEVEL))
        yield from same_names(expected, saved[LEVEL], within, scope)
    elif expected is None and scope.in_state:
        yield from surplus_items(saved, paths, scope)
    elif not array_like(expected) and not scope.in_state:  # Flax has nothing to compare it with
        yield scope.move(paths, saved, expected)
    else:
        expectation = f"{kind(expected)} (is it in a box of its own class?)"
        yield Misfit(paths.source, expectation, leaf=saved)


def leaf_item(expected: Leaf, saved: Leaf, paths: Paths, scope: Scope) -> Item | None:
    """The item of a leaf, if there is one on either side."""
    path = paths.source
    if saved is None:
        return None if expected is None else Unpaired(path, Side.MISSING)
    if expected is None:
        is_left = scope.in_state
        return Unpaired(path, Side.SURPLUS) if is_left else scope.move(paths, saved, None)
    if scope.copies is not None and np.shape(saved) == (scope.copies, *np.shape(expected)):
        saved = one_copy(saved)
        if saved is None:
            return Misfit(path, "equal copies, as when replicated", "copies that differ")
    if is_key(expected):
        bits = jax.eval_shape(jax.random.key_data, expected)
        if np.shape(saved) == bits.shape and getattr(saved, "dtype", None) == bits.dtype:
            return scope.move(paths, saved, expected)
        return Misfit(path, f"the bits of {kind(expected)}, {kind(bits)}", leaf=saved)
    if array_like(expected) and array_like(saved):
        is_history = not scope.in_state and _grows(expected, saved)
        if is_history and is_floating(dtype_of(expected)) and is_floating(dtype_of(saved)):
            return scope.move(paths, saved, expected)
        if is_history or np.shape(expected) == np.shape(saved):
            return dtype_item(expected, saved, paths, scope)
        if _is_copied(expected, saved):
            return Misfit(path, template=expected, leaf=saved, hint=_REPLICATED)
    are_alike = isinstance(expected, str | bytes) == isinstance(saved, str | bytes)
    if not array_like(expected) and (are_alike or not scope.in_state):
        return scope.move(paths, saved, expected)
    hint = "" if scope.in_state else _OTHER_KIND
    return Misfit(path, template=expected, leaf=saved, hint=hint)


def dtype_item(expected: Leaf, saved: Leaf, paths: Paths, scope: Scope) -> Item:
    """The item of a leaf of the template's shape, which may have another type."""
    path, is_moment = paths.source, scope.owner == "opt_state"
    if not hasattr(expected, "dtype"):  # a number of Python
        kinds = {dtype_of(expected).kind, dtype_of(saved).kind}
        if len(kinds) > 1 and kinds & {"b", "c"}:
            return Misfit(path, template=expected, leaf=saved)
        return scope.move(paths, saved, expected)
    dtype, saved_dtype = expected.dtype, dtype_of(saved)
    both_float = is_floating(dtype) and is_floating(saved_dtype)
    is_kept = both_float and scope.owner == "params"
    change = (str(dtype), str(saved_dtype))
    is_kept = is_kept or (scope.owner == "legacy" and change in _LIFTED)
    is_kept = is_kept or (is_moment and change in scope.changes)
    is_cast = dtype != saved_dtype and not is_kept
    if is_cast and is_moment and both_float:
        expectation = f"{dtype}, which the new state keeps"
        return Misfit(path, expectation, str(saved_dtype), OTHER_STATE_TYPE)
    are_alike = both_float or {dtype.kind, saved_dtype.kind} <= {*"iu"}
    if is_cast and not (are_alike and _keeps(saved, dtype)):
        expectation = kind(expected) + " or numbers that it holds exactly" * are_alike
        return Misfit(path, expectation, leaf=saved, hint=other_type(saved_dtype))
    if is_moment and path[-1] in COUNTS and not may_count_steps(saved):
        return steps_misfit(saved, path)
    return scope.move(paths, saved, expected, is_cast=is_cast)


def _keeps(saved: Leaf, dtype: np.dtype) -> bool:
    """True if numbers of another type keep their values in this one, or are Python's own floats."""
    if is_floating(dtype) and not hasattr(saved, "dtype"):
        return True
    array = np.asarray(saved)
    with np.errstate(all="ignore"):
        return bool(np.all((array.astype(dtype).astype(array.dtype) == array) | (array != array)))


def _grows(expected: Leaf, saved: Leaf) -> bool:
    """True if the template's array is empty and the checkpoint's is not, as a history's may be."""
    old, new = np.shape(expected), np.shape(saved)
    may_grow = len(old) == len(new) and all(n in (0, m) for n, m in zip(old, new, strict=True))
    return 0 in old and may_grow


def _is_copied(expected: Leaf, saved: Leaf) -> bool:
    """True if one of them has one more axis, in front, than the other."""
    shorter, longer = sorted((np.shape(expected), np.shape(saved)), key=len)
    return len(longer) > len(shorter) and longer[1:] == shorter


def other_type(dtype: np.dtype) -> str:
    """The remedy for a leaf of another type than the template's."""
    return (
        "Cast the template to that type, for example by params = jax.tree.map(lambda x: "
        f"x.astype(jnp.{dtype}), params), or cast the leaf of the checkpoint."
    )


def may_count_steps(step: PyTree) -> bool:
    """True if this may be a number of steps, or is none that can be looked at."""
    if isinstance(step, jax.ShapeDtypeStruct | Tracer) or not array_like(step):
        return True
    if isinstance(step, jax.Array) and not step.is_fully_addressable:
        return True
    array = np.asarray(step)
    return array.size == 0 or is_number_of_steps(array)


def steps_misfit(step: Leaf, path: Names) -> Misfit:
    """The error about a number of steps that is none."""
    return Misfit(path, STEPS, brief(np.asarray(step).tolist()), _NO_STEPS)


def missing_items(expected: PyTree, paths: Paths) -> Iterator[Item]:
    """Yields the leaves that the checkpoint lacks; a whole state is named once."""
    path = paths.source
    whole = [(path, expected)] if is_state(expected) else leaves(expected, path)
    return (Unpaired(at, Side.MISSING) for at, leaf in whole if leaf is not None)


def surplus_items(saved: PyTree, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the leaves that the target has no place for."""
    side = Side.SURPLUS if scope.in_state else Side.UNUSED
    return (Unpaired(at, side) for at in paths_of(saved, paths.source))


def trained_items(tree: PyTree, paths: Paths) -> Iterator[Item]:
    """Yields the moves of a tree whose numbers are finite and which has no template."""
    for names, leaf in leaves(tree):
        source, target = (*paths.source, *names), (*paths.target, *names)
        yield Move(source, target, leaf=leaf, within=FINITE)


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
    """Yields the items of a state's fields from their values, which may stand elsewhere."""
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
    if all(tuple(map(str, pair)) in _LIFTED for pair in differing.values()):
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
