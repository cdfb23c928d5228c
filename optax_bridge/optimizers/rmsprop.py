"""RMSProp (Tieleman and Hinton 2012), as `flax.optim.RMSProp` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from optax_bridge.correspondence.claim import by_measurement, differs, rounding
from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    LegacyClass,
    OptaxRecipe,
    StateField,
    squares,
)
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, direction, zeros
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Leaf, Params


class RMSPropState(NamedTuple):
    """State of `rmsprop`.

    Attributes:
      count: steps taken, int32 scalar.
      nu: moving average of the squared gradient, a tree like the parameters, in their dtypes.
      mu: moving average of the gradient if centered, else None.
    """

    count: Array
    nu: Params
    mu: Params | None


@explained
def rmsprop(
    learning_rate: ScalarOrSchedule | None = None,
    decay: ScalarOrSchedule = 0.9,
    eps: ScalarOrSchedule = 1e-8,
    centered: bool = False,
) -> ExactTransformation:
    """RMSProp with `eps` outside the root, where `optax.rmsprop` has it inside by default.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      decay: decay of the averages.
      eps: added to the root of the second moment.
      centered: divides by the variance rather than by the second moment.

    Returns:
      The transformation; bit for bit `flax.optim.RMSProp`, on either path.
    """
    return LeafRule(
        RMSPropState,
        zeros(2) if centered else _without_mean,
        _step,
        dict(learning_rate=learning_rate, decay=decay, eps=eps, centered=centered),
    ).transformation()


def _without_mean(param: Leaf) -> tuple[Array, None]:
    return jnp.zeros_like(param), None


def _step(
    hp: SimpleNamespace, count: Array, grad: Array, param: Array, nu: Array, mu: Array
) -> tuple[Array, tuple[Array, Array]]:
    del count, param
    nu = hp.decay * nu + (1.0 - hp.decay) * jnp.square(grad)
    variance = nu
    if hp.centered:
        mu = hp.decay * mu + (1.0 - hp.decay) * grad
        variance = nu - jnp.square(mu)
    return hp.learning_rate * grad / (jnp.sqrt(variance) + hp.eps), (nu, mu)


@explained
def scale_by_rmsprop(
    decay: ScalarOrSchedule = 0.9, eps: ScalarOrSchedule = 1e-8, centered: bool = False
) -> optax.GradientTransformation:
    """Rescales updates according to RMSProp; chain `optax.scale_by_learning_rate` after it.

    Args:
      decay: decay of the averages.
      eps: added to the root of the second moment.
      centered: divides by the variance rather than by the second moment.

    Returns:
      The transformation; with the learning rate after it, `rmsprop` up to rounding.
    """
    return direction(rmsprop(-1.0, decay, eps, centered))


# RMSProp is Optax's rmsprop with eps_in_sqrt=False.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.RMSProp"),
    port="optax_bridge.rmsprop",
    renamed={"beta2": "decay"},
    within={"beta2": DECAY, "eps": NOT_NEGATIVE},
    state=(
        squares(
            "v", exact="RMSPropState.nu", optax=("ScaleByRmsState.nu", "ScaleByRStdDevState.nu")
        ),
        StateField("mg", exact="RMSPropState.mu", optax=("ScaleByRStdDevState.mu",)),
    ),
    optax=(
        OptaxRecipe(
            call(
                "optax.rmsprop",
                learning_rate=s("learning_rate"),
                decay=s("beta2"),
                eps=s("eps"),
                centered=s("centered"),
                eps_in_sqrt=False,
            ),
            rounding(
                32,
                "order of operations only",
                bfloat16=by_measurement(6.5),
                float16=differs("an epsilon of 1e-8 is 0 there, and NaN appears in other places"),
            ),
        ),
    ),
    cases=(
        Case(),
        Case({"centered": True, "eps": 1e-3}),
        Case({"beta2": 0.99, "eps": 1e-6}),
    ),
    notes=(
        "`optax.rmsprop` has `eps` inside the root unless `eps_in_sqrt=False`; without that the "
        "trajectories part by 3.6 %."
    ),
    sources=("flax.optim.rmsprop", "Tieleman and Hinton 2012", "Graves 2013, arXiv:1308.0850"),
)
