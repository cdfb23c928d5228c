# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""Adam (Kingma and Ba 2014), as `flax.optim.Adam` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from optax_bridge.correspondence.claim import differs, rounding
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
from optax_bridge.correspondence.values import CORRECTED_DECAY, NOT_NEGATIVE
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import (
    LeafRule,
    Powers,
    ScalarOrSchedule,
    decay_powers,
    direction,
    minus_and_decay,
    zeros,
)
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Params


class AdamState(NamedTuple):
    """State of `adam`.

    Attributes:
      count: steps taken, int32 scalar.
      mu: moving average of the gradient, a tree like the parameters, in their dtypes.
      nu: moving average of the squared gradient, likewise.
    """

    count: Array
    mu: Params
    nu: Params


@explained
def adam(
    learning_rate: ScalarOrSchedule | None = None,
    b1: ScalarOrSchedule = 0.9,
    b2: ScalarOrSchedule = 0.999,
    eps: ScalarOrSchedule = 1e-8,
    weight_decay: ScalarOrSchedule = 0.0,
) -> ExactTransformation:
    """Adam with decoupled weight decay, both scaled by the learning rate.

    The order differs from Optax's: `(lr * m) / d` where `optax.adam` has `lr * (m / d)`, and the
    bias correction is taken in the parameter's dtype. In float32 that is rounding; in bfloat16 the
    legacy optimizer may not move at all, because `b2 ** t` rounds to 1.

        >>> tx = optax_bridge.adam(lambda count: 1e-3 / (count + 1), weight_decay=0.1)
        >>> params = {"w": jnp.ones(2)}
        >>> state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
        >>> state.apply_gradients(grads=params, weight_decay=0.2).learning_rate.item()
        0.000500000...

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.
      weight_decay: `learning_rate * weight_decay * p` is subtracted after the step.

    Returns:
      The transformation; bit for bit `flax.optim.Adam` on the exact path.
    """
    return LeafRule(
        AdamState,
        zeros(2),
        _step,
        dict(learning_rate=learning_rate, b1=b1, b2=b2, eps=eps, weight_decay=weight_decay),
        decay="weight_decay",
        apply=minus_and_decay,
        per_dtype=decay_powers,
    ).transformation()


def _step(
    hp: SimpleNamespace, powers: Powers, grad: Array, param: Array, mu: Array, nu: Array
) -> tuple[Array, tuple[Array, Array]]:
    mu = hp.b1 * mu + (1.0 - hp.b1) * grad
    nu = hp.b2 * nu + (1.0 - hp.b2) * jnp.square(grad)
    mu_hat = mu / (1 - powers[0])
    nu_hat = nu / (1 - powers[1])
    return hp.learning_rate * mu_hat / (jnp.sqrt(nu_hat) + hp.eps), (mu, nu)


@explained
def scale_by_adam(
    b1: ScalarOrSchedule = 0.9, b2: ScalarOrSchedule = 0.999, eps: ScalarOrSchedule = 1e-8
) -> optax.GradientTransformation:
    """Rescales updates according to Adam; chain `optax.scale_by_learning_rate` after it.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the root of the second moment.

    Returns:
      The transformation; with the learning rate after it, `adam` up to rounding.
    """
    return direction(adam(-1.0, b1, b2, eps))


_BIAS = differs(
    "the legacy bias correction is computed in the parameters' dtype, where 1 - 0.999 is 0 and the "
    "parameters stand still; Optax computes it in float32"
)
_ZERO_EPS = differs(
    "an epsilon of 1e-8 is 0 there, so that 0 / 0 appears in other places; and the legacy bias "
    "correction is computed in the parameters' dtype"
)
_HALF = {"bfloat16": _BIAS, "float16": _ZERO_EPS}
_MOMENTS = {"b1": s("beta1"), "b2": s("beta2"), "eps": s("eps")}

# Adam, with and without decoupled weight decay, is Optax's adam and adamw up to rounding.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.Adam"),
    port="optax_bridge.adam",
    renamed={"beta1": "b1", "beta2": "b2"},
    within={"beta1": CORRECTED_DECAY, "beta2": CORRECTED_DECAY, "eps": NOT_NEGATIVE},
    state=(
        StateField("grad_ema", exact="AdamState.mu", optax=("ScaleByAdamState.mu",)),
        squares("grad_sq_ema", exact="AdamState.nu", optax=("ScaleByAdamState.nu",)),
    ),
    optax=(
        OptaxRecipe(
            call("optax.adam", learning_rate=s("learning_rate"), **_MOMENTS),
            rounding(
                32,
                "Optax computes lr * (m / d), the legacy optimizer (lr * m) / d",
                **_HALF,
            ),
            when={"weight_decay": 0},
        ),
        OptaxRecipe(
            call(
                "optax.adamw",
                learning_rate=s("learning_rate"),
                **_MOMENTS,
                weight_decay=s("weight_decay"),
            ),
            rounding(
                32,
                "order of operations, and one subtraction instead of two",
                **_HALF,
            ),
        ),
    ),
    cases=(
        Case(),
        Case({"weight_decay": 0.1}),
        Case({"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}),
        Case({"beta1": 0.0, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.01}),
    ),
    notes=(
        "`optax.adamw` decays by 1e-4 unless told otherwise, the legacy optimizer by nothing. In "
        "bfloat16 the legacy bias correction `1 - beta2 ** t` rounds to 0 and the parameters may "
        "never move; Optax computes it in float32, so there the two differ and the exact recipe "
        "repeats the legacy numbers."
    ),
    sources=("flax.optim.adam", "Kingma and Ba 2014, arXiv:1412.6980"),
)
