"""States for a transformation that has no legacy definition: Adafactor by axis, as T5X had it."""

from typing import Any

import jax
import numpy as np
from flax import serialization

from optax_bridge.checkpoints.errors import CheckpointError, leaf_name
from optax_bridge.checkpoints.recognise import Part
from optax_bridge.correspondence import ENTRIES


def is_transformation(definition: Any) -> bool:
    """Whether this is a transformation, and not a legacy definition."""
    return hasattr(definition, "init") and hasattr(definition, "update")


def state_template(tx: Any, params: Any, place: Any) -> Any:
    """The state that a transformation has for these parameters, without data.

    Raises:
      CheckpointError: it refuses the parameters, or its state is not that of a legacy optimizer.
    """
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
    try:
        template = jax.eval_shape(tx.init, shapes)
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            place, "parameters that the transformation takes", str(error),
            "A checkpoint has no names of axes: say with path_rules what an axis is.",
        ) from error  # fmt: skip
    _fields(template, place)
    return template


def _fields(template: Any, place: Any) -> dict[str, str]:
    """The legacy name of each field of a state, with its own."""
    name = type(template).__name__
    for entry in ENTRIES.values():
        pairs = [(field.legacy, field.exact.split(".")) for field in entry.state]
        if pairs and all(own[0] == name and len(own) == 2 for _, own in pairs):
            return {legacy: own[1] for legacy, own in pairs}
    raise CheckpointError(
        place, "a transformation of optax_bridge with one state for all parameters, such as "
        "optax_bridge.adafactor(path_rules=...)", name, "Pass the legacy definition instead.",
    )  # fmt: skip


def param_states(template: Any, params: Any, place: Any) -> Any:
    """The legacy layout of a state: a dict of fields for each parameter."""
    fields = _fields(template, place)
    names, trees = list(fields), [getattr(template, own) for own in fields.values()]
    return jax.tree.map(lambda _, *leaves: dict(zip(names, leaves, strict=True)), params, *trees)


def filled(template: Any, part: Part, place: Any) -> Any:
    """The state with the values of a checkpoint, whose leaves have been checked to fit."""
    own = {
        name: jax.tree.map(lambda _, row, key=legacy: row[key], part.target, part.param_states)
        for legacy, name in _fields(template, place).items()
    }
    return type(template)(count=np.asarray(part.step, np.int32), **own)


def legacy_dict(opt_state: Any, params: Any, step: Any) -> dict[str, Any]:
    """The state dict of an optimizer for a state that `filled` made."""
    if not hasattr(opt_state, "_fields"):
        raise CheckpointError(
            "opt_state", "a state of one of optax_bridge's transformations",
            type(opt_state).__name__, "Give the transformation that made it.",
        )  # fmt: skip
    plain = param_states(opt_state, params, leaf_name(("opt_state",)))
    state = {"step": np.asarray(step, np.int32), "param_states": plain}
    return serialization.to_state_dict({"target": params, "state": state})
