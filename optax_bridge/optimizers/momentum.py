# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""Heavy-ball and Nesterov momentum, as `flax.optim.Momentum` computes them."""

from types import SimpleNamespace
from typing import NamedTuple

from jax import Array

from optax_bridge.correspondence.claim import identical
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, OptaxRecipe, StateField
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, is_zero, zeros
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Params


class MomentumState(NamedTuple):
    """State of `momentum`.

    Attributes:
      count: steps taken, int32 scalar.
      trace: the accumulated gradient, a tree like the parameters.
    """

    count: Array
    trace: Params


@explained
def momentum(
    learning_rate: ScalarOrSchedule | None = None,
    decay: ScalarOrSchedule = 0.9,
    weight_decay: ScalarOrSchedule = 0,
    nesterov: bool = False,
) -> ExactTransformation:
    """Momentum with coupled weight decay: the decay joins the gradient *before* the trace.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      decay: factor by which the trace decays at each step.
      weight_decay: multiple of the parameter that is added to the gradient.
      nesterov: looks one step ahead (Sutskever et al. 2013).

    Returns:
      The transformation; bit for bit `flax.optim.Momentum`, on either path.
    """
    return LeafRule(
        MomentumState,
        zeros(1),
        _step,
        dict(
            learning_rate=learning_rate, decay=decay, weight_decay=weight_decay, nesterov=nesterov
        ),
        decay="weight_decay",
    ).transformation()


def _step(
    hp: SimpleNamespace, count: Array, grad: Array, param: Array, trace: Array
) -> tuple[Array, tuple[Array]]:
    del count
    if not is_zero(hp.weight_decay):
        grad = grad + hp.weight_decay * param
    trace = hp.decay * trace + grad
    direction = grad + hp.decay * trace if hp.nesterov else trace
    return hp.learning_rate * direction, (trace,)


_SGD = call(
    "optax.sgd",
    learning_rate=s("learning_rate"),
    momentum=s("beta"),
    nesterov=s("nesterov"),
)

_SAME = identical(
    "the same operations in the same order; compiled into one program with a model, XLA may fuse "
    "them otherwise: 1 ULP seen"
)

# Momentum is Optax's sgd with momentum; its weight decay stands before the trace.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.Momentum"),
    port="optax_bridge.momentum",
    renamed={"beta": "decay"},
    within={"beta": DECAY},
    state=(StateField("momentum", exact="MomentumState.trace", optax=("TraceState.trace",)),),
    optax=(
        OptaxRecipe(_SGD, _SAME, when={"weight_decay": 0}),
        OptaxRecipe(
            call("optax.chain", call("optax.add_decayed_weights", s("weight_decay")), _SGD),
            _SAME,
        ),
    ),
    cases=(
        Case(),
        Case({"nesterov": True}),
        Case({"beta": 0.5, "weight_decay": 0.01}),
        Case({"beta": 0.99, "weight_decay": 0.1, "nesterov": True}),
    ),
    notes=(
        "`beta` defaults to 0.9; `optax.sgd` has no momentum unless you give it. Weight decay is "
        "*coupled*: it is added to the gradient before the momentum, so "
        "`optax.add_decayed_weights` comes first in the chain."
    ),
    sources=("flax.optim.momentum", "Sutskever et al. 2013"),
)
