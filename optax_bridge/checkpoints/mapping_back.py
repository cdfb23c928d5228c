"""From a `TrainState`, in memory or read, to the state dict of the legacy optimizer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization

import legacy_optim
from optax_bridge._definition import check_definition, check_one_copy
from optax_bridge.checkpoints.choosing import named
from optax_bridge.checkpoints.errors import CheckpointError, leaf_name, shown
from optax_bridge.checkpoints.fit import LAYOUT, numbered
from optax_bridge.checkpoints.layout import (
    Layout,
    place_in,
    placed_among,
    read_layout,
    renamed_back,
)
from optax_bridge.checkpoints.legacy_optimizer import OTHER_OPTIMIZER, loaded, shape_of_state
from optax_bridge.checkpoints.read import Read
from optax_bridge.checkpoints.recognise import Names, at_path, find_states, is_array, leaves
from optax_bridge.checkpoints.transformed import (
    Definition,
    is_transformation,
    legacy_dict,
    state_template,
)
from optax_bridge.correspondence import default_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import from_legacy, to_legacy
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.trees import OptState, Params, PyTree


def legacy_tree(
    params: Params,
    opt_state: OptState,
    step: Any,
    definition: Definition,
) -> dict[str, PyTree]:
    """The state dict of the legacy optimizer for a new state, the layout of its checkpoints.

    Args:
      params: the parameters.
      opt_state: the state of the exact or of the stock recipe.
      step: steps taken.
      definition: the definition that the state's transformation corresponds to, or the
        transformation itself; see `convert_tree`.

    Raises:
      CheckpointError: the state is not that of the definition's transformation.
    """
    check_definition(definition, "optimizer_def", or_transformation=True)
    check_one_copy(step)
    if is_transformation(definition):
        return legacy_dict(definition, opt_state, params, step)
    params, opt_state = unboxed(params), unboxed(opt_state)  # flax.optim knew no boxes
    try:
        optimizer = to_legacy(definition, params, opt_state, step)
    except (ValueError, TypeError, AttributeError) as error:
        _, _, found = str(error).rpartition(": found ")
        raise CheckpointError(
            "opt_state", f"the state of {type(definition).__name__}'s transformation",
            found.removesuffix("."), OTHER_OPTIMIZER,
        ) from error  # fmt: skip
    return serialization.to_state_dict(optimizer)


def state_templates(
    definition: legacy_optim.OptimizerDef, params: Params
) -> list[tuple[bool, OptState]]:
    """Optimizer states without data that may belong to a definition: exact (True), or stock."""
    if is_transformation(definition):
        return [(True, state_template(definition, params, "opt_state"))]
    templates = []
    for exact in (True, False, None):
        try:
            is_mixed = exact is None
            tx = build(default_recipe(definition)) if is_mixed else from_legacy(definition, exact)
        except ValueError:
            continue
        templates.append((bool(exact), shape_of_state(tx.init, params, "params", definition)))
    return templates


def back(
    read: Read, definition: legacy_optim.OptimizerDef | None, part: str | None = None
) -> tuple[PyTree, int]:
    """The legacy tree for a TrainState's checkpoint, and its step.

    Args:
      read: the checkpoint.
      definition: the legacy definition.
      part: where the optimizer is to stand among what else there is, `models/generator`; where
        it stood if None, else at `optimizer`, or alone if there is nothing else. In a checkpoint
        with TrainStates at several places: which.

    Raises:
      CheckpointError: it is no TrainState, or one of another optimizer.
    """
    states = named(find_states(read.tree), part)
    if len(states) > 1:
        raise CheckpointError(
            read.path, "one TrainState to convert", ", ".join(map("/".join, states)),
            "Name one: --part NAME, or part= in Python.",
        )  # fmt: skip
    if not states:
        names = shown(sorted(read.tree)) if isinstance(read.tree, Mapping) else shown(read.tree)
        raise CheckpointError(
            read.path, "a TrainState: step, params, opt_state", names, "Is it a legacy checkpoint?"
        )
    if definition is None:
        raise CheckpointError(
            read.path, "the legacy optimizer to make", "none given",
            'Name it: --optimizer "Adam(learning_rate=1e-3)".',
        )  # fmt: skip
    state = at_path(read.tree, states[0])
    params, step = state["params"], state["step"]
    number = int(np.asarray(step))
    opt_state = _fitted(state["opt_state"], definition, params, read.path)
    tree = legacy_tree(params, opt_state, step, definition)
    if states[0]:
        return _replaced(read.tree, states[0], tree), number
    others = {
        renamed_back(name): value
        for name, value in read.tree.items()
        if name not in ("step", "params", "opt_state", LAYOUT)
    }
    layout = read_layout(read.tree[LAYOUT], read.path) if LAYOUT in read.tree else Layout()
    if not others and not layout.part and part is None:
        return tree, number
    path = tuple(part.strip("/").split("/")) if part else layout.part or place_in(others)
    return placed_among(others | layout.steps_at(step), path, tree, read.path), number


def _replaced(tree: PyTree, path: Names, value: Any) -> PyTree:
    if not path:
        return value
    tree = numbered(tree)
    return {**tree, path[0]: _replaced(tree[path[0]], path[1:], value)}


def _fitted(
    found: PyTree, definition: legacy_optim.OptimizerDef, params: Params, place: Path
) -> OptState:
    """The state of a file in the NamedTuples of the exact or of the stock recipe."""
    actual = {p: (v.shape, v.dtype) for p, v in leaves(found) if is_array(v)}
    differing: list[str] = []
    for exact, template in state_templates(definition, params):
        plain = serialization.to_state_dict(template)
        wanted = {p: (v.shape, v.dtype) for p, v in leaves(plain) if is_array(v)}
        if wanted == actual:
            state = serialization.from_state_dict(template, _completed(plain, found))
            return state if exact else loaded(state)
        differing += [
            leaf_name(p) for p in set(wanted.items()) ^ set(actual.items()) for p in p[:1]
        ]
    raise CheckpointError(
        f"{place}, ['opt_state']", f"the state of {type(definition).__name__}'s transformation",
        f"leaves that differ: {shown(sorted(set(differing)))}",
        "Give the optimizer whose transformation wrote it.",
    )  # fmt: skip


def _completed(plain: PyTree, found: PyTree) -> PyTree:
    """The found leaves in the structure of a state dict, with the empty nodes that Orbax drops."""
    if isinstance(plain, Mapping):
        found = numbered(found) or {}
        return {k: _completed(v, found.get(k)) for k, v in plain.items()}
    return found
