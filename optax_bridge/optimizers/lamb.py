"""LAMB (You et al. 2019), as `flax.optim.LAMB` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from optax_bridge.correspondence.claim import different
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
    is_zero,
    zeros,
)
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Params


class LambState(NamedTuple):
    """State of `lamb`.

    Attributes:
      count: steps taken, int32 scalar.
      mu: moving average of the gradient, a tree like the parameters, in their dtypes.
      nu: moving average of the squared gradient, likewise.
    """

    count: Array
    mu: Params
    nu: Params


@explained
def lamb(
    learning_rate: ScalarOrSchedule | None = None,
    b1: ScalarOrSchedule = 0.9,
    b2: ScalarOrSchedule = 0.999,
    weight_decay: ScalarOrSchedule = 0,
    eps: ScalarOrSchedule = 1e-6,
) -> ExactTransformation:
    """LAMB with the legacy trust ratio `|p| / |u|`, which is 1 only where *both* norms are zero.

    So a tensor that starts at zero never moves (its ratio is 0), and a zero update of another
    tensor divides by zero. `optax.lamb` uses 1 when either norm is zero: the two differ from the
    first step.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      b1: decay of the first moment.
      b2: decay of the second moment.
      weight_decay: multiple of the parameter that joins the update before its norm is taken.
      eps: added to the root of the second moment.

    Returns:
      The transformation; bit for bit `flax.optim.LAMB`, on either path.
    """
    return LeafRule(
        LambState,
        zeros(2),
        _step,
        dict(learning_rate=learning_rate, b1=b1, b2=b2, weight_decay=weight_decay, eps=eps),
        reads_params=True,
        per_dtype=decay_powers,
    ).transformation()


def _step(
    hp: SimpleNamespace, powers: Powers, grad: Array, param: Array, mu: Array, nu: Array
) -> tuple[Array, tuple[Array, Array]]:
    mu = hp.b1 * mu + (1.0 - hp.b1) * grad
    nu = hp.b2 * nu + (1.0 - hp.b2) * jnp.square(grad)
    mu_hat = mu / (1 - powers[0])
    nu_hat = nu / (1 - powers[1])
    update = mu_hat / (jnp.sqrt(nu_hat) + hp.eps)
    if not is_zero(hp.weight_decay):
        update = update + hp.weight_decay * param
    param_norm, update_norm = jnp.linalg.norm(param), jnp.linalg.norm(update)
    trust_ratio = jnp.where(param_norm + update_norm > 0.0, param_norm / update_norm, 1.0)
    return trust_ratio * hp.learning_rate * update, (mu, nu)


@explained
def scale_by_lamb(
    b1: ScalarOrSchedule = 0.9,
    b2: ScalarOrSchedule = 0.999,
    weight_decay: ScalarOrSchedule = 0,
    eps: ScalarOrSchedule = 1e-6,
) -> optax.GradientTransformation:
    """Rescales updates according to LAMB; chain `optax.scale_by_learning_rate` after it.

    Args:
      b1: decay of the first moment.
      b2: decay of the second moment.
      weight_decay: multiple of the parameter that joins the update before its norm is taken.
      eps: added to the root of the second moment.

    Returns:
      The transformation; with the learning rate after it, `lamb` up to rounding.
    """
    return direction(lamb(-1.0, b1, b2, weight_decay, eps))


# LAMB: Optax guards the trust ratio otherwise, so only the exact recipe is the same optimizer.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.LAMB"),
    port="optax_bridge.lamb",
    renamed={"beta1": "b1", "beta2": "b2"},
    within={"beta1": CORRECTED_DECAY, "beta2": CORRECTED_DECAY, "eps": NOT_NEGATIVE},
    state=(
        StateField("grad_ema", exact="LambState.mu", optax=("ScaleByAdamState.mu",)),
        squares("grad_sq_ema", exact="LambState.nu", optax=("ScaleByAdamState.nu",)),
    ),
    optax=(
        OptaxRecipe(
            call(
                "optax.lamb",
                learning_rate=s("learning_rate"),
                b1=s("beta1"),
                b2=s("beta2"),
                eps=s("eps"),
                weight_decay=s("weight_decay"),
            ),
            different("a tensor that starts at zero never moves here, but does in Optax: no bound"),
        ),
    ),
    cases=(
        Case(),
        Case({"weight_decay": 0.1}),
        Case({"beta1": 0.5, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.01}),
    ),
    notes=(
        "The legacy trust ratio is 1 only where the norms of parameter and update are *both* "
        "zero. A bias that starts at zero has ratio 0 and stays there; `optax.lamb` trains it. If "
        "training must not change, use `optax_bridge.lamb`; for a new run, `optax.lamb` is what "
        "the paper means."
    ),
    sources=("flax.optim.lamb", "You et al. 2019, arXiv:1904.00962"),
)
