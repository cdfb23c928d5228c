"""A legacy optimizer in memory, from a part of a checkpoint: every leaf is checked."""

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.definitions import focused, ungrouped
from optax_bridge.checkpoints.errors import CheckpointError, Place, leaf_name, shown
from optax_bridge.checkpoints.lazy import BLOCK, bytes_of, release
from optax_bridge.checkpoints.recognise import Part, is_array, leaves, refuse_older, shapes_of
from optax_bridge.metadata.trees import OptState, Params, PyTree

_FLOATS = [np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)]
OTHER_OPTIMIZER = (
    "The state is that of another optimizer, or of one with other settings: give the one that the "
    "checkpoint was written with."
)
_BY_AXIS = (
    "Other settings decide which axes are reduced (min_dim_size_to_factor, factored). Where the "
    "axes' names did, as in T5X, say so in Python: TrainState.from_legacy_checkpoint(path, "
    'optimizer_def=optax_bridge.adafactor(..., path_rules={"regex": ("batch", "row", "column")})).'
)


def restore(
    part: Part, definition: legacy_optim.OptimizerDef, place: Place, allow_nan: bool
) -> legacy_optim.Optimizer:
    """The legacy optimizer in memory; every leaf is checked against what the definition makes.

    Raises:
      CheckpointError: leaves are missing, too many, or of another shape or dtype.
    """
    refuse_older(part, place)
    check_parameters(part, place)
    found = part.param_states
    if part.is_grouped:
        found = ungrouped(part, definition, place)
    definition = focused(definition, part, place)
    with jax.enable_x64(True) if _is_wide(part.target) else contextlib.nullcontext():
        made = shape_of_state(definition.init_state, part.target, place, definition)
    template = made.param_states
    state_path = (*part.path, "state", "param_states")
    check_leaves(
        serialization.to_state_dict(template), found, state_path, place, definition, allow_nan
    )
    restored = serialization.from_state_dict(template, found)
    step = np.asarray(part.step, np.int32)
    state = legacy_optim.OptimizerState(step, restored)
    return legacy_optim.Optimizer(definition, state, part.target)


def loaded(tree: PyTree) -> PyTree:
    """A tree whose arrays are NumPy's: those of T5X and Orbax are read only now."""
    return jax.tree.map(
        lambda leaf: (
            np.asarray(leaf) if is_array(leaf) and not isinstance(leaf, jax.Array) else leaf
        ),
        tree,
    )


def shape_of_state(
    init: Any, params: Params, place: Place, definition: legacy_optim.OptimizerDef
) -> OptState:
    """The state that a definition or its transformation makes for parameters, without data.

    Raises:
      CheckpointError: it refuses the parameters.
    """
    try:
        return jax.eval_shape(init, shapes_of(params))
    except (ValueError, TypeError, LookupError) as error:
        raise CheckpointError(
            place, f"parameters that {_name(definition)} takes", shown(str(error), 300),
            "Give the optimizer that the checkpoint was written with.",
        ) from error  # fmt: skip


def check_parameters(part: Part, place: Place) -> None:
    """Checks that the target has arrays of floating-point numbers only.

    Raises:
      CheckpointError: it has something else.
    """
    target_path = (*part.path, "target")
    for path, leaf in leaves(part.target):
        where = f"{place}, {leaf_name((*target_path, *path))}"
        if not is_array(leaf):
            raise CheckpointError(where, "an array", shown(leaf), "Parameters must be arrays.")
        if leaf.dtype not in _FLOATS and leaf.dtype.kind != "c":
            raise CheckpointError(
                where, "a parameter in floating point of 16 bits or more", str(leaf.dtype),
                "flax.optim never trained such a leaf; take it out of the optimizer's target.",
            )  # fmt: skip


def check_leaves(
    expected: PyTree,
    found: PyTree,
    path: Any,
    place: Place,
    definition: legacy_optim.OptimizerDef,
    allow_nan: bool,
) -> None:
    """Checks the leaves of a state against those that a definition makes.

    Raises:
      CheckpointError: leaves are missing, too many, of another shape or dtype, or NaN.
    """
    where = f"{place}, {leaf_name(path)}"
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(expected):
            what = shown(sorted(found)) if isinstance(found, Mapping) else _kind(found)
            raise CheckpointError(
                where,
                f"{shown(sorted(expected))} ({_name(definition)})",
                what,
                OTHER_OPTIMIZER,
            )
        for name, value in expected.items():
            check_leaves(value, found[name], (*path, name), place, definition, allow_nan)
    elif expected is None or not is_array(found):
        if not (expected is None and found is None):
            wanted = "nothing" if expected is None else f"{expected.dtype}{list(expected.shape)}"
            raise CheckpointError(
                where, f"{wanted} ({_name(definition)})", _kind(found), OTHER_OPTIMIZER
            )
    elif found.shape != expected.shape or found.dtype != expected.dtype:
        raise CheckpointError(
            where, f"{expected.dtype}{list(expected.shape)} ({_name(definition)})", _kind(found),
            _BY_AXIS if path[-1] in ("v_row", "v_col", "v") else OTHER_OPTIMIZER,
        )  # fmt: skip
    elif not allow_nan and _has_nan(found):
        raise CheckpointError(
            where, "numbers", "NaN", "The training had broken down: take an earlier checkpoint, or "
            "pass --allow-nan (allow_nan=True) to convert it as it is.",
        )  # fmt: skip


def _is_wide(target: Params) -> bool:
    return any(leaf.dtype in (np.float64, np.complex128) for _, leaf in leaves(target))


def _has_nan(found: PyTree) -> bool:
    if isinstance(found, jax.Array):  # perhaps over many devices
        return bool(found.size) and bool(jnp.isnan(jnp.min(found)))
    data = bytes_of(found)
    for start in range(0, found.nbytes, BLOCK):  # the least of them: without a mask in memory
        block = data(start, min(start + BLOCK, found.nbytes)).view(found.dtype)
        with np.errstate(invalid="ignore"):  # that of bfloat16 warns where there is NaN
            least = np.min(block)
        if np.isnan(least):
            return True
        if found.nbytes > BLOCK:
            release(found)
    return False


def _kind(found: PyTree) -> str:
    return f"{found.dtype}{list(found.shape)}" if is_array(found) else shown(found)


def _name(definition: legacy_optim.OptimizerDef) -> str:
    return type(definition).__name__
