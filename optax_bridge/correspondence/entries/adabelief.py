"""AdaBelief is Optax's adabelief with one epsilon in both places."""

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
_HALF = {"bfloat16": _BIAS, "float16": _BIAS}
_MOMENTS = {"b1": s("beta1"), "b2": s("beta2"), "eps": s("eps"), "eps_root": s("eps")}

ENTRY = Entry(
    legacy=LegacyClass("AdaBelief"),
    port="optax_bridge.adabelief",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta1", "b1", 0.9, within=CORRECTED_DECAY),
        HyperParam("beta2", "b2", 0.999, within=CORRECTED_DECAY),
        HyperParam("eps", "eps", 1e-16, within=NOT_NEGATIVE),
        HyperParam("weight_decay", "weight_decay", 0.0),
    ),
    state=(
        StateField("grad_ema", exact="AdaBeliefState.mu", stock=("ScaleByBeliefState.mu",)),
        StateField("grad_sq_ema", exact="AdaBeliefState.nu", stock=("ScaleByBeliefState.nu",)),
    ),
    stock=(
        Stock(
            call("optax.adabelief", learning_rate=s("learning_rate"), **_MOMENTS),
            rounding(
                32,
                "order of operations only",
                step=_STEP,
                **_HALF,
            ),
            when={"weight_decay": 0},
        ),
        Stock(
            call(
                "optax.chain",
                call("optax.scale_by_belief", **_MOMENTS),
                call("optax.add_decayed_weights", s("weight_decay")),
                call("optax.scale_by_learning_rate", s("learning_rate")),
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
        Case({"eps": 1e-8, "weight_decay": 0.1}),
        Case({"beta1": 0.5, "beta2": 0.9, "eps": 1e-6}),
    ),
    notes=(
        "The legacy `eps` acts inside *and* outside the root: set `eps` and `eps_root` of Optax "
        "both. At 1e-8 the trajectories part by 2 % if only one is set."
    ),
    sources=("flax.optim.adabelief", "Zhuang et al. 2020, arXiv:2010.07468"),
)
