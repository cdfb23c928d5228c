"""Adam, with and without decoupled weight decay, is Optax's adam and adamw up to rounding."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    StepBound,
    Stock,
    apart,
    rounding,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import CORRECTED_DECAY, NOT_NEGATIVE

_STEP = StepBound(2.75, {"grad_ema": (-1, 1), "grad_sq_ema": (0.01, 1)})
_BIAS = apart(
    "the legacy bias correction is computed in the parameters' dtype, where 1 - 0.999 is 0 and the "
    "parameters stand still; Optax computes it in float32"
)
_ZERO_EPS = apart(
    "an epsilon of 1e-8 is 0 there, so that 0 / 0 stands in other places; and the legacy bias "
    "correction is computed in the parameters' dtype"
)
_HALF = {"bfloat16": _BIAS, "float16": _ZERO_EPS}
_MOMENTS = {"b1": s("beta1"), "b2": s("beta2"), "eps": s("eps")}

ENTRY = Entry(
    legacy=LegacyClass("Adam"),
    port="optax_bridge.adam",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta1", "b1", 0.9, within=CORRECTED_DECAY),
        HyperParam("beta2", "b2", 0.999, within=CORRECTED_DECAY),
        HyperParam("eps", "eps", 1e-8, within=NOT_NEGATIVE),
        HyperParam("weight_decay", "weight_decay", 0.0),
    ),
    state=(
        StateField("grad_ema", exact="AdamState.mu", stock=("ScaleByAdamState.mu",)),
        StateField("grad_sq_ema", exact="AdamState.nu", stock=("ScaleByAdamState.nu",)),
    ),
    stock=(
        Stock(
            call("optax.adam", learning_rate=s("learning_rate"), **_MOMENTS),
            rounding(
                32,
                "Optax computes lr * (m / d), the legacy optimizer (lr * m) / d",
                step=_STEP,
                **_HALF,
            ),
            when={"weight_decay": 0},
        ),
        Stock(
            call(
                "optax.adamw",
                learning_rate=s("learning_rate"),
                **_MOMENTS,
                weight_decay=s("weight_decay"),
            ),
            rounding(
                32,
                "order of operations, and one subtraction instead of two",
                step=_STEP,
                **_HALF,
            ),
        ),
    ),
    cases=(
        Case(),
        Case({"weight_decay": 0.1}),
        Case({"beta1": 0.5, "beta2": 0.9, "eps": 1e-3}),
        Case({"beta1": 0.0, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.01}),
    ),
    notes=(
        "`optax.adamw` decays by 1e-4 unless told otherwise, the legacy optimizer by nothing. In "
        "bfloat16 the legacy bias correction `1 - beta2 ** t` rounds to 0 and the parameters may "
        "never move; Optax computes it in float32, so there the two differ and the exact recipe "
        "repeats the legacy numbers."
    ),
    sources=("flax.optim.adam", "Kingma and Ba 2014, arXiv:1412.6980"),
)
