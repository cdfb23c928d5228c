"""RMSProp is Optax's rmsprop with eps_in_sqrt=False."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    StepBound,
    Stock,
    apart,
    measured,
    rounding,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE

# Where `v` comes near `mg` squared, what is left of their difference has no digits.
_STEP = StepBound(1.6, {"v": (0.01, 1), "mg": (-0.05, 0.05)})

ENTRY = Entry(
    legacy=LegacyClass("RMSProp"),
    port="optax_bridge.rmsprop",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta2", "decay", 0.9, within=DECAY),
        HyperParam("eps", "eps", 1e-8, within=NOT_NEGATIVE),
        HyperParam("centered", "centered", False),
    ),
    state=(
        StateField(
            "v", exact="RMSPropState.nu", stock=("ScaleByRmsState.nu", "ScaleByRStdDevState.nu")
        ),
        StateField("mg", exact="RMSPropState.mu", stock=("ScaleByRStdDevState.mu",)),
    ),
    stock=(
        Stock(
            call(
                "optax.rmsprop",
                learning_rate=s("learning_rate"),
                decay=s("beta2"),
                eps=s("eps"),
                centered=s("centered"),
                eps_in_sqrt=False,
            ),
            rounding(
                32,
                "order of operations only",
                step=_STEP,
                bfloat16=measured(6.5),
                float16=apart("an epsilon of 1e-8 is 0 there, and NaN stands in other places"),
            ),
        ),
    ),
    cases=(
        Case(),
        Case({"centered": True, "eps": 1e-3}),
        Case({"beta2": 0.99, "eps": 1e-6}),
    ),
    notes=(
        "`optax.rmsprop` has `eps` inside the root unless `eps_in_sqrt=False`; without that the "
        "trajectories part by 3.6 %."
    ),
    sources=("flax.optim.rmsprop", "Tieleman and Hinton 2012", "Graves 2013, arXiv:1308.0850"),
)
