"""The planner of a `TrainState`: its fields by their names, and parameters of another type."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import jax
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, place_of
from optax_bridge.checkpoints.layout import LAYOUT
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
    dtype_of,
    fields_of,
    fill_outline,
    is_floating,
    is_key,
    is_ordered,
    kind,
    named_by_fields,
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


def state_items(template: PyTree, saved: PyTree, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the items of a `TrainState`; raises if the checkpoint has something else there."""
    expected = f"a {type(template).__name__}: step, params, opt_state"
    if legacy_states(saved) is not None:
        found = "an Optimizer: target, state"
        raise CheckpointError(place_of(scope.place, paths.source), expected, found, REMEDY)
    if not isinstance(saved, Mapping) or not {"params", "opt_state"} <= set(saved):
        remedy = REMEDY if any(True for _ in optimizers(saved)) else scope.remedy
        raise CheckpointError(place_of(scope.place, paths.source), expected, kind(saved), remedy)
    saved = {name: value for name, value in saved.items() if name != LAYOUT}
    scope = replace(scope, owner="state")
    for name in sorted(saved.keys() - set(fields_of(template))):
        yield from surplus_items(saved[name], paths / name, scope)
    types = ParameterTypes()
    for name in sorted(fields_of(template), key=lambda name: name != "params"):
        field_paths, value = paths / name, getattr(template, name)
        field_scope = replace(scope, owner=OWNERS.get(name, "state"))
        if name not in saved:
            yield from missing_items(state_dict_of(value), field_paths)
            continue
        if name == "params":
            types = parameter_types(value, saved[name], field_paths, field_scope)
            yield from types.items
            continue
        if name == "opt_state":
            value = types.retyped_state(template)
            yield from types.retyped(value, paths.target)
            field_scope = replace(
                field_scope, ranges=ranges_of(value, field_paths.target), lifted=types.lifted
            )
            if any(map(is_ordered, jax.tree.leaves(value, is_leaf=is_ordered))):
                saved[name] = named_by_fields(value, saved[name])
        if name == "step" and not may_count_steps(saved[name]):
            yield steps_misfit(saved[name], field_paths.source)
        else:
            yield from same_names(state_dict_of(value), saved[name], field_paths, field_scope)


@dataclass(frozen=True)
class ParameterTypes:
    """The items of a state's parameters, and the types that these have in the checkpoint."""

    items: tuple[Item, ...] = ()
    lifted: frozenset[np.dtype] = frozenset()
    params: Params = None  # those of the checkpoint, if their types differ and nothing is wrong

    def retyped_state(self, template: PyTree) -> OptState:
        """The template's optimizer state for parameters of these types."""
        if self.params is None:
            return template.opt_state
        tx = boxes_handled(template.tx) if has_boxes(template.params) else template.tx
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), dtype_of(x)), self.params)
        new = jax.tree.leaves(jax.eval_shape(tx.init, shapes))
        old, treedef = jax.tree.flatten(template.opt_state)
        if len(new) != len(old):
            return template.opt_state
        return treedef.unflatten(map(_with_dtype, old, new))

    def retyped(self, opt_state: OptState, home: Names) -> Iterator[Retyped]:
        """Yields the leaves of `retyped_state`, for those that the checkpoint lacks."""
        if self.params is not None:
            names = paths_in_state_dict(opt_state)
            for path, leaf in zip(names, jax.tree.leaves(opt_state), strict=True):
                yield Retyped((*home, "opt_state", *path), leaf)


def parameter_types(params: Params, saved: PyTree, paths: Paths, scope: Scope) -> ParameterTypes:
    """Plans the parameters of a state, all of which may have another type in floating point."""
    outline = state_dict_of(params)
    items, lifted = judge_types(same_names(outline, saved, paths, scope), paths.source)
    new = None
    is_wrong = any(
        isinstance(item, Misfit) or (isinstance(item, Unpaired) and item.side is Side.MISSING)
        for item in items
    )
    if any(isinstance(item, Converted) for item in items) and not is_wrong:
        values = {item.target: item.leaf for item in items if isinstance(item, Move)}
        new = refill(params, fill_outline(outline, values, paths.target))
    return ParameterTypes(tuple(items), lifted, new)


def judge_types(items: Iterable[Item], path: Names) -> tuple[list[Item], frozenset[np.dtype]]:
    """Judges parameters of other types than the template's; returns those that were lifted, too."""
    items = list(items)
    types = [
        (item.source, np.dtype(item.template.dtype), dtype_of(item.leaf))
        for item in items
        if isinstance(item, Move) and hasattr(item.template, "dtype")
        if not item.cast and not is_key(item.template)
    ]
    differing = [(at, expected, actual) for at, expected, actual in types if expected != actual]
    pairs = {(expected, actual) for _, expected, actual in types if is_floating(expected)}
    lifted: frozenset[np.dtype] = frozenset()
    if differing and len(pairs) == 1:
        ((expected, actual),) = pairs
        items.append(Converted(path, str(expected), str(actual)))
    elif all(_is_lifted(expected, actual) for _, expected, actual in differing):
        items += [Converted(at, str(expected), str(actual)) for at, expected, actual in differing]
        lifted = frozenset(dtype for _, *dtypes in differing for dtype in dtypes)
    else:
        items += [
            Misfit(at, f"{expected}, the template's type", str(actual), other_type(actual))
            for at, expected, actual in differing
        ]
    return items, lifted


def ranges_of(opt_state: OptState, path: Names) -> dict[Names, Range]:
    """The leaves of a state at a path that cannot be negative, with the level of a box too."""
    ranges: dict[Names, Range] = {}
    for slot in slots(unboxed(opt_state), None):
        if slot.within != FINITE:
            at = (*path, *slot.path)
            ranges |= {at: slot.within, (*at, LEVEL): slot.within}
    return ranges


def _is_lifted(expected: np.dtype, actual: np.dtype) -> bool:
    """True if a step, with a rate in float32 say, made a parameter in half precision float32."""
    is_half = is_floating(expected) and expected.itemsize == 2
    return expected == actual or (is_half and actual == np.float32)


def _with_dtype(leaf: Leaf, like: Leaf) -> Leaf:
    """A template's leaf in another type."""
    if leaf.dtype == like.dtype:
        return leaf
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    return jax.ShapeDtypeStruct(leaf.shape, like.dtype) if is_shape else leaf.astype(like.dtype)
