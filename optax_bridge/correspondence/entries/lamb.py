"""LAMB: Optax guards the trust ratio otherwise, so only the exact recipe is the same optimizer."""

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
from optax_bridge.correspondence.values import CORRECTED_DECAY, NOT_NEGATIVE

ENTRY = Entry(
    legacy=LegacyClass("LAMB"),
    port="optax_bridge.lamb",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta1", "b1", 0.9, within=CORRECTED_DECAY),
        HyperParam("beta2", "b2", 0.999, within=CORRECTED_DECAY),
        HyperParam("weight_decay", "weight_decay", 0),
        HyperParam("eps", "eps", 1e-6, within=NOT_NEGATIVE),
    ),
    state=(
        StateField("grad_ema", exact="LambState.mu", stock=("ScaleByAdamState.mu",)),
        StateField("grad_sq_ema", exact="LambState.nu", stock=("ScaleByAdamState.nu",)),
    ),
    stock=(
        Stock(
            call(
                "optax.lamb",
                learning_rate=s("learning_rate"),
                b1=s("beta1"),
                b2=s("beta2"),
                eps=s("eps"),
                weight_decay=s("weight_decay"),
            ),
            different(
                "a tensor that starts at zero never moves here, and does in Optax: unbounded"
            ),
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
