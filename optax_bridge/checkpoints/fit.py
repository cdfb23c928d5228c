"""The comparison of a checkpoint with a template, leaf by leaf: nothing is lost silently.

Every way into a state asks here, so that all take, refuse and say the same. Of each leaf:

- There is one in the checkpoint for each of the template, and a `TrainState` has no others.
- Its shape is the template's; an array outside a state may have grown from one without elements.
- Its type is the template's. An integer of another width comes as the template's type if it keeps
  its value. So do numbers in floating point outside a state, with a warning. All parameters of a
  state may have another type in floating point, as when a whole training was in half precision:
  they are taken unchanged, with the moments of that type, with a warning. Where the template has
  a plain number of Python, any number is taken, and no text. All else is refused.
- Parameters and moments are finite, and means of squares not negative, unless NaN is allowed or the
  template has the like there itself.
- A number of steps is an integer from 0 to 2**31 - 2.
"""

from collections.abc import Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from optax_bridge.checkpoints.errors import (
    CheckpointError,
    Place,
    brief,
)
from optax_bridge.checkpoints.locate import legacy_states, optimizers
from optax_bridge.checkpoints.moves import Misfit, Move, Plan, place_of
from optax_bridge.checkpoints.trees import (
    SAME_MAKE,
    array_like,
    dtype_of,
    fields_of,
    is_array,
    is_floating,
    is_key,
    is_ordered,
    is_state,
    kind,
    named_by_fields,
    outline_of,
    paths_of,
    plain,
    plain_outline,
    refill,
    state_dict,
    state_dict_of,
)
from optax_bridge.checkpoints.values import EXPECTED, STEPS, fault_in, is_number_of_steps
from optax_bridge.correspondence.values import FINITE, Range
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.metadata.axis_metadata import has_boxes, unboxed
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import Leaf, OptState, PyTree
from optax_bridge.states import COUNTS, slots

LAYOUT = "legacy_layout"  # what `optax-bridge convert` remembers for the way back; no leaf
LEVEL = "value"  # what Flax's boxes, and by custom a program's, call the array
_NAMED_TUPLE = {"name", "fields", "values"}  # how Flax once saved one

# What a leaf belongs to: the program's own, a field of a state, and what the optimizer moves or
# keeps, which must be finite.
Owner = Literal["program", "state", "params", "opt_state"]
OWNERS: dict[str, Owner] = {"params": "params", "ema_params": "params", "opt_state": "opt_state"}

_NOT_FINITE = (
    "The training had broken down: take an earlier checkpoint, or let it through unchanged, by "
    "allow_nan=True of optax_bridge.checkpoints.restore_checkpoint or TrainState."
    "from_legacy_checkpoint, or convert --allow-nan."
)
_NEGATIVE = (
    "It is a mean of squares, so the file is damaged or of another optimizer: take an earlier "
    "checkpoint."
)
_NO_STEPS = "The file is damaged, or counts something else there: take an earlier checkpoint."
OTHER_STATE_TYPE = (
    "Its bits would be lost: the exact transformation (optax_bridge's own, "
    "from_legacy(definition), --recipe exact) keeps that dtype. If it is that already, the "
    "parameter and its state do not belong together."
)
_OTHER_KIND = "Give the template something of that kind, or None, which takes anything."
BELOW_PARAMS = (
    "The checkpoint has them below 'params', as models before Linen did, and Linen's variables: "
    "make the state of {'params': params}, and give the model state.params as it is."
)
REMEDY = (
    "This is a checkpoint of flax.optim: optax_bridge.checkpoints.restore_checkpoint (from_bytes, "
    "from_state_dict) reads it into this state, and `optax-bridge convert` makes a checkpoint of "
    "it that Flax and Orbax restore."
)


def check_finite(restored_tree: PyTree, template: PyTree, place: Place) -> None:
    """Checks the states of a tree that another library has restored, such as Orbax."""
    fit = Fit(place)
    pairs = zip(*(jax.tree.leaves(t, is_leaf=is_state) for t in (restored_tree, template)))  # noqa: B905
    for new, old in pairs:
        if not is_state(new) or not is_state(old):
            continue
        fit.note_ranges(new.opt_state, ("opt_state",))
        for name in set(fields_of(new)) & set(OWNERS):
            values = dict(leaves(plain(state_dict(getattr(old, name)))))
            for path, leaf in leaves(plain(state_dict(getattr(new, name)))):
                if array_like(leaf):
                    fit.check_numbers(values.get(path), leaf, (name, *path), OWNERS[name])
        fit.check_step(new.step, ("step",))
    fit.settle()


class Fit:
    """Fits state dicts to templates and keeps a list of all that does not fit."""

    def __init__(self, place: Place, *, keep: bool = False, allow_nan: bool = False):
        self.place, self.keep, self.allow_nan = place, keep, allow_nan
        self.remedy, self.changed = SAME_MAKE, False
        self.requirement, self.if_missing = Plan.requirement, Plan.if_missing
        self.moves: list[Move] = []
        self.homes: dict[Names, Names] = {}  # a path in the checkpoint -> in what is restored
        self.missing: list[Names] = []
        self.surplus: list[Names] = []
        self.unused: list[Names] = []
        self.wrong: list[Misfit] = []
        self.converted: list[Misfit] = []
        self.replicated = self.beside = 0
        self.ranges: dict[Names, Range] = {}
        self.params: list[tuple[Names, np.dtype, np.dtype]] = []
        self.lifted: set[np.dtype] = set()  # types of parameters that a step lifted to float32

    @property
    def is_exact(self) -> bool:
        """True if template and checkpoint have the same leaves, and none was converted."""
        return not (self.changed or self.missing or self.surplus or self.unused or self.wrong)

    def plan(self) -> Plan:
        """All that does not fit so far."""
        return Plan(
            self.place, self.moves, self.missing, self.surplus, self.unused, self.wrong,
            self.converted, self.remedy, self.requirement, self.if_missing, bool(self.beside),
            self.replicated,
        )  # fmt: skip

    def settle(self) -> None:
        """Raises or warns of what does not fit."""
        self.plan().check(keep=self.keep)

    def place_of(self, path: Names) -> str:
        """The name of a leaf of the checkpoint in errors."""
        return place_of(self.place, path)

    def tree(self, expected: PyTree, saved: PyTree, path: Names, owner: Owner) -> PyTree:
        """Fits a part."""
        if is_state(expected):
            return self.state(expected, saved, path)
        if isinstance(expected, Mapping):
            return self._level(expected, saved, path, owner)
        if isinstance(saved, Mapping):
            return self._unbox(expected, saved, path, owner)
        problems = self._count_of_problems()
        fitted = self.leaf(expected, saved, path, owner)
        if saved is not None and self._count_of_problems() == problems:
            self.record(saved, fitted, path)
        return fitted

    def _count_of_problems(self) -> int:
        return sum(map(len, (self.missing, self.surplus, self.unused, self.wrong)))

    def record(
        self,
        saved: Leaf,
        fitted: Leaf,
        source: Names,
        target: Names | None = None,
        *,
        negate: bool = False,
    ) -> None:
        """Adds a move to the plan."""
        if target is None:
            lengths = [n for n in range(len(source), -1, -1) if source[:n] in self.homes]
            length = lengths[0] if lengths else 0
            target = (*self.homes.get(source[:length], ()), *source[length:])
        cast = None
        if array_like(saved) and array_like(fitted) and not is_key(fitted):
            before, after = str(dtype_of(saved)), str(dtype_of(fitted))
            cast = (before, after) if before != after else None
        self.moves.append(Move(source, target, cast, negate))

    def state(self, template: PyTree, saved: PyTree, path: Names) -> PyTree:
        """Fits a `TrainState`, or what the checkpoint has in its place."""
        if legacy_states(saved) is not None:
            raise CheckpointError(
                self.place_of(path), f"a {type(template).__name__}: step, params, opt_state",
                "an Optimizer: target, state", REMEDY,
            )  # fmt: skip
        if not isinstance(saved, Mapping) or not {"params", "opt_state"} <= set(saved):
            remedy = REMEDY if any(True for _ in optimizers(saved)) else self.remedy
            raise CheckpointError(
                self.place_of(path), f"a {type(template).__name__}: step, params, opt_state",
                kind(saved), remedy,
            )  # fmt: skip
        saved = {name: value for name, value in saved.items() if name != LAYOUT}
        for name in saved.keys() - set(fields_of(template)):
            self._over(saved[name], (*path, name), "state")
        fitted: dict[str, PyTree] = {}
        for name in sorted(fields_of(template), key=lambda name: name != "params"):
            field_path = (*path, name)
            if name not in saved:
                fitted[name] = self.lacking(state_dict_of(getattr(template, name)), field_path)
            elif name == "params":
                fitted[name] = self.parameters(template, saved[name], field_path)
            else:
                value = getattr(template, name)
                if name == "opt_state":
                    value = self.opt_state_template(template, fitted.get("params"))
                    self.note_ranges(value, field_path)
                    if any(map(is_ordered, jax.tree.leaves(value, is_leaf=is_ordered))):
                        saved[name] = named_by_fields(value, saved[name])
                owner = OWNERS.get(name, "state")
                if name == "step" and not self.check_step(saved[name], field_path):
                    fitted[name] = value
                else:
                    fitted[name] = self.tree(state_dict_of(value), saved[name], field_path, owner)
        return fitted

    def parameters(self, template: PyTree, saved: PyTree, path: Names) -> PyTree:
        """Fits the parameters of a state, all of which may have another type in floating point."""
        self.params = []
        fitted = self.tree(state_dict_of(template.params), saved, path, "params")
        self.compare_types(path)
        return fitted

    def compare_types(self, path: Names) -> None:
        """Notes parameters of another type than the template's, unless all are of the same one."""
        differing = [
            (at, expected, actual) for at, expected, actual in self.params if expected != actual
        ]
        pairs = {(expected, actual) for _, expected, actual in self.params if is_floating(expected)}
        if differing and len(pairs) == 1:
            ((expected, actual),) = pairs
            self.converted.append((path, str(expected), str(actual)))
            self.changed = True
        elif all(_is_lifted(expected, actual) for _, expected, actual in differing):
            for at, expected, actual in differing:
                self.converted.append((at, str(expected), str(actual)))
                self.lifted |= {expected, actual}
                self.changed = True
        else:
            for at, expected, actual in differing:
                self.wrong.append((at, f"{expected}, the template's type", str(actual)))
                self.remedy = _other_type(actual)

    def opt_state_template(self, template: PyTree, params: PyTree) -> OptState:
        """The template's optimizer state, with the types that parameters of the checkpoint have."""
        if (
            not any(expected != actual for _, expected, actual in self.params)
            or self.wrong
            or self.missing
        ):
            return template.opt_state
        new = refill(template.params, params)
        tx = boxes_handled(template.tx) if has_boxes(template.params) else template.tx
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(np.shape(x), dtype_of(x)), new)
        new_leaves = jax.tree.leaves(jax.eval_shape(tx.init, shapes))
        old_leaves, treedef = jax.tree.flatten(template.opt_state)
        if len(new_leaves) != len(old_leaves):
            return template.opt_state
        return treedef.unflatten(map(_with_dtype, old_leaves, new_leaves))

    def _level(
        self, expected: Mapping[str, PyTree], saved: PyTree, path: Names, owner: Owner
    ) -> PyTree:
        if not isinstance(saved, Mapping):
            if set(expected) == {LEVEL} and saved is not None:  # a box here, none there
                self.changed = True
                return {LEVEL: self.tree(expected[LEVEL], saved, (*path, LEVEL), owner)}
            if saved is None or not any(True for _ in leaves(expected)):
                self._over(saved, path, owner)
                saved = {}
            else:
                self.wrong.append((path, f"a level with {brief(sorted(expected))}", kind(saved)))
                return expected
        if set(saved) == _NAMED_TUPLE != set(expected):
            saved = _of_named_tuple(saved)
        for name in saved.keys() - expected.keys():
            self._over(saved[name], (*path, name), owner)
        fitted = {}
        for name, value in expected.items():
            if name in saved:
                fitted[name] = self.tree(value, saved[name], (*path, name), owner)
            else:
                fitted[name] = self.lacking(value, (*path, name))
        return fitted

    def _unbox(
        self, expected: PyTree, saved: Mapping[str, PyTree], path: Names, owner: Owner
    ) -> PyTree:
        in_state = owner != "program"
        if set(saved) == {LEVEL} and (in_state or array_like(expected)):
            self.changed = True
            return self.tree(expected, saved[LEVEL], path, owner)
        if expected is None and not in_state:  # what Flax does: there is nothing to compare it with
            self.changed = True  # from Orbax, Flax would leave it out
            return saved
        if expected is None:
            self._over(saved, path, owner)
            return None
        if not array_like(expected) and not in_state:
            return saved
        description = f"a level with {brief(sorted(saved))}"
        self.wrong.append(
            (path, f"{kind(expected)} (is it in a box of its own class?)", description)
        )
        return expected

    def leaf(self, expected: PyTree, saved: PyTree, path: Names, owner: Owner) -> Leaf:
        """Fits a leaf."""
        in_state = owner != "program"
        if expected is None:
            if in_state and saved is not None:
                self._over(saved, path, owner)
                return None
            self.changed |= saved is not None
            return saved
        if saved is None:
            return self.lacking(expected, path)
        if is_key(expected):
            return self._key(expected, saved, path)
        if not array_like(expected):
            if not in_state or isinstance(expected, str | bytes) == isinstance(saved, str | bytes):
                return saved
        elif array_like(saved):
            if np.shape(expected) == np.shape(saved):
                return self._cast(expected, saved, path, owner)
            if not in_state and _grows(expected, saved):
                self.changed = True
                both_float = is_floating(dtype_of(expected)) and is_floating(dtype_of(saved))
                return saved if both_float else self._cast(expected, saved, path, owner)
        self.wrong.append((path, kind(expected), kind(saved)))
        if array_like(expected) and array_like(saved):
            self.replicated += _is_copied(expected, saved)
            self.beside += not in_state
        elif self.remedy == SAME_MAKE and not in_state:
            self.remedy = _OTHER_KIND
        return expected

    def _cast(self, expected: Leaf, saved: Leaf, path: Names, owner: Owner) -> Leaf:
        """A leaf of the template's shape, in the template's type."""
        if not hasattr(expected, "dtype"):  # a number of Python
            kinds = dtype_of(expected).kind, dtype_of(saved).kind
            if ("b" in kinds or "c" in kinds) and kinds[0] != kinds[1]:
                self.wrong.append((path, kind(expected), kind(saved)))
            return saved
        dtype, saved_dtype = np.dtype(expected.dtype), dtype_of(saved)
        if owner == "params":
            self.params.append((path, dtype, saved_dtype))
        if dtype == saved_dtype:
            if owner == "opt_state" and path[-1] in COUNTS:
                self.check_step(saved, path)
            return self.check_numbers(expected, saved, path, owner)
        both_float = is_floating(dtype) and is_floating(saved_dtype)
        if owner == "params" and both_float:
            return self.check_numbers(expected, saved, path, owner)
        if owner == "opt_state" and {dtype, saved_dtype} <= self.lifted:
            self.converted.append((path, str(dtype), str(saved_dtype)))
            return self.check_numbers(expected, saved, path, owner)
        if owner == "opt_state" and both_float:
            self.wrong.append((path, f"{dtype}, which the new state keeps", str(saved_dtype)))
            self.remedy = OTHER_STATE_TYPE
            return expected
        is_number = not hasattr(saved, "dtype")
        if both_float or (dtype.kind in "iu" and saved_dtype.kind in "iu" and not _is_bool(saved)):
            array = np.asarray(saved)
            with np.errstate(all="ignore"):
                new = array.astype(dtype)
                keeps = bool(np.all((new.astype(saved_dtype) == array) | (array != array)))
            if keeps or (both_float and is_number):
                self.changed = True
                if both_float and not is_number:
                    self.converted.append((path, str(saved_dtype), str(dtype)))
                elif owner == "opt_state" and path[-1] in COUNTS:
                    self.check_step(new, path)
                return new
        if owner == "params":
            self.params.pop()
        self.wrong.append((path, kind(expected), kind(saved)))
        self.remedy = _other_type(saved_dtype) if self.remedy == SAME_MAKE else self.remedy
        return expected

    def note_ranges(self, opt_state: OptState, path: Names) -> None:
        """Notes which leaves of a state at a path are fields that cannot be negative."""
        for slot in slots(unboxed(opt_state), None):
            if slot.within != FINITE:
                at = (*path, *slot.path)
                self.ranges |= {at: slot.within, (*at, LEVEL): slot.within}

    def check_numbers(self, expected: Leaf, saved: Leaf, path: Names, owner: Owner) -> Leaf:
        """Notes a parameter or a moment that is not finite, or not what it may be; gives it."""
        if owner in ("params", "opt_state") and not self.allow_nan:
            within = self.ranges.get(path, FINITE)
            fault = fault_in(saved, within)
            if fault and (not is_array(expected) or not fault_in(expected, within)):
                self.wrong.append((path, EXPECTED[fault], fault))
                self.remedy = _NEGATIVE if fault == "negative numbers" else _NOT_FINITE
        return saved

    def check_parts(self, tree: PyTree, path: Names, owner: Owner) -> None:
        """Checks the numbers of a tree that is fitted to no template."""
        for names, leaf in leaves(tree):
            if is_array(leaf):
                self.check_numbers(None, leaf, (*path, *names), owner)

    def check_step(self, step: PyTree, path: Names) -> bool:
        """Returns True if this may be a number of steps; notes the leaf if not."""
        if isinstance(step, jax.ShapeDtypeStruct | Tracer) or not array_like(step):
            return True
        if isinstance(step, jax.Array) and not step.is_fully_addressable:
            return True
        array = np.asarray(step)
        if array.size > 0 and not is_number_of_steps(array):
            self.wrong.append((path, STEPS, brief(array.tolist())))
            self.remedy = _NO_STEPS
            return False
        return True

    def _key(self, expected: PyTree, saved: PyTree, path: Names) -> Leaf:
        bits = jax.eval_shape(jax.random.key_data, expected)
        if np.shape(saved) != bits.shape or np.dtype(getattr(saved, "dtype", object)) != bits.dtype:
            self.wrong.append((path, f"the bits of {kind(expected)}, {kind(bits)}", kind(saved)))
            return expected
        return jax.random.wrap_key_data(jnp.asarray(saved), impl=jax.random.key_impl(expected))

    def lacking(self, expected: PyTree, path: Names) -> PyTree:
        """Notes that the checkpoint lacks a part; gives the template's own."""
        if is_state(expected):
            self.missing.append(path)
            return {name: plain_outline(value) for name, value in outline_of(expected).items()}
        self.missing += paths_of(expected, path)
        return expected

    def _over(self, saved: PyTree, path: Names, owner: Owner) -> None:
        (self.unused if owner == "program" else self.surplus).extend(paths_of(saved, path))


def _is_lifted(expected: np.dtype, actual: np.dtype) -> bool:
    """True if a step, with a rate in float32 say, made a parameter in half precision float32."""
    is_half = is_floating(expected) and expected.itemsize == 2
    return expected == actual or (is_half and actual == np.float32)


def _other_type(dtype: np.dtype) -> str:
    return (
        "Make the template's array of that type, params = jax.tree.map(lambda x: "
        f"x.astype(jnp.{dtype}), params) say, or convert the checkpoint's."
    )


def _is_bool(leaf: Leaf) -> bool:
    return dtype_of(leaf) == np.bool_


def _with_dtype(leaf: Leaf, like: Leaf) -> Leaf:
    """A template's leaf in another type."""
    if leaf.dtype == like.dtype:
        return leaf
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    return jax.ShapeDtypeStruct(leaf.shape, like.dtype) if is_shape else leaf.astype(like.dtype)


def _grows(expected: Leaf, saved: Leaf) -> bool:
    """True if the template's array is empty and the checkpoint's is not, as a history's may be."""
    one, other = np.shape(expected), np.shape(saved)
    return (
        0 in one
        and len(one) == len(other)
        and all(n in (0, m) for n, m in zip(one, other, strict=True))
    )


def _is_copied(expected: Leaf, saved: Leaf) -> bool:
    """True if one of them has one more axis, in front, than the other."""
    one, other = np.shape(expected), np.shape(saved)
    return (one[1:] == other and len(one) > len(other)) or (
        other[1:] == one and len(other) > len(one)
    )


def _of_named_tuple(saved: Mapping[str, PyTree]) -> Mapping[str, PyTree]:
    fields, values = saved["fields"], saved["values"]
    fits = isinstance(fields, Mapping) and isinstance(values, Mapping)
    if not fits or fields.keys() != values.keys():
        return saved
    return {str(fields[number]): values[number] for number in fields}
