"""Lion is Optax's lion without weight decay."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    Stock,
    identical,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call

ENTRY = Entry(
    legacy=LegacyClass("Lion"),
    port="optax_bridge.lion",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta1", "b1", 0.9),
        HyperParam("beta2", "b2", 0.99),
    ),
    state=(StateField("grad_ema", exact="LionState.mu", stock=("ScaleByLionState.mu",)),),
    stock=(
        Stock(
            call(
                "optax.lion",
                learning_rate=s("learning_rate"),
                b1=s("beta1"),
                b2=s("beta2"),
                weight_decay=0.0,
            ),
            identical("the same operations in the same order"),
        ),
    ),
    cases=(Case(), Case({"beta1": 0.5, "beta2": 0.9})),
    notes="`optax.lion` decays weights by 1e-3 unless it is asked not to.",
    sources=("Chen et al. 2023, arXiv:2302.06675",),
)
