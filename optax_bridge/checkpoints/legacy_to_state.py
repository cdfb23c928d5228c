"""The planner from a legacy optimizer to a `TrainState`: parameters, moments and step."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace

import jax
import numpy as np

import legacy_optim
from optax_bridge._text import brief
from optax_bridge.checkpoints.definitions import groups_of
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.inference import other_classes
from optax_bridge.checkpoints.layout import LAYOUT, entries_around, match_fields
from optax_bridge.checkpoints.locate import (
    Part,
    Row,
    at_path,
    legacy_states,
    optimizers,
    refuse_older,
    with_groups,
)
from optax_bridge.checkpoints.moves import Item, Misfit, Move, Plan, Side, Unpaired
from optax_bridge.checkpoints.same_names import (
    LEVEL,
    OWNERS,
    Paths,
    Scope,
    dtype_items,
    leaf_items,
    may_count_steps,
    missing_items,
    same_names,
    steps_misfit,
    surplus_items,
    trained_items,
    with_copies,
)
from optax_bridge.checkpoints.state_items import parameter_types, state_items
from optax_bridge.checkpoints.trees import (
    SAME_MAKE,
    dtype_of,
    fields_of,
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
from optax_bridge.states import (
    UNCERTAIN_SIGN,
    Kind,
    count_like,
    optax_entries,
    slots,
    unused_rows,
)

OF_THE_OPTIMIZER = {"step", "params", "opt_state"}
OTHER_OPTIMIZER = (
    "The state is that of another optimizer, or of one with other settings: give the one that the "
    "checkpoint was written with, or restore into the transformation that corresponds to it."
)
_BELOW_PARAMS = (
    "The checkpoint has them below 'params', as models before Linen did, and Linen's variables: "
    "make the state of {'params': params}, and give the model state.params as it is."
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


def plan_like(
    outline: PyTree, saved: PyTree, place: Place, *, keep: bool = False, remedy: str = SAME_MAKE
) -> Plan:
    """The plan from a checkpoint, of `flax.optim` or of today, to a template's state dict."""
    copies = _copies(outline, saved) or (None, None)
    scope = Scope(place, "program", keep, remedy, copies=copies, state=_state_items)
    return Plan(place, tuple(same_names(outline, saved, Paths(), scope)), remedy)


def surplus_fields(state: PyTree, saved: PyTree) -> list[str]:
    """The names beside a state's fields that a state dict of today has."""
    return sorted(saved.keys() - {*fields_of(state), LAYOUT}) if _is_new(saved) else []


def _is_new(saved: PyTree) -> bool:
    return isinstance(saved, Mapping) and {"params", "opt_state"} <= set(saved)


def _state_items(template: PyTree, saved: PyTree, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the items of a `TrainState`, from a legacy optimizer in its place or within that."""
    places = [()] if _has_own_state(template, saved) else [*optimizers(saved)]
    if len(places) != 1 or (places[0] and _is_new(saved)):
        yield from state_items(template, saved, paths, scope)
        return
    (within,) = places
    optimizer, scope = at_path(saved, within), replace(scope, owner="state")
    optimizer_paths = replace(paths, source=(*paths.source, *within))
    step = yield from _optimizer_items(template, optimizer, optimizer_paths, scope)
    if step is None:
        return
    outline, values = outline_of(template), dict[str, PyTree]()
    if within:
        entries = entries_around(saved, within)
        values, unused = _fields_around(outline, entries, optimizer["target"], step)
        yield from (Unpaired((*paths.source, *names), Side.UNUSED) for names in unused)
    for name, value in outline.items():
        field_scope = replace(scope, owner=OWNERS.get(name, "state"))
        if name in values:
            yield from same_names(value, values[name], paths / name, field_scope)
        elif name not in OF_THE_OPTIMIZER:
            yield from missing_items(value, paths / name)


def _fields_around(
    outline: Mapping[str, PyTree], entries: Mapping[Names, PyTree], params: Params, step: int
) -> tuple[dict[str, PyTree], list[Names]]:
    """The fields that a checkpoint has around its optimizer, and what is left over there."""
    names = {name for name, value in outline.items() if jax.tree.leaves(value)}
    values, unused = match_fields(names - OF_THE_OPTIMIZER, entries, params, step)
    keys = outline.get("rngs")
    if len(values.get("rngs", ())) == 1 and isinstance(keys, Mapping) and len(keys) == 1:
        values["rngs"] = dict(zip(keys, values["rngs"].values(), strict=True))
    return values, unused


def _optimizer_items(
    template: PyTree, saved: PyTree, paths: Paths, scope: Scope
) -> Generator[Item, None, int | None]:
    """Yields the items of a legacy optimizer; returns its step, None if its parameters differ."""
    path, home = paths.source, paths.target
    is_own = _has_own_state(template, saved)
    states: PyTree = [saved["state"]] if is_own else legacy_states(saved)
    for state in states:
        refuse_older(state.get("param_states"), path, scope.place)
    beside = scope if path else replace(scope, owner="program")
    for name in saved.keys() - {"target", "state"}:
        yield from surplus_items(saved[name], paths / name, beside)
    for state in states if not is_own else ():
        others = (n for n in state if n not in ("step", "param_states"))
        yield from (Unpaired((*path, "state", name), Side.SURPLUS) for name in others)
    steps = list(_step_items(template.step, states, paths, scope))
    yield from steps
    step = steps[-1].value() if isinstance(steps[-1], Move) else np.int32(0)  # an error by then
    target_path = (*path, "target")
    params_paths = Paths(target_path, (*home, "params"))
    types = parameter_types(
        template.params, saved["target"], params_paths, replace(scope, owner="params")
    )
    if any(
        isinstance(item, Misfit) or (isinstance(item, Unpaired) and not scope.keep)
        for item in types.items
    ):  # their states would all be named as well
        yield from _with_level_named(types.items, target_path)
        return None
    yield from types.items
    opt_state = types.retyped_state(template)
    yield from types.retyped(opt_state, home)
    if is_own:  # of a definition of the user's own, field by field
        state_paths = Paths((*path, "state"), (*home, "opt_state"))
        field_scope = replace(scope, owner="opt_state", lifted=types.lifted)
        yield from same_names(state_dict_of(opt_state), saved["state"], state_paths, field_scope)
    else:
        params = template.params if types.params is None else types.params
        yield from _recipe_items(opt_state, params, (*path, "opt_state"))
        part = Part(scope.place, path, saved["target"], states[0]["param_states"])
        if saved["state"] is not states[0]:
            part = replace(part, param_states=[state["param_states"] for state in states])
            part = with_groups(part, _groups(template, opt_state, part))
        field_scope = replace(scope, lifted=types.lifted)
        yield from _moment_items(opt_state, template.params, part.rows, step, paths, field_scope)
    return int(np.ravel(np.asarray(step))[0])


def _with_level_named(items: Sequence[Item], target_path: Names) -> Iterator[Item]:
    """The items of parameters; if all are a level deeper in the checkpoint, that is the remedy."""
    lone = [item for item in items if isinstance(item, Unpaired)]
    missing = {item.path for item in lone if item.side is Side.MISSING}
    surplus = {item.path for item in lone if item.side is Side.SURPLUS}
    length = len(target_path)
    if missing and surplus == {(*target_path, "params", *path[length:]) for path in missing}:
        items = [
            replace(item, remedy=_BELOW_PARAMS) if isinstance(item, Unpaired) else item
            for item in items
        ]
    yield from items


def _step_items(
    expected: PyTree, states: Sequence[Mapping[str, PyTree]], paths: Paths, scope: Scope
) -> Iterator[Item]:
    steps = [np.asarray(state["step"]) for state in states]
    at = (*paths.source, "state", "step")
    if steps[0].dtype.kind not in "iu" or any(not np.array_equal(s, steps[0]) for s in steps):
        yield Misfit(at, "one number of steps", brief([s.tolist() for s in steps]))
    elif not may_count_steps(steps[0]):
        yield steps_misfit(steps[0], at)
    else:
        yield from leaf_items(expected, steps[0], Paths(at, (*paths.target, "step")), scope)


def _groups(template: PyTree, opt_state: OptState, part: Part) -> list[list[Names]]:
    """The leaves that each group of the template's transformation holds."""
    parts = groups_of(template.tx, opt_state, template.params)
    count = len(part.param_states)
    if len(parts) != count:
        raise CheckpointError(
            part.name_of("state"), "the groups of an optax_bridge.multi_optimizer",
            f"{count} groups", "A list of states, as flax had it up to 0.3.2, does not say which "
            "leaves are in which: convert it by `optax-bridge convert --optimizer`.",
        )  # fmt: skip
    return [sorted(key_names(p) for p, _ in leaves_with_path(params)) for *_, params in parts]


def _recipe_items(template: OptState, params: Params, path: Names) -> Iterator[Item]:
    """Yields a misfit where public Optax does not go on as the optimizer in half precision."""
    dtypes = {str(dtype_of(leaf)) for leaf in jax.tree.leaves(params)} & set(HALF_PRECISION)
    choices = [
        choose_recipe(entry.legacy(learning_rate=0.1), "auto", dtypes)
        for entry in (optax_entries(template) if dtypes else ())
    ]
    if choices and all(choice.kind == "exact" for choice in choices):
        actual = f"that of public Optax ({choices[0].reason})"
        yield Misfit(path, "the state of an exact transformation", actual, _NOT_OPTAX)


def plan_of_part(part: Part, template: OptState, name: str) -> Plan:
    """The plan from an optimizer to the state that a transformation of some name makes."""
    step, paths = np.asarray(part.step, np.int32), Paths(part.path)
    items: list[Item] = [Move((*part.path, "state", "step"), ("step",), leaf=step)]
    items += trained_items(part.target, Paths((*part.path, "target"), ("params",)))
    items += _moment_items(
        template, part.target, part.rows, step, paths, Scope(part.place), by_definition=True
    )
    return Plan(
        part.place, tuple(items), OTHER_OPTIMIZER, f"the state of {name}", if_missing="",
        source=other_classes(part, name),
    )  # fmt: skip


def _moment_items(
    template: OptState,
    params: Params,
    fields: Sequence[Row],
    step: Leaf,
    paths: Paths,
    scope: Scope,
    *,
    by_definition: bool = False,
) -> Iterator[Item]:
    """Yields the items of a transformation's state from the fields of a legacy optimizer."""
    path = paths.source
    values, places = _rows(params, fields, path)
    used: set[Names] = set()
    targets = paths_in_state_dict(template)
    for slot, names in zip(slots(unboxed(template), values), targets, strict=True):
        target, at = (*paths.target, "opt_state", *names), (*path, "opt_state", *slot.path)
        if slot.kind is Kind.COUNT:
            count = count_like(step, slot.leaf)
            yield Move((*path, "state", "step"), target, leaf=count)
        elif slot.kind is Kind.UNCERTAIN_SIGN:
            yield Misfit(at, *UNCERTAIN_SIGN)
        elif slot.kind is Kind.FIELD:
            at, value = places[slot.row], values[slot.row]
            if slot.row in used:
                yield Misfit(at, "one place in the new state", "several")
            used.add(slot.row)
            field_scope = replace(scope, owner="opt_state", ranges={target: slot.within})
            for item in _moment(slot.leaf, value, Paths(at, target), field_scope):
                is_negated = slot.sign == -1 and isinstance(item, Move)
                yield replace(item, negate=True) if is_negated else item
        elif slot.kind is Kind.UNKNOWN:
            in_file = (*path, "state", "param_states", *slot.row)
            missing = in_file if by_definition and slot.row else at
            yield Unpaired(missing, Side.MISSING, OTHER_OPTIMIZER if slot.row else "")
    unused = unused_rows(values, used)
    yield from (Unpaired(places[row], Side.SURPLUS, OTHER_OPTIMIZER) for row in unused)


def _moment(expected: Leaf, saved: Leaf, paths: Paths, scope: Scope) -> Iterator[Item]:
    """Yields the items of a field of a parameter's state."""
    path, new = paths.source, with_copies(saved, np.shape(expected), scope.copies)
    if isinstance(new, Misfit):
        yield replace(new, path=path)
    elif new is None:
        remedy = _BY_AXIS if path[-1] in ("v_row", "v_col", "v") else OTHER_OPTIMIZER
        yield Misfit(path, remedy=remedy, template=expected, leaf=saved)
    else:
        yield from dtype_items(expected, new, paths, scope)


def _rows(
    params: Params, fields: Sequence[Row], path: Names
) -> tuple[dict[Names, PyTree], dict[Names, Names]]:
    """The rows of the checkpoint by the paths of the template's parameters."""
    params = unboxed(params)
    names_in_jax = (key_names(path) for path, _ in leaves_with_path(params))
    template_names = dict(zip(paths_in_state_dict(params), names_in_jax, strict=True))
    values: dict[Names, PyTree] = {}
    places: dict[Names, Names] = {}
    for names, _, row in fields:
        is_boxed = names not in template_names and names[-1:] == (LEVEL,)
        parameter = template_names.get(names[:-1] if is_boxed else names)
        if parameter is None:
            continue  # of a parameter that the template lacks; reported
        for field, leaf in leaves(row):
            values[(*parameter, *field)] = leaf
            places[(*parameter, *field)] = (*path, "state", "param_states", *names, *field)
    return values, places


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
        return _leading(step, saved), _leading(expected.step, expected.params)
    if isinstance(expected, Mapping) and isinstance(saved, Mapping):
        for name, value in expected.items():
            sizes = _copies(value, saved.get(name))
            if sizes is not None:
                return sizes
    return None


def _leading(step: Leaf, tree: PyTree) -> int | None:
    """The size of the leading axis, if a tree was replicated: all its arrays have the same."""
    copies = step.shape[0] if getattr(step, "ndim", 0) == 1 else None
    arrays = [leaf for leaf in jax.tree_util.tree_leaves(tree) if is_array(leaf)]
    return copies if all(leaf.shape[:1] == (copies,) for leaf in arrays) else None
