# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""AdaBelief (Zhuang et al. 2020), as `flax.optim.AdaBelief` computes it."""

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


class AdaBeliefState(NamedTuple):
    """State of `adabelief`.

    Attributes:
      count: steps taken, int32 scalar.
      mu: moving average of the gradient, a tree like the parameters, in their dtypes.
      nu: moving average of the squared surprise `(g - mu)**2`, plus `eps` at every step.
    """

    count: Array
    mu: Params
    nu: Params


@explained
def adabelief(
    learning_rate: ScalarOrSchedule | None = None,
    b1: ScalarOrSchedule = 0.9,
    b2: ScalarOrSchedule = 0.999,
    eps: ScalarOrSchedule = 1e-16,
    weight_decay: ScalarOrSchedule = 0.0,
) -> ExactTransformation:
    """AdaBelief with decoupled weight decay; one `eps` acts inside and outside the root.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: added to the second moment at every step and to its root. Optax has two
        arguments for that, `eps` and `eps_root`.
      weight_decay: `learning_rate * weight_decay * p` is subtracted after the step.

    Returns:
      The transformation; bit for bit `flax.optim.AdaBelief` on the exact path.
    """
    return LeafRule(
        AdaBeliefState,
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
    nu = hp.b2 * nu + (1.0 - hp.b2) * jnp.square(grad - mu) + hp.eps
    mu_hat = mu / (1 - powers[0])
    nu_hat = nu / (1 - powers[1])
    return hp.learning_rate * mu_hat / (jnp.sqrt(nu_hat) + hp.eps), (mu, nu)


@explained
def scale_by_adabelief(
    b1: ScalarOrSchedule = 0.9, b2: ScalarOrSchedule = 0.999, eps: ScalarOrSchedule = 1e-16
) -> optax.GradientTransformation:
    """Rescales updates according to AdaBelief; chain `optax.scale_by_learning_rate` after it.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      eps: acts inside and outside the root.

    Returns:
      The transformation; with the learning rate after it, `adabelief` up to rounding.
    """
    return direction(adabelief(-1.0, b1, b2, eps))


_BIAS = differs(
    "the legacy bias correction is computed in the parameters' dtype, where 1 - 0.999 is 0 and the "
    "parameters stand still; Optax computes it in float32"
)
_HALF = {"bfloat16": _BIAS, "float16": _BIAS}
_MOMENTS = {"b1": s("beta1"), "b2": s("beta2"), "eps": s("eps"), "eps_root": s("eps")}

# AdaBelief is Optax's adabelief with one epsilon in both places.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.AdaBelief"),
    port="optax_bridge.adabelief",
    renamed={"beta1": "b1", "beta2": "b2"},
    within={"beta1": CORRECTED_DECAY, "beta2": CORRECTED_DECAY, "eps": NOT_NEGATIVE},
    state=(
        StateField("grad_ema", exact="AdaBeliefState.mu", optax=("ScaleByBeliefState.mu",)),
        squares("grad_sq_ema", exact="AdaBeliefState.nu", optax=("ScaleByBeliefState.nu",)),
    ),
    optax=(
        OptaxRecipe(
            call("optax.adabelief", learning_rate=s("learning_rate"), **_MOMENTS),
            rounding(
                32,
                "order of operations only",
                **_HALF,
            ),
            when={"weight_decay": 0},
        ),
        OptaxRecipe(
            call(
                "optax.chain",
                call("optax.scale_by_belief", **_MOMENTS),
                call("optax.add_decayed_weights", s("weight_decay")),
                call("optax.scale_by_learning_rate", s("learning_rate")),
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
        Case({"eps": 1e-8, "weight_decay": 0.1}),
        Case({"beta1": 0.5, "beta2": 0.9, "eps": 1e-6}),
    ),
    notes=(
        "The legacy `eps` acts inside *and* outside the root: set `eps` and `eps_root` of Optax "
        "both. At 1e-8 the trajectories part by 2 % if only one is set."
    ),
    sources=("flax.optim.adabelief", "Zhuang et al. 2020, arXiv:2010.07468"),
)
