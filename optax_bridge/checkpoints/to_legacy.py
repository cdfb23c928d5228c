"""From a `TrainState`, in memory or read, to the legacy optimizer that it corresponds to."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import legacy_optim
from optax_bridge._text import brief
from optax_bridge.checkpoints.definitions import shape_of_state
from optax_bridge.checkpoints.errors import CheckpointError, Place, place_of
from optax_bridge.checkpoints.layout import add_optimizer, without, without_copies
from optax_bridge.checkpoints.legacy_to_state import OF_THE_OPTIMIZER, OTHER_OPTIMIZER
from optax_bridge.checkpoints.locate import at_path, check_parameters
from optax_bridge.checkpoints.moves import Item, Move, Plan, moved_to
from optax_bridge.checkpoints.read import Read
from optax_bridge.checkpoints.same_names import Paths, may_count_steps, steps_misfit, trained_items
from optax_bridge.checkpoints.trees import array_like, fill_outline, is_array, refill, state_dict
from optax_bridge.checks import check_definition, check_one_copy
from optax_bridge.correspondence import UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.choice import RECIPES
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import legacy_fields
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.paths import Names, leaf_name, leaves
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree


def legacy_tree(
    params: Params,
    opt_state: OptState,
    step: Leaf,
    definition: legacy_optim.OptimizerDef,
    place: Place = "state",
    path: Names = (),
    *,
    allow_nan: bool = True,
) -> tuple[dict[str, PyTree], Sequence[Move]]:
    """The state dict of the legacy optimizer for a TrainState at a path, and the moves to it."""
    check_definition(definition, "optimizer_def")
    check_one_copy(step)
    target = unboxed(params)
    try:
        state, fields = legacy_fields(definition, target, unboxed(opt_state))
        outline = definition.state_dict(target, state)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "opt_state", f"the state of {type(definition).__name__}'s transformation",
            str(error).removesuffix("."), OTHER_OPTIMIZER,
        ) from error  # fmt: skip
    step_path, is_number = (*path, "step"), array_like(step) and may_count_steps(step)
    items: list[Item] = [
        Move(step_path, ("state", "step"), leaf=jnp.asarray(step, jnp.int32))
        if is_number else steps_misfit(step, step_path)
    ]  # fmt: skip
    items += trained_items(outline["target"], Paths((*path, "params"), ("target",)))
    items += [
        Move(
            (*path, "opt_state", *slot.path), ("state", "param_states", *slot.row),
            negate=slot.sign == -1, leaf=slot.leaf, within=slot.within,
        )
        for slot in fields
    ]  # fmt: skip
    placeholders = {
        path: jnp.zeros(leaf.shape, leaf.dtype)  # where Adafactor keeps nothing
        for path, leaf in leaves(outline)
        if isinstance(leaf, jax.ShapeDtypeStruct)
    }
    plan = Plan(place, tuple(items))
    plan.check(allow_nan=allow_nan)
    return fill_outline(outline, placeholders | plan.apply()), plan.moves


def back(
    read: Read,
    home: Names,
    definition: legacy_optim.OptimizerDef | None,
    part: str | None,
    allow_nan: bool,
) -> tuple[PyTree, int, Sequence[Move]]:
    """The legacy tree for the TrainState at a place, its step, and where each leaf goes."""
    if definition is None:
        raise CheckpointError(
            read.path, "the legacy optimizer to make", "none given",
            'Name it: --optimizer "Adam(learning_rate=1e-3)".',
        )  # fmt: skip
    state = _one_state(read, home)
    params, step = state["params"], state["step"]
    check_parameters(params, place_of(read.path, (*home, "params")))
    opt_state = _state_of(dict(leaves(state["opt_state"])), definition, params, read.path)
    tree, moves = legacy_tree(
        params, opt_state, step, definition, read.path, home, allow_nan=allow_nan
    )
    others = {name: v for name, v in read.tree.items() if name not in OF_THE_OPTIMIZER}
    if home:
        others = without(read.tree, home)
    elif others or part is not None:
        home = tuple((part or "optimizer").strip("/").split("/"))
    tree = add_optimizer(others, home, tree, read.path) if home else tree
    return tree, int(np.asarray(step)), moved_to(home, moves)


def _one_state(read: Read, path: Names) -> PyTree:
    """The state at a path; of equal copies, one for each device, the first."""
    state = at_path(read.tree, path)
    if np.ndim(state["step"]) == 1:
        state = without_copies(state, np.shape(state["step"])[0])
    if np.ndim(state["step"]):
        raise CheckpointError(
            place_of(read.path, (*path, "step")), "one state, or identical copies of it",
            f"{np.shape(state['step'])[0]} that differ",
            "Convert each in Python: state.to_legacy(definition).",
        )  # fmt: skip
    return state


def _state_of(
    saved: Mapping[Names, Leaf],
    definition: legacy_optim.OptimizerDef,
    params: Params,
    place: Path,
) -> OptState:
    """The leaves of a file in the NamedTuples of the transformation whose state they are."""
    actual = {p: (v.shape, v.dtype) for p, v in saved.items() if is_array(v)}
    differing, name = list[str](), type(definition).__name__
    for recipe in RECIPES:
        try:
            tx = build(choose_recipe(definition, recipe, {"float32"}).call)
        except UnsupportedSetting:
            continue
        template = shape_of_state(tx.init, params, place, name)
        plain = state_dict(template)
        wanted = {p: (v.shape, v.dtype) for p, v in leaves(plain) if is_array(v)}
        if wanted == actual:
            return refill(template, fill_outline(plain, saved))
        differing += [leaf_name(p) for p, _ in set(wanted.items()) ^ set(actual.items())]
    raise CheckpointError(
        f"{place}, ['opt_state']", f"the state of {name}'s transformation",
        f"leaves that differ: {brief(sorted(set(differing)))}",
        "Give the optimizer whose transformation wrote it.",
    )  # fmt: skip
