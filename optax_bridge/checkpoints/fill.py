"""Fits legacy optimizers to templates: parameters, moments and step become a `TrainState`'s."""

from collections.abc import Iterable, Mapping, Sequence

import jax
import numpy as np

import legacy_optim
from optax_bridge._text import brief
from optax_bridge.checkpoints.definitions import groups_of
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.fit import BELOW_PARAMS, LAYOUT, LEVEL, OWNERS, Fit, Owner
from optax_bridge.checkpoints.layout import entries_around, match_fields
from optax_bridge.checkpoints.locate import (
    Part,
    legacy_states,
    optimizers,
    refuse_older,
    rows,
)
from optax_bridge.checkpoints.trees import (
    dtype_of,
    fields_of,
    is_array,
    is_state,
    kind,
    outline_of,
    plain,
    refill,
    state_dict,
    state_dict_of,
)
from optax_bridge.checkpoints.values import one_copy
from optax_bridge.correspondence import choose_recipe
from optax_bridge.correspondence.claim import HALF_PRECISION
from optax_bridge.metadata.axis_metadata import leaves_with_path, unboxed
from optax_bridge.metadata.paths import Names, key_names, leaves
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.states import UNCERTAIN_SIGN, Kind, Slot, fill, optax_entries, unused_rows

_TAKE_OUT = "The state has no field of that name: what the program put in, {}, it takes out first."
_OF_THE_OPTIMIZER = {"step", "params", "opt_state"}
OTHER_OPTIMIZER = (
    "The state is that of another optimizer, or of one with other settings: give the one that the "
    "checkpoint was written with, or restore into the transformation that corresponds to it."
)
_NOT_OPTAX = (
    "Restore into the exact transformation (optax_bridge's own, from_legacy(definition), `migrate "
    "--recipe exact`); or go on otherwise, from what `convert --recipe optax` makes."
)
_BY_AXIS = (
    "Other settings decide which axes are reduced (min_dim_size_to_factor, factored). Where the "
    "axes' names did, as in T5X, say so in Python: TrainState.from_legacy_checkpoint(path, "
    'optimizer_def=optax_bridge.adafactor(..., path_rules={"regex": ("batch", "row", "column")})).'
)


class LegacyFit(Fit):
    """A fit that takes legacy optimizers over, and copies for devices off and on."""

    def __init__(
        self,
        place: Place,
        outline: PyTree = None,
        saved: PyTree = None,
        *,
        keep: bool = False,
        allow_nan: bool = False,
        by_hand: bool = False,
    ):
        super().__init__(place, keep=keep, allow_nan=allow_nan)
        self.by_hand, self.is_by_definition = by_hand, False
        self.home: Names = ()  # of the state that is filled, in what is restored
        self.saved_copies, self.copies = _copies(outline, saved) or (None, None)

    def follow(self, name: str) -> None:
        """Lets messages name the optimizer that was given, or read from the state."""
        self.is_by_definition, self.if_missing = True, ""
        self.requirement, self.remedy = f"the state of {name}", OTHER_OPTIMIZER

    def state(self, template: PyTree, saved: PyTree, path: Names) -> PyTree:
        """Fits a `TrainState`, from a legacy optimizer if the checkpoint has one in its place."""
        if legacy_states(saved) is None and not _has_own_state(template, saved):
            return self._within(template, saved, path)
        fitted = self._optimizer(template, saved, path, path)
        return fitted | self._fields(outline_of(template), {}, path)

    def _optimizer(
        self, template: PyTree, saved: PyTree, path: Names, home: Names
    ) -> dict[str, PyTree]:
        """Step, parameters and state from a legacy optimizer."""
        self.set_home(path, home)
        is_own = _has_own_state(template, saved)
        states: PyTree = [saved["state"]] if is_own else legacy_states(saved)
        self.changed = True
        for state in states:
            refuse_older(state.get("param_states"), path, self.place)
        for name in saved.keys() - {"target", "state"}:
            self._over(saved[name], (*path, name), "state" if path else "program")
        for state in states if not is_own else ():
            others = (n for n in state if n not in ("step", "param_states"))
            self.surplus += [(*path, "state", n) for n in others]
        step = self._step(template.step, states, path)
        params = self.parameters(template, saved["target"], (*path, "target"))
        self._check_complete(path)
        new_params = refill(template.params, params)
        opt_state = self.opt_state(template, new_params, saved, step, path)
        plain_state = plain(state_dict(opt_state))
        return {"step": step, "params": params, "opt_state": plain_state}

    def set_home(self, path: Names, home: Names) -> None:
        """Says where an optimizer of the checkpoint goes, for the plan."""
        self.home = home
        self.homes[*path, "target"] = (*home, "params")
        self.homes[*path, "state"] = (*home, "opt_state")
        self.homes[*path, "state", "step"] = (*home, "step")

    def _within(self, template: PyTree, saved: PyTree, path: Names) -> PyTree:
        """Fits a `TrainState` to a whole legacy checkpoint, optimizer and the rest."""
        is_new = isinstance(saved, Mapping) and {"params", "opt_state"} <= set(saved)
        parts = [] if is_new else list(optimizers(saved))
        if len(parts) != 1:
            if is_new and self.by_hand and not path:
                others = saved.keys() - {*fields_of(template), LAYOUT}
                self.remedy = _TAKE_OUT.format(brief(sorted(others))) if others else self.remedy
            return super().state(template, saved, path)
        (optimizer_path,) = parts
        optimizer = saved
        for name in optimizer_path:
            optimizer = optimizer[name]
        fitted = self._optimizer(template, optimizer, (*path, *optimizer_path), path)
        outline = outline_of(template)
        names = {n for n, value in outline.items() if any(v is not None for _, v in leaves(value))}
        step = int(np.ravel(np.asarray(fitted["step"]))[0])
        target = optimizer["target"]
        values, unused = match_fields(
            names - _OF_THE_OPTIMIZER, entries_around(saved, optimizer_path), target, step
        )
        keys = outline.get("rngs")
        if len(values.get("rngs", ())) == 1 and isinstance(keys, Mapping) and len(keys) == 1:
            values["rngs"] = dict(zip(keys, values["rngs"].values(), strict=True))
        self.unused += [(*path, *names) for names in unused]
        return fitted | self._fields(outline, values, path)

    def _fields(
        self, outline: Mapping[str, PyTree], values: Mapping[str, PyTree], path: Names
    ) -> PyTree:
        """The fields other than the optimizer's, as far as the checkpoint has them."""
        return {
            name: self.tree(value, values[name], (*path, name), OWNERS.get(name, "state"))
            if name in values
            else self.lacking(value, (*path, name))
            for name, value in outline.items()
            if name not in _OF_THE_OPTIMIZER
        }

    def _step(self, expected: PyTree, states: Sequence[Mapping[str, PyTree]], path: Names) -> Leaf:
        steps = [np.asarray(state["step"]) for state in states]
        step_path = (*path, "state", "step")
        if steps[0].dtype.kind not in "iu" or any(not np.array_equal(s, steps[0]) for s in steps):
            self.wrong.append(
                (step_path, "one number of steps", brief([s.tolist() for s in steps]))
            )
            return expected
        if not self.check_step(steps[0], step_path):
            return expected
        self.record(steps[0], steps[0], step_path)
        return self.leaf(expected, steps[0], step_path, "state")

    def _check_complete(self, path: Names) -> None:
        """Stops where the parameters are others: their states would all be named as well."""
        target_path = (*path, "target")
        missing, surplus = ([], []) if self.keep else (self.missing, self.surplus)
        problems = [*missing, *surplus, *(p for p, *_ in self.wrong)]
        if any(p[: len(target_path)] == target_path for p in problems):
            below = {(*target_path, "params", *p[len(target_path) :]) for p in missing}
            if missing and below == set(surplus):
                self.remedy = BELOW_PARAMS
            raise self.plan().error(keep=self.keep)

    def opt_state(
        self, template: PyTree, params: Params, saved: PyTree, step: Leaf, path: Names
    ) -> OptState:
        """The state of the template's transformation, from a legacy optimizer's."""
        if _has_own_state(template, saved):
            return self._own_state(template, params, saved["state"], (*path, "state"))
        states: PyTree = legacy_states(saved)
        old = self.opt_state_template(template, params)
        self._check_recipe(old, params, (*path, "opt_state"))
        part, groups = Part(path, saved["target"], states[0]["param_states"], 0), []
        if saved["state"] is not states[0]:
            part = Part(path, saved["target"], [state["param_states"] for state in states], 0)
            groups = self._groups(template, old, len(states), path)
        fields = ((names, row) for names, _, row in rows(part, self.place, groups))
        return self.fill_state(old, template.params, fields, step, path)

    def _groups(
        self, template: PyTree, opt_state: OptState, count: int, path: Names
    ) -> list[list[Names]]:
        """The leaves that each group of the template's transformation holds."""
        parts = groups_of(template.tx, opt_state, template.params)
        if len(parts) != count:
            raise CheckpointError(
                self.place_of((*path, "state")), "the groups of an optax_bridge.multi_optimizer",
                f"{count} groups",
                "A list of states, as flax had it up to 0.3.2, does not say which leaves are in "
                "which: convert it by `optax-bridge convert --optimizer`.",
            )  # fmt: skip
        return [sorted(key_names(p) for p, _ in leaves_with_path(each)) for *_, each in parts]

    def _check_recipe(self, template: OptState, params: Params, path: Names) -> None:
        """Notes where public Optax does not go on as the legacy optimizer in half precision."""
        names = {str(dtype_of(leaf)) for leaf in jax.tree.leaves(params)}
        dtypes = names & set(HALF_PRECISION)
        choices = [
            choose_recipe(entry.legacy(learning_rate=0.1), "auto", dtypes)
            for entry in (optax_entries(template) if dtypes else ())
        ]
        if choices and all(choice.kind == "exact" for choice in choices):
            actual = f"that of public Optax ({choices[0].reason})"
            self.wrong.append((path, "the state of an exact transformation", actual))
            self.remedy = _NOT_OPTAX

    def fill_state(
        self,
        template: OptState,
        params: Params,
        fields: Iterable[tuple[Names, PyTree]],
        step: Leaf,
        path: Names,
    ) -> OptState:
        """The state of a transformation from the fields that a legacy optimizer keeps."""
        values, places = self._rows(params, fields, path)
        used: set[Names] = set()

        def take(slot: Slot, value: Leaf) -> Leaf:
            names = (*path, "opt_state", *slot.path)
            if slot.kind is Kind.UNCERTAIN_SIGN:
                self.wrong.append((names, *UNCERTAIN_SIGN))
            elif slot.kind is not Kind.FIELD:
                in_file = (*path, "state", "param_states", *slot.row)
                self.missing.append(in_file if self.is_by_definition and slot.row else names)
                self.remedy = OTHER_OPTIMIZER if slot.row else self.remedy
            else:
                at = places[slot.row]
                if slot.row in used:
                    self.wrong.append((at, "one place in the new state", "several"))
                used.add(slot.row)
                self.ranges[at] = slot.within
                moment = self._moment(slot.leaf, value, at)
                target = (*self.home, "opt_state", *slot.path)
                self.record(value, moment, at, target, negate=slot.sign == -1)
                return slot.apply_sign(moment)
            return slot.leaf

        new = fill(template, values, step, take)
        for row in unused_rows(values, used):
            self.surplus.append(places[row])
            self.remedy = OTHER_OPTIMIZER
        return new

    def _moment(self, expected: Leaf, saved: Leaf, path: Names) -> Leaf:
        """A field of a parameter's state, as the template has it."""
        new = self.fit_copies(saved, expected, path)
        if new is None:
            self.wrong.append((path, kind(expected), kind(saved)))
            self.remedy = _BY_AXIS if path[-1] in ("v_row", "v_col", "v") else OTHER_OPTIMIZER
            return expected
        return self._cast(expected, new, path, "opt_state")

    def _own_state(self, template: PyTree, params: Params, saved: PyTree, path: Names) -> OptState:
        """The state that a definition of the user's own makes, field by field."""
        old = self.opt_state_template(template, params)
        return refill(old, self.tree(state_dict_of(old), saved, path, "opt_state"))

    def _rows(
        self, params: Params, fields: Iterable[tuple[Names, PyTree]], path: Names
    ) -> tuple[dict[Names, PyTree], dict[Names, Names]]:
        """The rows of the checkpoint by the paths of the template's parameters."""
        params = unboxed(params)
        flat = leaves_with_path(params)
        numbers = jax.tree.structure(params).unflatten(range(len(flat)))
        template_names = {
            at: key_names(flat[index][0]) for at, index in leaves(plain(state_dict(numbers)))
        }
        values: dict[Names, PyTree] = {}
        places: dict[Names, Names] = {}
        for names, row in fields:
            is_boxed = names not in template_names and names[-1:] == (LEVEL,)
            parameter = template_names.get(names[:-1] if is_boxed else names)
            if parameter is None:
                continue  # of a parameter that the template lacks; reported
            for field, leaf in leaves(row):
                values[(*parameter, *field)] = leaf
                places[(*parameter, *field)] = (*path, "state", "param_states", *names, *field)
        return values, places

    def leaf(self, expected: PyTree, saved: PyTree, path: Names, owner: Owner) -> Leaf:
        """Fits a leaf, whichever of both have copies for devices."""
        if self.saved_copies != self.copies and hasattr(saved, "shape") and expected is not None:
            new = self.fit_copies(saved, expected, path)
            saved = saved if new is None else new
        return super().leaf(expected, saved, path, owner)

    def fit_copies(self, array: PyTree, expected: PyTree, path: Names) -> Leaf:
        """An array of the checkpoint in the shape of the target's; None if it has another."""
        shape = np.shape(expected)
        array = array if hasattr(array, "shape") else np.asarray(array)
        if array.shape == shape:
            return array
        shape_of_one = shape if self.copies is None else shape[1:]
        if self.saved_copies is not None and array.shape == (self.saved_copies, *shape_of_one):
            one = one_copy(array)
            if one is None:
                self.wrong.append(
                    (path, "the same on every device, as it was replicated", "others")
                )
                return np.broadcast_to(np.asarray(array)[0], shape)
            array = one
        if array.shape != shape_of_one or (self.copies is not None and shape[:1] != (self.copies,)):
            return None
        self.changed = True
        return array if self.copies is None else np.broadcast_to(np.asarray(array), shape)


def _has_own_state(template: PyTree, saved: PyTree) -> bool:
    """True if a legacy optimizer's state is of the template's class, one that a user wrote."""
    state = saved.get("state") if isinstance(saved, Mapping) and "target" in saved else None
    is_plain = isinstance(template.opt_state, legacy_optim.OptimizerState)
    if is_plain or not isinstance(state, Mapping) or "step" not in state:
        return False
    outline = state_dict_of(template.opt_state)
    return isinstance(outline, Mapping) and set(outline) == set(state)


def _copies(expected: PyTree, saved: PyTree) -> tuple[int | None, int | None] | None:
    """The leading axes of the first state's step in checkpoint and template."""
    if is_state(expected):
        states = [saved["state"]] if _has_own_state(expected, saved) else legacy_states(saved)
        step: Leaf = saved.get("step") if isinstance(saved, Mapping) else None
        step = states[0]["step"] if states else step
        return _leading(step, saved), _leading(expected.step, state_dict_of(expected.params))
    if isinstance(expected, Mapping) and isinstance(saved, Mapping):
        for name, value in expected.items():
            sizes = _copies(value, saved.get(name))
            if sizes is not None:
                return sizes
    return None


def _leading(step: Leaf, tree: PyTree) -> int | None:
    """The size of the leading axis, if a tree was replicated: all its arrays have the same."""
    copies = step.shape[0] if getattr(step, "ndim", 0) == 1 else None
    arrays = [leaf for _, leaf in leaves(tree) if is_array(leaf)]
    return copies if all(leaf.shape[:1] == (copies,) for leaf in arrays) else None
