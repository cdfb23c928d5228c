"""From a `TrainState`, in memory or read, to the legacy optimizer that it corresponds to."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
import optax
from flax import serialization

import legacy_optim
from optax_bridge._text import brief
from optax_bridge.checkpoints.definitions import (
    Definition,
    check_axes_of_t5x,
    is_transformation,
    params_held,
    shape_of_state,
)
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats.format import put
from optax_bridge.checkpoints.layout import (
    LAYOUT,
    Layout,
    add_optimizer,
    likely_path,
    original_name,
    read_layout,
    without_copies,
)
from optax_bridge.checkpoints.legacy_to_state import OTHER_OPTIMIZER
from optax_bridge.checkpoints.locate import at_path, find_states, select_paths, shapes_of
from optax_bridge.checkpoints.moves import Item, Move, Plan
from optax_bridge.checkpoints.read import Read
from optax_bridge.checkpoints.same_names import (
    Scope,
    may_count_steps,
    ranges_of,
    steps_misfit,
    trained_items,
)
from optax_bridge.checkpoints.trees import fields_of, is_array, plain, refill, state_dict
from optax_bridge.checkpoints.write import write
from optax_bridge.checks import check_definition, check_one_copy
from optax_bridge.correspondence import UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.choice import RECIPES
from optax_bridge.correspondence.recipe import build
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.legacy import to_legacy
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.paths import Names, key_names, leaf_name, leaves, with_indices
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree
from optax_bridge.states import Kind, extract, slots


def legacy_tree(
    params: Params, opt_state: OptState, step: Leaf, definition: Definition
) -> dict[str, PyTree]:
    """The state dict of the legacy optimizer for a new state, the layout of its checkpoints."""
    check_definition(definition, "optimizer_def", or_transformation=True)
    check_one_copy(step)
    if not is_transformation(definition):
        try:
            optimizer = to_legacy(definition, unboxed(params), unboxed(opt_state), step)
        except (ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(
                "opt_state", f"the state of {type(definition).__name__}'s transformation",
                str(error).removesuffix("."), OTHER_OPTIMIZER,
            ) from error  # fmt: skip
        return serialization.to_state_dict(optimizer)
    fields = _fields_by_parameter(definition, opt_state, params)
    state = {"step": np.asarray(step, np.int32), "param_states": fields}
    return serialization.to_state_dict({"target": unboxed(params), "state": state})


def _fields_by_parameter(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params
) -> PyTree:
    """The legacy layout of a transformation's state: fields for each parameter, None for none."""
    _check_is_of(tx, opt_state, params)
    try:
        values = extract(opt_state, None)
        check_axes_of_t5x(tx, opt_state, params, "opt_state")
        paths = params_held(tx, unboxed(opt_state), unboxed(params))
    except (ValueError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            "opt_state", "a state in this project's own arithmetic, which has a legacy layout",
            str(error).removeprefix("found "), "Or pass the legacy definition instead.",
        ) from error  # fmt: skip

    by_parameter: dict[Names, dict[str, PyTree]] = {names: {} for names in paths}
    for key, value in values.items():
        length = next(n for n in range(len(key) - 1, -1, -1) if key[:n] in paths)
        put(by_parameter[key[:length]], key[length:], value, "opt_state")
    return jax.tree_util.tree_map_with_path(
        lambda path, _: by_parameter.get(key_names(path)), unboxed(params)
    )


def _check_is_of(tx: optax.GradientTransformation, opt_state: OptState, params: Params) -> None:
    """Checks types and shapes of a state against those that a transformation makes."""
    try:
        template = jax.eval_shape(boxes_handled(tx).init, shapes_of(params))
    except (ValueError, TypeError):
        return  # it goes by the names of the axes, and the parameters are in boxes no more
    shapes, expected = ([np.shape(x) for x in jax.tree.leaves(s)] for s in (opt_state, template))
    if type(opt_state) is not type(template) or shapes != expected:
        raise CheckpointError(
            "opt_state", f"a {type(template).__name__} of the shapes {brief(expected)}",
            f"a {type(opt_state).__name__} of {brief(shapes)}",
            "Pass the transformation that the state is of.",
        )  # fmt: skip


def back(
    read: Read,
    definition: legacy_optim.OptimizerDef | None,
    part: str | None = None,
    allow_nan: bool = False,
) -> tuple[PyTree, int, list[Move]]:
    """The legacy tree for a TrainState's checkpoint, its step, and where each leaf goes."""
    states = select_paths(find_states(read.tree), part)
    if len(states) > 1:
        raise CheckpointError(
            read.path, "one TrainState to convert", ", ".join(map("/".join, states)),
            "Name one: --part NAME, or part= in Python.",
        )  # fmt: skip
    if not states:
        names = brief(sorted(read.tree)) if isinstance(read.tree, Mapping) else brief(read.tree)
        raise CheckpointError(
            read.path, "a TrainState: step, params, opt_state", names, "Is it a legacy checkpoint?"
        )
    if definition is None:
        raise CheckpointError(
            read.path, "the legacy optimizer to make", "none given",
            'Name it: --optimizer "Adam(learning_rate=1e-3)".',
        )  # fmt: skip
    state = _one_state(read, states[0])
    params, step = state["params"], state["step"]
    for names, leaf in leaves(params):
        if not is_array(leaf):
            where = f"{read.path}, {leaf_name((*states[0], 'params', *names))}"
            raise CheckpointError(where, "an array", brief(leaf), "Parameters must be arrays.")
    items: list[Item] = []
    if not may_count_steps(step):
        items.append(steps_misfit(step, (*states[0], "step")))
    scope, state_path = Scope(read.path, "params"), (*states[0], "opt_state")
    items += trained_items(params, (*states[0], "params"), scope)
    opt_state = _state_of(state["opt_state"], definition, params, read.path)
    scope = Scope(read.path, "opt_state", ranges=ranges_of(opt_state, state_path))
    items += trained_items(state["opt_state"], state_path, scope)
    Plan(read.path, tuple(items)).check(allow_nan=allow_nan)
    number = int(np.asarray(step))
    tree = legacy_tree(params, opt_state, step, definition)
    if states[0]:
        return _replace(read.tree, states[0], tree), number, _moves(states[0], tree, opt_state)
    others = {
        original_name(name): value
        for name, value in read.tree.items()
        if name not in ("step", "params", "opt_state", LAYOUT)
    }
    layout = read_layout(read.tree[LAYOUT], read.path) if LAYOUT in read.tree else Layout()
    if not others and not layout.part and part is None:
        return tree, number, _moves((), tree, opt_state)
    path = tuple(part.strip("/").split("/")) if part else layout.part or likely_path(others)
    moves = _moves((), tree, opt_state, path)
    return add_optimizer(others | layout.steps_at(step), path, tree, read.path), number, moves


def _moves(
    state: Names, tree: PyTree, opt_state: OptState, home: Names | None = None
) -> list[Move]:
    """Where the leaves of a TrainState go in the tree of a legacy optimizer."""
    home = state if home is None else home
    moves = [Move((*state, "step"), (*home, "state", "step"))]
    moves += [
        Move((*state, "params", *names), (*home, "target", *names))
        for names, _ in leaves(plain(tree["target"]))
    ]
    fields = dict(leaves(plain(tree["state"]["param_states"])))
    return moves + [
        Move(
            (*state, "opt_state", *slot.path), (*home, "state", "param_states", *slot.row),
            negate=slot.sign == -1,
        )
        for slot in slots(unboxed(opt_state), fields) if slot.kind is Kind.FIELD
    ]  # fmt: skip


def _one_state(read: Read, path: Names) -> PyTree:
    """The state at a path; of equal copies, one for each device, the first."""
    state = at_path(read.tree, path)
    if np.ndim(state["step"]) == 1:
        state = without_copies(state, np.shape(state["step"])[0])
    if np.ndim(state["step"]):
        raise CheckpointError(
            f"{read.path}, {leaf_name((*path, 'step'))}", "one state, or equal copies of one",
            f"{np.shape(state['step'])[0]} that differ",
            "Convert each in Python: state.to_legacy(definition).",
        )  # fmt: skip
    return state


def _replace(tree: PyTree, path: Names, value: PyTree) -> PyTree:
    if not path:
        return value
    tree = with_indices(tree)
    return {**tree, path[0]: _replace(tree[path[0]], path[1:], value)}


def _state_of(saved: PyTree, definition: Definition, params: Params, place: Path) -> OptState:
    """The state of a file in the NamedTuples of the transformation that it is of."""
    actual = {p: (v.shape, v.dtype) for p, v in leaves(saved) if is_array(v)}
    differing: list[str] = []
    for tx in _transformations(definition):
        template = shape_of_state(tx.init, params, place, _name(definition))
        plain = state_dict(template)
        wanted = {p: (v.shape, v.dtype) for p, v in leaves(plain) if is_array(v)}
        if wanted == actual:
            return refill(template, _fill_gaps(plain, saved))
        differing += [leaf_name(p) for p, _ in set(wanted.items()) ^ set(actual.items())]
    raise CheckpointError(
        f"{place}, ['opt_state']", f"the state of {_name(definition)}'s transformation",
        f"leaves that differ: {brief(sorted(set(differing)))}",
        "Give the optimizer whose transformation wrote it.",
    )  # fmt: skip


def _transformations(definition: Definition) -> Iterator[optax.GradientTransformation]:
    """Those whose state a file may have for a definition: of each recipe."""
    if is_transformation(definition):
        yield definition
        return
    for recipe in RECIPES:
        with contextlib.suppress(UnsupportedSetting):
            yield build(choose_recipe(definition, recipe, {"float32"}).call)


def _name(definition: Definition) -> str:
    return "the transformation" if is_transformation(definition) else type(definition).__name__


def _fill_gaps(plain: PyTree, saved: PyTree) -> PyTree:
    """The saved leaves in the structure of a state dict, with the empty nodes that Orbax drops."""
    if isinstance(plain, Mapping):
        saved = with_indices(saved) or {}
        return {k: _fill_gaps(v, saved.get(k)) for k, v in plain.items()}
    return saved


def to_legacy_checkpoint(
    state: PyTree,
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
        tree = add_optimizer(_others(state), tuple(part.strip("/").split("/")), tree, path)
    write(path, tree, "msgpack", force)


def _others(state: PyTree) -> dict[str, PyTree]:
    """The fields of a state without the optimizer's; keys as the bits that programs had then."""
    optimizer_fields = ("params", "opt_state")
    fields = {
        name: getattr(state, name) for name in fields_of(state) if name not in optimizer_fields
    }
    filled_fields = {name: value for name, value in fields.items() if value is not None}
    return plain(state_dict(unboxed(filled_fields)))
