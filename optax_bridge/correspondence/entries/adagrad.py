"""Adagrad: Optax has epsilon inside the root, so only the exact recipe is the same."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    Stock,
    different,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE

ENTRY = Entry(
    legacy=LegacyClass("Adagrad"),
    port="optax_bridge.adagrad",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("eps", "eps", 1e-8, within=NOT_NEGATIVE),
    ),
    state=(
        StateField(
            "G", exact="AdagradState.sum_of_squares", stock=("ScaleByRssState.sum_of_squares",)
        ),
    ),
    stock=(
        Stock(
            call(
                "optax.adagrad",
                learning_rate=s("learning_rate"),
                initial_accumulator_value=0.0,
                eps=s("eps"),
            ),
            different(
                "eps outside the root here, inside in Optax: 1.5e-2 of the scale in 100 steps"
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
