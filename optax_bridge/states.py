"""The one map between the state of a legacy optimizer and that of any Optax transformation.

A legacy optimizer keeps a few arrays for each parameter. Here they are *rows*: the path of the
parameter and the names of the field after it -> the array, `("dense", "kernel", "grad_ema")`, as in
the state dicts that checkpoints hold; None at a parameter's own path if no group held it. An Optax
state, exact or of public Optax, in groups, chains, masks and accumulators, is walked leaf by leaf:
what its NamedTuples call a leaf says which field of which parameter it is.
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax.tree_util import DictKey, GetAttrKey, KeyPath, SequenceKey

import legacy_optim
from optax_bridge._text import listing
from optax_bridge.correspondence import ENTRIES, Entry, all_entries
from optax_bridge.correspondence.recipe import build, substitute
from optax_bridge.correspondence.values import FINITE, Range
from optax_bridge.metadata.axis_metadata import leaves_with_path, unboxed
from optax_bridge.metadata.paths import Names, key_names, leaf_name, leaves
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree

Rows = Mapping[Names, PyTree]
ChainTypes = tuple["str | ChainTypes", ...]  # of the states in a chain, nested as they are

COUNTS = ("count", "gradient_step")  # of steps taken; MultiSteps counts them by the other name
_SETTINGS = "hyperparams"  # arguments of the transformation, which the program gives
_WRAPPED = "WeightNormState.inner"  # the state over directions and scales


class Kind(enum.Enum):
    """The kinds of leaves of an Optax state."""

    COUNT = "the number of steps taken"
    SETTING = "an argument of the transformation"
    FIELD = "a field of a legacy state"
    UNKNOWN = "nothing that a legacy optimizer has"
    UNCERTAIN_SIGN = "a trace that may be before the step is scaled, or after it"


@dataclass(frozen=True)
class Slot:
    """A leaf of an Optax state, classified."""

    path: Names
    leaf: Leaf
    kind: Kind
    row: Names = ()
    sign: int = 1
    within: Range = FINITE

    def apply_sign(self, array: Leaf) -> Leaf:
        """The array, negated where the other side keeps it so."""
        if self.sign == 1:
            return array
        return -(array if isinstance(array, jax.Array) else np.asarray(array))


@dataclass(frozen=True)
class _Holding:
    """A field of Optax's states: the legacy fields that it may hold, with their signs."""

    signs: Mapping[str, set[int]]
    exact: str | None
    within: Range


def slots(state: OptState, rows: Rows | None) -> list[Slot]:
    """Classifies the leaves of an Optax state without boxes, in JAX's order."""
    return [_slot(state, path, leaf, rows) for path, leaf in leaves_with_path(state)]


def fill(template: OptState, rows: Rows, step: Leaf) -> OptState:
    """An Optax state from the rows of a legacy state, which must have them as the template does."""

    def leaf(slot: Slot) -> Leaf:
        if slot.kind is Kind.SETTING:
            return slot.leaf
        if slot.kind is Kind.COUNT:
            return count_like(step, slot.leaf)
        return _take(slot, rows[slot.row] if slot.kind is Kind.FIELD else None)

    leaves = [leaf(slot) for slot in slots(unboxed(template), rows)]
    return jax.tree.structure(template).unflatten(leaves)


def extract(state: OptState, fields: Rows | None) -> dict[Names, Leaf]:
    """The rows of a legacy state from an Optax state, the inverse of `fill`."""
    return {slot.row: slot.apply_sign(slot.leaf) for slot in field_slots(state, fields)}


def field_slots(state: OptState, fields: Rows | None) -> list[Slot]:
    """The leaves of an Optax state that are fields of a legacy one, which must be all of it."""
    slots_of_state = slots(unboxed(state), fields)
    present = [slot for slot in slots_of_state if slot.kind is Kind.FIELD]
    others = [s.path for s in slots_of_state if s.kind is Kind.UNKNOWN and np.ndim(s.leaf)]
    rows = {slot.row for slot in present}
    missing = [
        key
        for key, field in (fields or {}).items()
        if field is not None and key not in rows and not _may_be_placeholder(key, fields or {})
    ]
    if missing or others:
        problems = [f"no {_list_of(missing)}"] if missing else []
        problems += [f"{_list_of(others)} besides"] if others else []
        raise ValueError(f"found {', '.join(problems)}")
    return present


def rows_of(state: PyTree, params: Params) -> dict[Names, PyTree]:
    """The rows of a legacy optimizer's state in memory."""
    paths = [key_names(path) for path, _ in leaves_with_path(params)]
    param_states = jax.tree.structure(params).flatten_up_to(state.param_states)
    return {
        (*path, *names): leaf
        for path, fields in zip(paths, param_states, strict=True)
        for names, leaf in leaves(serialization.to_state_dict(fields))
    }


def state_with(
    template: PyTree, rows: Rows, step: Leaf, params: Params
) -> legacy_optim.OptimizerState:
    """The state of a legacy optimizer in memory, from rows."""

    def leaf(path: KeyPath, shape: Leaf) -> Leaf:
        value = rows.get(key_names(path))
        return jnp.zeros(shape.shape, shape.dtype) if value is None else value

    states = jax.tree_util.tree_map_with_path(leaf, template.param_states)
    param_states = jax.tree.structure(unboxed(params)).flatten_up_to(states)
    return legacy_optim.OptimizerState(step, jax.tree.structure(params).unflatten(param_states))


def unused_rows(rows: Rows, used: Collection[Names]) -> list[Names]:
    """Returns the keys of rows that no leaf of a state used, placeholders excepted."""
    return [
        key
        for key, value in rows.items()
        if value is not None and key not in used and not is_placeholder(key, rows)
    ]


def is_placeholder(key: Names, rows: Rows) -> bool:
    """True for Adafactor's placeholder of an unused statistic: a single zero."""
    return _may_be_placeholder(key, rows) and not np.any(np.asarray(rows[key]))


def _may_be_placeholder(key: Names, rows: Rows) -> bool:
    if key[-1:] == () or key[-1] not in _ADAFACTOR or np.shape(rows[key])[-1:] != (1,):
        return False
    return all((*key[:-1], name) in rows for name in _ADAFACTOR)


_ADAFACTOR = ("v_row", "v_col", "v", "m")


def _slot(state: OptState, path: KeyPath, leaf: Leaf, rows: Rows | None) -> Slot:
    """Classifies one leaf by the types of the nodes on the way to it."""
    names = key_names(path)
    node, wrapped, is_last, sign = state, 0, True, None
    for depth, (key, name) in enumerate(zip(path, names, strict=True)):
        below = names[depth + 1 :]
        if isinstance(node, legacy_optim.OptimizerState):  # of a definition of the program's own
            kind = Kind.FIELD if rows and _has_array(rows, below) else Kind.UNKNOWN
            return Slot(names, leaf, Kind.COUNT if name == "step" else kind, below)
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            field = f"{type(node).__name__}.{name}"
            if name in COUNTS:
                return Slot(names, leaf, Kind.COUNT)
            if name == _SETTINGS:
                return Slot(names, leaf, Kind.SETTING)
            if holding := _holdings().get(field):
                possible = _possible(holding, below, wrapped, rows)
                slot = _field_slot(names, leaf, possible, sign, is_last)
                return replace(slot, within=holding.within)
            wrapped += field == _WRAPPED
        elif isinstance(node, tuple | list):
            is_end = int(name) == len(node) - 1
            is_last = is_last and is_end
            sign = _signs_at_the_end().get(_types(node)) if is_end else None
        match key:
            case GetAttrKey():
                node = getattr(node, name)
            case SequenceKey(index) | DictKey(index):
                node = node[index]
            case _:  # in a container of the program's own, which holds no state of Optax
                break
    return Slot(names, leaf, Kind.UNKNOWN)


def _possible(
    holding: _Holding, below: Names, wrapped: int, rows: Rows | None
) -> dict[Names, tuple[set[int], bool]]:
    """The keys of the rows that a field may hold, with their signs and presence."""
    wrappers, parameter = below[:wrapped], below[wrapped:]
    states = tuple(f"{name}_state" for name in reversed(wrappers))
    fields = holding.signs
    if rows is None:  # this project's own fields alone
        fields = {holding.exact: {1}} if holding.exact else {}
    return {
        (*parameter, *states, legacy): (
            signs,
            rows is None or _has_array(rows, (*parameter, *states, legacy)),
        )
        for legacy, signs in fields.items()
    }


def _field_slot(
    path: Names,
    leaf: Leaf,
    possible: Mapping[Names, tuple[set[int], bool]],
    sign: int | None,
    is_last: bool,
) -> Slot:
    present = [(row, signs) for row, (signs, is_there) in possible.items() if is_there]
    if len(present) != 1:
        row = () if present else next(iter(possible), ())  # of flax.optim, whose entries are first
        return Slot(path, leaf, Kind.UNKNOWN, row)
    ((row, signs),) = present
    if len(signs) > 1 and sign is None and is_last:
        return Slot(path, leaf, Kind.UNCERTAIN_SIGN, row)
    return Slot(path, leaf, Kind.FIELD, row, (sign or 1) if len(signs) > 1 else min(signs))


def _has_array(rows: Rows, key: Names) -> bool:
    return hasattr(rows.get(key), "shape")


def count_like(step: Leaf, old: Leaf) -> Leaf:
    """Returns the number of steps in the dtype of a state's count."""
    if isinstance(step, jax.Array):
        return jnp.asarray(step, old.dtype)
    dtype = old.dtype if hasattr(old, "dtype") else np.int32
    return np.broadcast_to(np.asarray(step, dtype), np.shape(old))


def _take(slot: Slot, value: Leaf) -> Leaf:
    """The value of a field, which must be there as the template has it."""
    at = f"opt_state{leaf_name(slot.path)}"
    if slot.kind is Kind.UNCERTAIN_SIGN:
        raise ValueError(f"{at}: {UNCERTAIN_SIGN[0]}, found {UNCERTAIN_SIGN[1]}")
    expected = f"{slot.leaf.dtype}{list(np.shape(slot.leaf))}"
    actual = "nothing" if value is None else f"{value.dtype}{list(np.shape(value))}"
    if actual != expected:
        raise ValueError(f"{at}: the transformation has {expected}, the legacy state {actual}")
    return slot.apply_sign(value)


UNCERTAIN_SIGN = ("a trace before the step is scaled", "one after it, at the end")


@cache
def _holdings() -> dict[str, _Holding]:
    """`Type.field` of the Optax states -> the legacy fields that it may hold."""
    fields = [field for entry in all_entries().values() for field in entry.state]
    pairs = [(field.exact, field, 1) for field in fields]
    pairs += [(key, field, field.optax_sign) for field in fields for key in field.optax]
    holdings: dict[str, _Holding] = {}
    for key, field, sign in pairs:
        exact = field.legacy if key == field.exact else None
        holding = holdings.setdefault(key, _Holding({}, exact, FINITE))
        signs = {**holding.signs, field.legacy: {*holding.signs.get(field.legacy, ()), sign}}
        within = field.within if holding.within == FINITE else holding.within
        holdings[key] = _Holding(signs, holding.exact, within)
    return holdings


@cache
def _optax_states() -> dict[ChainTypes, list[Entry]]:
    """The types of the states that recipes of public Optax make -> the entries of these recipes."""
    entries_by_types: dict[ChainTypes, list[Entry]] = {}
    shapes = {"w": jax.ShapeDtypeStruct((2,), jnp.float32)}
    for entry in ENTRIES.values():
        for variant in entry.optax:
            settings = entry.defaults() | {entry.rate: 0.1} | dict(variant.when)
            types = _types(jax.eval_shape(build(substitute(variant.recipe, settings)).init, shapes))
            if entry not in entries_by_types.setdefault(types, []):
                entries_by_types[types].append(entry)
    return entries_by_types


@cache
def _signs_at_the_end() -> dict[ChainTypes, int]:
    """The sign of a trace at the end of a recipe of public Optax, by the types of its states."""
    return {
        types: -1
        for types, entries in _optax_states().items()
        if any(field.optax_sign == -1 for entry in entries for field in entry.state)
    }


def legacy_classes(state: OptState) -> list[str]:
    """The legacy classes whose exact or Optax recipes make the states within a state."""
    owners = {
        field.exact.partition(".")[0]: entry for entry in ENTRIES.values() for field in entry.state
    }
    exact = [
        owners[type(node).__name__] for node in nodes_of(state) if type(node).__name__ in owners
    ]
    entries = [*exact, *optax_entries(state)]
    return list(dict.fromkeys(entry.legacy.__name__ for entry in entries))


def optax_entries(state: OptState) -> list[Entry]:
    """The entries whose recipes of public Optax make the states within a state."""
    chains = (node for node in nodes_of(state) if not hasattr(node, "_fields"))
    return [entry for chain in chains for entry in _optax_states().get(_types(chain), [])]


def nodes_of(state: OptState) -> Iterator[OptState]:
    """The tuples within a state, in dicts and classes too, from the outermost on."""
    if isinstance(state, tuple):
        yield state
    below = jax.tree.leaves(state, is_leaf=lambda n: n is not state and isinstance(n, tuple))
    for node in below:
        if node is not state:
            yield from nodes_of(node)


def _types(chain: OptState) -> ChainTypes:
    """The types of a chain's states; a rate's schedule counts as a number does."""

    def name(item: OptState) -> "str | ChainTypes":
        if isinstance(item, tuple) and not hasattr(item, "_fields"):
            return _types(item)
        type_name = type(item).__name__
        return "EmptyState" if type_name == "ScaleByScheduleState" else type_name

    return tuple(map(name, chain))


def _list_of(keys: Iterable[Names]) -> str:
    return listing([leaf_name(key) for key in keys])
