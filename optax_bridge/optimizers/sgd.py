# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""Gradient descent, as `flax.optim.GradientDescent` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

from jax import Array

from optax_bridge.correspondence.claim import identical
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, OptaxRecipe
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, zeros
from optax_bridge.exact.transformation import ExactTransformation


class SgdState(NamedTuple):
    """State of `sgd`: `count`, the steps taken (int32 scalar)."""

    count: Array


@explained
def sgd(learning_rate: ScalarOrSchedule | None = None) -> ExactTransformation:
    """Gradient descent: `p - learning_rate * g`.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.

    Returns:
      The transformation; bit for bit `flax.optim.GradientDescent`, on either path.
    """
    return LeafRule(SgdState, zeros(0), _step, {"learning_rate": learning_rate}).transformation()


def _step(hp: SimpleNamespace, count: Array, grad: Array, param: Array) -> tuple[Array, tuple[()]]:
    del count, param
    return hp.learning_rate * grad, ()


# GradientDescent is Optax's sgd without momentum.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.GradientDescent"),
    port="optax_bridge.sgd",
    state=(),
    optax=(
        OptaxRecipe(
            call("optax.sgd", learning_rate=s("learning_rate")),
            identical("one product and one subtraction on both sides"),
        ),
    ),
    cases=(Case(learning_rate=0.1),),
    notes="Nothing changes: both compute `p - learning_rate * g`.",
    sources=("flax.optim.sgd",),
)
