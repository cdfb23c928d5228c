"""States for a transformation that has no legacy definition: Adafactor by axis, as T5X had it."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.errors import CheckpointError, Place, shown
from optax_bridge.checkpoints.recognise import Part, shapes_of
from optax_bridge.legacy_layout import factored_otherwise_in_t5x, opt_state_of, param_states_of
from optax_bridge.metadata.trees import OptState, Params, PyTree

if TYPE_CHECKING:
    from typing_extensions import TypeIs


# A legacy definition, or a transformation with a state like one's: Adafactor by axis.
Definition = legacy_optim.OptimizerDef | optax.GradientTransformation


def is_transformation(definition: object) -> "TypeIs[optax.GradientTransformation]":
    """Whether this is a transformation, and not a legacy definition."""
    return hasattr(definition, "init") and hasattr(definition, "update")


def state_template(tx: optax.GradientTransformation, params: Params, place: Place) -> OptState:
    """The state that a transformation has for these parameters, without data.

    Raises:
      CheckpointError: it refuses the parameters, or its state is not that of a legacy optimizer.
    """
    try:
        template = jax.eval_shape(tx.init, shapes_of(params))
    except (ValueError, TypeError) as error:
        raise CheckpointError(
            place, "parameters that the transformation takes", str(error),
            "A checkpoint has no names of axes: say with path_rules what an axis is.",
        ) from error  # fmt: skip
    param_states(tx, template, params, place)
    return template


def param_states(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params, place: Place
) -> OptState:
    """The legacy layout of a state: a dict of fields for each parameter, None for none.

    Raises:
      CheckpointError: the transformation has none, or has not the one that T5X wrote and reads.
    """
    try:
        rows = param_states_of(tx, opt_state, params)
        differing = factored_otherwise_in_t5x(tx, shapes_of(params))
    except (ValueError, AttributeError) as error:
        raise CheckpointError(
            place, "a transformation whose state has a legacy layout", str(error),
            "Or pass the transformation that the state is of.",
        ) from error  # fmt: skip
    if differing:
        raise CheckpointError(
            f"{place}, {shown(differing)}", "statistics along the axes that the rules name",
            "T5X's checkpoints, where a rule without a batch axis has no say over parameters of "
            "rank 2 and below",
            "To go on as T5X did, pass optax_bridge.adafactor(..., as_in_t5x=True).",
        )  # fmt: skip
    return rows


def filled(tx: optax.GradientTransformation, template: OptState, part: Part) -> PyTree:
    """The state with the values of a checkpoint, whose leaves have been checked to fit."""
    return opt_state_of(tx, template, part.target, part.param_states, part.step)


def legacy_dict(
    tx: optax.GradientTransformation, opt_state: OptState, params: Params, step: Any
) -> dict[str, PyTree]:
    """The state dict of an optimizer for a state that `filled` made.

    Raises:
      CheckpointError: the state is not one of this transformation.
    """
    template = state_template(tx, params, "opt_state")
    shapes, expected = ([jnp.shape(x) for x in jax.tree.leaves(s)] for s in (opt_state, template))
    if type(opt_state) is not type(template) or shapes != expected:
        raise CheckpointError(
            "opt_state", f"a {type(template).__name__} of the shapes {shown(expected)}",
            f"a {type(opt_state).__name__} of {shown(shapes)}",
            "Pass the transformation that the state is of.",
        )  # fmt: skip
    plain = param_states(tx, opt_state, params, "opt_state")
    state = {"step": np.asarray(step, np.int32), "param_states": plain}
    return serialization.to_state_dict({"target": params, "state": state})
