"""The planner from a legacy optimizer to a `TrainState`: parameters, moments and step."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import jax
import numpy as np

import legacy_optim
from optax_bridge.checkpoints.definitions import groups_of
from optax_bridge.checkpoints.errors import Place
from optax_bridge.checkpoints.inference import other_classes
from optax_bridge.checkpoints.layout import entries_around, match_fields, without_copies
from optax_bridge.checkpoints.locate import (
    Part,
    at_path,
    legacy_states,
    optimizers,
    part_of,
    with_groups,
)
from optax_bridge.checkpoints.moves import Item, Misfit, Move, Plan, Side, Unpaired
from optax_bridge.checkpoints.same_names import (
    LEVEL,
    Paths,
    Scope,
    dtype_item,
    field_items,
    same_names,
    state_items,
    surplus_items,
)
from optax_bridge.checkpoints.trees import (
    is_array,
    is_state,
    outline_of,
    paths_in_state_dict,
    state_dict_of,
)
from optax_bridge.correspondence import choose_recipe
from optax_bridge.correspondence.claim import HALF_PRECISION
from optax_bridge.metadata.axis_metadata import leaves_with_path, unboxed
from optax_bridge.metadata.paths import Names, key_names, leaves
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.states import UNCERTAIN_SIGN, Kind, count_like, optax_entries, slots, unused_rows

OF_THE_OPTIMIZER = {"step", "params", "opt_state"}
OTHER_OPTIMIZER = (
    "The state belongs to another optimizer, or to one with other settings: give the one that "
    "wrote the checkpoint, or restore into the transformation that corresponds to it."
)
_NOT_OPTAX = (
    "Restore into the exact transformation (optax_bridge's own, from_legacy(definition), `migrate "
    "--recipe exact`), or convert with --recipe optax and accept another trajectory."
)
_BY_AXIS = (
    "Other settings chose the axes to reduce (min_dim_size_to_factor, factored). If the axes' "
    "names chose them, as in T5X, say so in Python: TrainState.from_legacy_checkpoint(path, "
    'optimizer_def=optax_bridge.adafactor(..., path_rules={"regex": ("batch", "row", "column")})).'
)


def plan_like(outline: PyTree, saved: PyTree, place: Place, *, keep: bool = False) -> Plan:
    """The plan from a checkpoint, of `flax.optim` or of today, to a template's state dict."""
    copies = _copies(outline, saved)
    scope = Scope(place, "program", keep, copies=copies, state=_state_items)
    return Plan(place, tuple(same_names(outline, saved, Paths(), scope)))


def plan_of_part(part: Part, template: PyTree, name: str) -> Plan:
    """The plan from an optimizer to the state that a transformation of some name makes."""
    paths, scope = Paths(part.path), Scope(part.place)
    items = _optimizer_items(template, part, paths, scope, by_definition=True)
    return Plan(
        part.place, tuple(items), OTHER_OPTIMIZER, f"the state of {name}", if_missing="",
        source=other_classes(part, name),
    )  # fmt: skip


def _state_items(template: PyTree, saved: PyTree, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the items of a `TrainState`, from a legacy optimizer in its place or within that."""
    is_own = _has_own_state(template, saved)
    places = [()] if is_own else [*optimizers(saved)]
    if len(places) != 1 or (places[0] and {"params", "opt_state"} <= set(saved)):
        yield from state_items(template, saved, paths, scope)
        return
    scope, (within,) = replace(scope, owner="state"), places
    optimizer, path = at_path(saved, within), (*paths.source, *within)
    beside = scope if path else replace(scope, owner="program")
    for name in optimizer.keys() - {"target", "state"}:
        yield from surplus_items(optimizer[name], Paths((*path, name)), beside)
    if is_own:  # of a definition of the user's own, field by field
        state = optimizer["state"]
        values = {"params": optimizer["target"], "step": state["step"], "opt_state": state}
        yield from field_items(template, values, paths, scope, _places(path))
        return
    part = part_of(optimizer, path, scope.place, keeps_copies=np.ndim(template.step) == 1)
    in_state = (at for at in part.surplus if at[len(path)] == "state")
    yield from (Unpaired(at, Side.SURPLUS) for at in in_state)
    values = dict[str, PyTree]()
    if within:
        outline, entries = outline_of(template), entries_around(saved, within)
        entries = {at: without_copies(value, part.copies) for at, value in entries.items()}
        values, unused = _fields_around(outline, entries, part.target, part.step)
        yield from (Unpaired((*paths.source, *names), Side.UNUSED) for names in unused)
    yield from _optimizer_items(template, part, paths, scope, values)


def _places(path: Names) -> dict[str, Names]:
    """The places of a state's fields in a legacy optimizer at a path."""
    state = (*path, "state")
    return {"params": (*path, "target"), "step": (*state, "step"), "opt_state": state}


def _fields_around(
    outline: Mapping[str, PyTree], entries: Mapping[Names, PyTree], params: Params, step: int
) -> tuple[dict[str, PyTree], list[Names]]:
    """The fields that a checkpoint has around its optimizer, and the leaves left over there."""
    names = {name for name, value in outline.items() if jax.tree.leaves(value)}
    values, unused = match_fields(names - OF_THE_OPTIMIZER, entries, params, step)
    keys = outline.get("rngs")
    if len(values.get("rngs", ())) == 1 and isinstance(keys, Mapping) and len(keys) == 1:
        values["rngs"] = dict(zip(keys, values["rngs"].values(), strict=True))
    return values, unused


def _optimizer_items(
    template: PyTree,
    part: Part,
    paths: Paths,
    scope: Scope,
    values: Mapping[str, PyTree] | None = None,
    *,
    by_definition: bool = False,
) -> Iterator[Item]:
    """Yields the items of a `TrainState` from a legacy optimizer, and from values of its fields."""

    def moments(scope: Scope) -> Iterator[Item]:
        if not by_definition:
            yield from _recipe_items(template.opt_state, part)
        of_groups = (template.tx, template.opt_state, template.params)
        groups = [params for *_, params in groups_of(*of_groups)] if part.is_grouped else []
        whole = with_groups(part, groups or [template.params])
        home = Paths(part.path, (*paths.target, "opt_state"))
        yield from _moment_items(template, whole, home, scope, by_definition)

    fields = {**(values or {}), "params": part.target, "step": part.steps}
    yield from field_items(template, fields, paths, scope, _places(part.path), moments)


def _recipe_items(template: OptState, part: Part) -> Iterator[Item]:
    """Yields a misfit where public Optax does not go on as the optimizer in half precision."""
    dtypes = part.dtypes & set(HALF_PRECISION)
    choices = [
        choose_recipe(entry.legacy(learning_rate=0.1), "auto", dtypes)
        for entry in (optax_entries(template) if dtypes else ())
    ]
    if choices and all(choice.kind == "exact" for choice in choices):
        actual = f"the state of public Optax ({choices[0].reason})"
        at = (*part.path, "opt_state")
        yield Misfit(at, "the state of an exact transformation", actual, _NOT_OPTAX)


def _moment_items(
    template: PyTree, part: Part, paths: Paths, scope: Scope, by_definition: bool
) -> Iterator[Item]:
    """Yields the items of a transformation's state from the fields of a legacy optimizer."""
    path, opt_state = paths.source, template.opt_state
    values, places = _rows(template.params, part)
    used: set[Names] = set()
    targets = paths_in_state_dict(opt_state)
    for slot, names in zip(slots(unboxed(opt_state), values), targets, strict=True):
        target, at = (*paths.target, *names), (*path, "opt_state", *slot.path)
        if slot.kind is Kind.COUNT:
            is_one_each = part.steps.shape == np.shape(slot.leaf)
            count = count_like(part.steps if is_one_each else part.step, slot.leaf)
            yield Move((*path, "state", "step"), target, leaf=count)
        elif slot.kind is Kind.UNCERTAIN_SIGN:
            yield Misfit(at, *UNCERTAIN_SIGN)
        elif slot.kind is Kind.FIELD:
            at, value = places[slot.row], values[slot.row]
            if slot.row in used:
                yield Misfit(at, "one place in the new state", "several")
            used.add(slot.row)
            if np.shape(value) != np.shape(slot.leaf):
                remedy = _BY_AXIS if at[-1] in ("v_row", "v_col", "v") else OTHER_OPTIMIZER
                yield Misfit(at, remedy=remedy, template=slot.leaf, leaf=value)
                continue
            field_scope = replace(scope, ranges={target: slot.within})
            item = dtype_item(slot.leaf, value, Paths(at, target), field_scope)
            yield replace(item, negate=slot.sign == -1) if isinstance(item, Move) else item
        elif slot.kind is Kind.UNKNOWN:
            in_file = (*path, "state", "param_states", *slot.row)
            missing = in_file if by_definition and slot.row else at
            yield Unpaired(missing, Side.MISSING, OTHER_OPTIMIZER if slot.row else "")
    unused = unused_rows(values, used)
    yield from (Unpaired(places[row], Side.SURPLUS, OTHER_OPTIMIZER) for row in unused)


def _rows(params: Params, part: Part) -> tuple[dict[Names, PyTree], dict[Names, Names]]:
    """The rows of the checkpoint by the paths of the template's parameters, and their places."""
    params = unboxed(params)
    names_in_jax = (key_names(path) for path, _ in leaves_with_path(params))
    template_names = dict(zip(paths_in_state_dict(params), names_in_jax, strict=True))
    values: dict[Names, PyTree] = {}
    places: dict[Names, Names] = {}
    for names, _, row in part.rows:
        is_boxed = names not in template_names and names[-1:] == (LEVEL,)
        parameter = template_names.get(names[:-1] if is_boxed else names)
        if parameter is None:
            continue  # of a parameter that the template lacks; reported
        for field, leaf in leaves(row):
            values[(*parameter, *field)] = leaf
            places[(*parameter, *field)] = (*part.path, "state", "param_states", *names, *field)
    return values, places


def _has_own_state(template: PyTree, saved: PyTree) -> bool:
    """True if a legacy optimizer's state is of the template's class, one that a user wrote."""
    state = saved.get("state") if isinstance(saved, Mapping) and "target" in saved else None
    is_plain = isinstance(template.opt_state, legacy_optim.OptimizerState)
    if is_plain or not isinstance(state, Mapping) or "step" not in state:
        return False
    outline = state_dict_of(template.opt_state)
    return isinstance(outline, Mapping) and set(outline) == set(state)


def _copies(expected: PyTree, saved: PyTree) -> int | None:
    """How often a checkpoint was replicated, by its first state's step, if the template is not."""
    if is_state(expected):
        states = [saved["state"]] if _has_own_state(expected, saved) else legacy_states(saved)
        step: Leaf = saved.get("step") if isinstance(saved, Mapping) else None
        step = states[0]["step"] if states else step
        copies = step.shape[0] if getattr(step, "ndim", 0) == 1 else None
        arrays = [leaf for _, leaf in leaves(saved) if is_array(leaf)]
        is_replicated = all(leaf.shape[:1] == (copies,) for leaf in arrays)
        return copies if is_replicated and np.ndim(expected.step) == 0 else None
    if isinstance(expected, Mapping) and isinstance(saved, Mapping):
        sizes = (_copies(value, saved.get(name)) for name, value in expected.items())
        return next((size for size in sizes if size is not None), None)
    return None
