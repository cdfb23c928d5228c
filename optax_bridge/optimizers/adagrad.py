# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""Adagrad (Duchi et al. 2011), as `flax.optim.Adagrad` computes it."""

from types import SimpleNamespace
from typing import NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from optax_bridge.correspondence.claim import different
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, OptaxRecipe, squares
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, direction, zeros
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Params


class AdagradState(NamedTuple):
    """State of `adagrad`.

    Attributes:
      count: steps taken, int32 scalar.
      sum_of_squares: sum of the squared gradients, a tree like the parameters, in their dtypes.
    """

    count: Array
    sum_of_squares: Params


@explained
def adagrad(
    learning_rate: ScalarOrSchedule | None = None, eps: ScalarOrSchedule = 1e-8
) -> ExactTransformation:
    """Adagrad whose accumulator starts at zero and whose `eps` is outside the root.

    `optax.adagrad` has it inside: no setting of that alias gives these numbers.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      eps: added to the root of the accumulated squares.

    Returns:
      The transformation; bit for bit `flax.optim.Adagrad`, on either path.
    """
    return LeafRule(
        AdagradState,
        zeros(1),
        _step,
        dict(learning_rate=learning_rate, eps=eps),
    ).transformation()


def _step(
    hp: SimpleNamespace, count: Array, grad: Array, param: Array, sum_of_squares: Array
) -> tuple[Array, tuple[Array]]:
    del count, param
    sum_of_squares = sum_of_squares + jnp.square(grad)
    return hp.learning_rate * grad / (jnp.sqrt(sum_of_squares) + hp.eps), (sum_of_squares,)


@explained
def scale_by_adagrad(eps: ScalarOrSchedule = 1e-8) -> optax.GradientTransformation:
    """Rescales updates according to Adagrad; chain `optax.scale_by_learning_rate` after it.

    Args:
      eps: added to the root of the accumulated squares.

    Returns:
      The transformation; with the learning rate after it, `adagrad` up to rounding.
    """
    return direction(adagrad(-1.0, eps))


# Adagrad: Optax has epsilon inside the root, so only the exact recipe is the same.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.Adagrad"),
    port="optax_bridge.adagrad",
    within={"eps": NOT_NEGATIVE},
    state=(
        squares(
            "G", exact="AdagradState.sum_of_squares", optax=("ScaleByRssState.sum_of_squares",)
        ),
    ),
    optax=(
        OptaxRecipe(
            call(
                "optax.adagrad",
                learning_rate=s("learning_rate"),
                initial_accumulator_value=0.0,
                eps=s("eps"),
            ),
            different(
                "eps outside the root here, inside in Optax: on unit normal gradients 1.5e-2 of "
                "the scale in 100 steps"
            ),
        ),
    ),
    cases=(Case(learning_rate=0.1), Case({"eps": 1e-3}, learning_rate=0.1)),
    notes=(
        "`optax.adagrad` starts its accumulator at 0.1 and has `eps` inside the root; no setting "
        "of it gives the legacy numbers. Use `optax_bridge.adagrad`."
    ),
    sources=("flax.optim.adagrad", "Duchi et al. 2011"),
)
