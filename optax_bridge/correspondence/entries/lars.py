"""LARS: without weight decay Optax's is the same up to rounding, with it another optimizer."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    StepBound,
    Stock,
    apart,
    different,
    measured,
    rounding,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE

_LARS = call(
    "optax.lars",
    learning_rate=s("learning_rate"),
    weight_decay=s("weight_decay"),
    trust_coefficient=s("trust_coefficient"),
    eps=s("eps"),
    momentum=s("beta"),
    nesterov=s("nesterov"),
)

# Norms, and so the trust ratio, of tensors that are not nearly 0.
_STEP = StepBound(1.25, {"params": (0.1, 1), "grads": (0.1, 1), "momentum": (-0.01, 0.01)})

ENTRY = Entry(
    legacy=LegacyClass("LARS"),
    port="optax_bridge.lars",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta", "momentum", 0.9, within=DECAY),
        HyperParam("weight_decay", "weight_decay", 0),
        HyperParam("trust_coefficient", "trust_coefficient", 0.001),
        HyperParam("eps", "eps", 0, within=NOT_NEGATIVE),
        HyperParam("nesterov", "nesterov", False),
    ),
    state=(
        StateField("momentum", exact="LarsState.trace", stock=("TraceState.trace",), stock_sign=-1),
    ),
    stock=(
        Stock(
            _LARS,
            rounding(
                8,
                "order of operations only",
                step=_STEP,
                bfloat16=measured(0.44),
                float16=apart(
                    "the norm of a large tensor overflows, and NaN stands in other places"
                ),
            ),
            when={"weight_decay": 0},
        ),
        Stock(
            _LARS,
            different("the trust ratio's denominator: |g| + wd * |p| here, |g + wd * p| in Optax"),
        ),
    ),
    cases=(
        Case(learning_rate=1.0),
        Case({"nesterov": True, "eps": 1e-6, "beta": 0.5}, learning_rate=1.0),
        Case({"weight_decay": 0.1, "trust_coefficient": 0.01}, learning_rate=1.0),
    ),
    notes=(
        "With weight decay the denominators of the trust ratio differ: 1e-3 of the scale in 100 "
        "steps at a rate of 0.01, 0.27 at 1. The trace of `optax.lars` has the opposite sign: "
        "converting a checkpoint flips it."
    ),
    sources=("flax.optim.lars", "You et al. 2017, arXiv:1708.03888"),
)
