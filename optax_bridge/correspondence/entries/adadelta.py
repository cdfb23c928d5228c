"""Adadelta is Optax's scale_by_adadelta with the weight decay behind it."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    StepBound,
    Stock,
    measured,
    rounding,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE

_STEP = StepBound(3.75, {"sq_avg": (0.01, 1), "acc_delta": (0, 0.01)})

ENTRY = Entry(
    legacy=LegacyClass("Adadelta"),
    port="optax_bridge.adadelta",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("rho", "rho", 0.9, within=DECAY),
        HyperParam("eps", "eps", 1e-6, within=NOT_NEGATIVE),
        HyperParam("weight_decay", "weight_decay", 0.0),
    ),
    state=(
        StateField("sq_avg", exact="AdadeltaState.e_g", stock=("ScaleByAdaDeltaState.e_g",)),
        StateField("acc_delta", exact="AdadeltaState.e_x", stock=("ScaleByAdaDeltaState.e_x",)),
    ),
    stock=(
        Stock(
            call(
                "optax.adadelta",
                learning_rate=s("learning_rate"),
                rho=s("rho"),
                eps=s("eps"),
            ),
            rounding(
                32,
                "order of operations only",
                step=_STEP,
                bfloat16=measured(0),
                float16=measured(16),
            ),
            when={"weight_decay": 0},
        ),
        Stock(
            call(
                "optax.chain",
                call("optax.scale_by_adadelta", rho=s("rho"), eps=s("eps")),
                call("optax.add_decayed_weights", s("weight_decay")),
                call("optax.scale_by_learning_rate", s("learning_rate")),
            ),
            rounding(
                32,
                "order of operations, and one subtraction instead of two",
                step=_STEP,
                bfloat16=measured(36),
                float16=measured(50),
            ),
        ),
    ),
    cases=(
        Case(learning_rate=1.0),
        Case({"rho": 0.5, "eps": 1e-3}, learning_rate=0.5),
        Case({"rho": 0.99, "weight_decay": 0.1}, learning_rate=0.5),
    ),
    notes=(
        "Legacy weight decay is decoupled; `optax.adadelta(weight_decay=...)` couples it with the "
        "gradient, which is another optimizer. Put `optax.add_decayed_weights` behind "
        "`optax.scale_by_adadelta`."
    ),
    sources=("flax.optim.adadelta", "Zeiler 2012, arXiv:1212.5701"),
)
