"""Lion (Chen et al. 2023)."""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from optax_bridge.correspondence.claim import rounding
from optax_bridge.correspondence.entry import Case, Entry, LegacyClass, OptaxRecipe, StateField
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule, zeros
from optax_bridge.exact.transformation import ExactTransformation


class LionState(NamedTuple):
    """State of `lion`."""

    count: jax.Array
    mu: Any


@explained
def lion(
    learning_rate: ScalarOrSchedule | None = None,
    b1: ScalarOrSchedule = 0.9,
    b2: ScalarOrSchedule = 0.99,
) -> ExactTransformation:
    """Lion: the sign of an average of gradients."""
    return LeafRule(
        LionState, zeros(1), _step, dict(learning_rate=learning_rate, b1=b1, b2=b2)
    ).transformation()


def _step(
    hp: SimpleNamespace, count: jax.Array, grad: Any, param: Any, mu: Any
) -> tuple[Any, tuple[Any]]:
    del count, param
    direction = jnp.sign((1.0 - hp.b1) * grad + hp.b1 * mu)
    return hp.learning_rate * direction, ((1.0 - hp.b2) * grad + hp.b2 * mu,)


ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.Lion"),
    port="optax_bridge.lion",
    renamed={"beta1": "b1", "beta2": "b2"},
    state=(StateField("grad_ema", exact="LionState.mu", optax=("ScaleByLionState.mu",)),),
    optax=(
        OptaxRecipe(
            call(
                "optax.lion",
                learning_rate=s("learning_rate"),
                b1=s("beta1"),
                b2=s("beta2"),
                weight_decay=0.0,
            ),
            rounding(
                1, "`optax.lion` adds zero times the parameters, which changes no finite number"
            ),
        ),
    ),
    cases=(Case(), Case({"beta1": 0.5, "beta2": 0.9})),
    notes="`optax.lion` decays weights by 1e-3 unless it is asked not to.",
    sources=("Chen et al. 2023, arXiv:2302.06675",),
)
