# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""Adadelta (Zeiler 2012), as `flax.optim.Adadelta` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from optax_bridge.correspondence.claim import by_measurement, rounding
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, OptaxRecipe, squares
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import (
    LeafRule,
    ScalarOrSchedule,
    direction,
    minus_and_decay,
    zeros,
)
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Params


class AdadeltaState(NamedTuple):
    """State of `adadelta`.

    Attributes:
      count: steps taken, int32 scalar.
      e_g: moving average of the squared gradient, a tree like the parameters, in their dtypes.
      e_x: moving average of the squared step, likewise.
    """

    count: Array
    e_g: Params
    e_x: Params


@explained
def adadelta(
    learning_rate: ScalarOrSchedule | None = None,
    rho: ScalarOrSchedule = 0.9,
    eps: ScalarOrSchedule = 1e-6,
    weight_decay: ScalarOrSchedule = 0.0,
) -> ExactTransformation:
    """Adadelta with *decoupled* weight decay, where `optax.adadelta` couples it with the gradient.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      rho: decay of both averages.
      eps: added inside both roots.
      weight_decay: `learning_rate * weight_decay * p` is subtracted after the step.

    Returns:
      The transformation; bit for bit `flax.optim.Adadelta` on the exact path.
    """
    return LeafRule(
        AdadeltaState,
        zeros(2),
        _step,
        dict(learning_rate=learning_rate, rho=rho, eps=eps, weight_decay=weight_decay),
        decay="weight_decay",
        apply=minus_and_decay,
    ).transformation()


def _step(
    hp: SimpleNamespace, count: Array, grad: Array, param: Array, e_g: Array, e_x: Array
) -> tuple[Array, tuple[Array, Array]]:
    del count, param
    e_g = hp.rho * e_g + jnp.square(grad) * (1 - hp.rho)
    delta = (jnp.sqrt(e_x + hp.eps) / jnp.sqrt(e_g + hp.eps)) * grad
    e_x = hp.rho * e_x + jnp.square(delta) * (1 - hp.rho)
    return hp.learning_rate * delta, (e_g, e_x)


@explained
def scale_by_adadelta(
    rho: ScalarOrSchedule = 0.9, eps: ScalarOrSchedule = 1e-6
) -> optax.GradientTransformation:
    """Rescales updates according to Adadelta; chain `optax.scale_by_learning_rate` after it.

    Args:
      rho: decay of both averages.
      eps: added inside both roots.

    Returns:
      The transformation; with the learning rate after it, `adadelta` up to rounding.
    """
    return direction(adadelta(-1.0, rho, eps))


# Adadelta is Optax's scale_by_adadelta with the weight decay behind it.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.Adadelta"),
    port="optax_bridge.adadelta",
    within={"rho": DECAY, "eps": NOT_NEGATIVE},
    state=(
        squares("sq_avg", exact="AdadeltaState.e_g", optax=("ScaleByAdaDeltaState.e_g",)),
        squares("acc_delta", exact="AdadeltaState.e_x", optax=("ScaleByAdaDeltaState.e_x",)),
    ),
    optax=(
        OptaxRecipe(
            call(
                "optax.adadelta",
                learning_rate=s("learning_rate"),
                rho=s("rho"),
                eps=s("eps"),
            ),
            rounding(
                32,
                "order of operations only",
                bfloat16=by_measurement(2.25),
                float16=by_measurement(16),
            ),
            when={"weight_decay": 0},
        ),
        OptaxRecipe(
            call(
                "optax.chain",
                call("optax.scale_by_adadelta", rho=s("rho"), eps=s("eps")),
                call("optax.add_decayed_weights", s("weight_decay")),
                call("optax.scale_by_learning_rate", s("learning_rate")),
            ),
            rounding(
                32,
                "order of operations, and one subtraction instead of two",
                bfloat16=by_measurement(36),
                float16=by_measurement(50),
            ),
        ),
    ),
    cases=(
        Case(learning_rate=1.0),
        Case({"rho": 0.5, "eps": 1e-3}, learning_rate=0.5),
        Case({"rho": 0.99, "weight_decay": 0.1}, learning_rate=0.5),
    ),
    notes=(
        "Legacy weight decay is decoupled; `optax.adadelta(weight_decay=...)` couples it with the "
        "gradient, which is another optimizer. Put `optax.add_decayed_weights` behind "
        "`optax.scale_by_adadelta`."
    ),
    sources=("flax.optim.adadelta", "Zeiler 2012, arXiv:1212.5701"),
)
