"""LARS (You et al. 2017), as `flax.optim.LARS` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from optax_bridge.correspondence.claim import (
    by_measurement,
    different,
    differs,
    rounding,
)
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, OptaxRecipe, StateField
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, is_zero, zeros
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Params


class LarsState(NamedTuple):
    """State of `lars`.

    Attributes:
      count: steps taken, int32 scalar.
      trace: the accumulated step, already scaled by the learning rate, a tree like the parameters.
        Its sign is that of the gradient; the trace of `optax.lars` has the opposite one.
    """

    count: Array
    trace: Params


@explained
def lars(
    learning_rate: ScalarOrSchedule | None = None,
    momentum: ScalarOrSchedule = 0.9,
    weight_decay: ScalarOrSchedule = 0,
    trust_coefficient: ScalarOrSchedule = 0.001,
    eps: ScalarOrSchedule = 0,
    nesterov: bool = False,
) -> ExactTransformation:
    """LARS with the legacy trust ratio, `|p|` over `|g| + weight_decay * |p| + eps`.

    `optax.lars` divides by `|g + weight_decay * p| + eps`, which differs unless the weight
    decay is zero.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      momentum: factor by which the trace decays at each step.
      weight_decay: multiple of the parameter that is added to the gradient.
      trust_coefficient: factor of the trust ratio.
      eps: added to the denominator of the trust ratio.
      nesterov: looks one step ahead.

    Returns:
      The transformation; bit for bit `flax.optim.LARS`, on either path.
    """
    return LeafRule(
        LarsState,
        zeros(1),
        _step,
        dict(
            learning_rate=learning_rate,
            momentum=momentum,
            weight_decay=weight_decay,
            trust_coefficient=trust_coefficient,
            eps=eps,
            nesterov=nesterov,
        ),
        reads_params=True,
    ).transformation()


def _step(
    hp: SimpleNamespace, count: Array, grad: Array, param: Array, trace: Array
) -> tuple[Array, tuple[Array]]:
    del count
    param_norm, grad_norm = jnp.linalg.norm(param), jnp.linalg.norm(grad)
    denominator = grad_norm + hp.weight_decay * param_norm + hp.eps
    trust_ratio = hp.trust_coefficient * param_norm / denominator
    undefined = jnp.logical_or(grad_norm == 0.0, param_norm == 0.0)
    scale = hp.learning_rate * jnp.where(undefined, 1.0, trust_ratio)
    if not is_zero(hp.weight_decay):
        grad = grad + hp.weight_decay * param
    scaled = scale * grad
    trace = hp.momentum * trace + scaled
    return scaled + hp.momentum * trace if hp.nesterov else trace, (trace,)


_LARS = call(
    "optax.lars",
    learning_rate=s("learning_rate"),
    weight_decay=s("weight_decay"),
    trust_coefficient=s("trust_coefficient"),
    eps=s("eps"),
    momentum=s("beta"),
    nesterov=s("nesterov"),
)

# LARS: without weight decay Optax's is the same up to rounding, with it another optimizer.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.LARS"),
    port="optax_bridge.lars",
    renamed={"beta": "momentum"},
    within={"beta": DECAY, "eps": NOT_NEGATIVE},
    state=(
        StateField("momentum", exact="LarsState.trace", optax=("TraceState.trace",), optax_sign=-1),
    ),
    optax=(
        OptaxRecipe(
            _LARS,
            rounding(
                8,
                "order of operations only",
                bfloat16=by_measurement(0.44),
                float16=differs(
                    "the norm of a large tensor overflows, and NaN appears in other places"
                ),
            ),
            when={"weight_decay": 0},
        ),
        OptaxRecipe(
            _LARS,
            different("the trust ratio's denominator: |g| + wd * |p| here, |g + wd * p| in Optax"),
        ),
    ),
    cases=(
        Case(learning_rate=1.0),
        Case({"nesterov": True, "eps": 1e-6, "beta": 0.5}, learning_rate=1.0),
        Case({"weight_decay": 0.1, "trust_coefficient": 0.01}, learning_rate=1.0),
    ),
    notes=(
        "With weight decay the denominators of the trust ratio differ: 1e-3 of the scale in 100 "
        "steps at a rate of 0.01, 0.27 at 1. The trace of `optax.lars` has the opposite sign: "
        "converting a checkpoint flips it."
    ),
    sources=("flax.optim.lars", "You et al. 2017, arXiv:1708.03888"),
)
