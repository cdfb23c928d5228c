"""WeightNorm wraps another optimizer; Optax has no equal."""

import operator

import legacy_optim
from optax_bridge.correspondence.entry import (
    RATE,
    Case,
    Entry,
    HyperParam,
    StateField,
    rounding,
)
from optax_bridge.correspondence.recipe import call

ENTRY = Entry(
    legacy=legacy_optim.WeightNorm,
    port="optax_bridge.weight_norm",
    hyper_params=(
        HyperParam("wrapped_optimizer", "inner", getter=operator.attrgetter("wrapped_optimizer")),
        HyperParam("wn_decay", "wn_decay", 0),
        HyperParam("wn_eps", "wn_eps", 1e-8),
    ),
    state=(
        StateField("direction", exact="WeightNormState.direction"),
        StateField("scale", exact="WeightNormState.scale"),
    ),
    stock=(),
    cases=(
        Case({"wrapped_optimizer": call("legacy_optim.Momentum", learning_rate=RATE)}),
        Case(
            {
                "wrapped_optimizer": call(
                    "legacy_optim.Adam", learning_rate=RATE, weight_decay=0.01
                ),
                "wn_decay": 0.1,
            }
        ),
        Case(
            {
                "wrapped_optimizer": call("legacy_optim.GradientDescent", learning_rate=RATE),
                "wn_eps": 1e-3,
            }
        ),
    ),
    notes=(
        "Optax has no weight normalisation of parameters. The state holds directions and scales, "
        "and the new parameters come from them, not from the old ones: whatever else changes the "
        "parameters is undone by the next step, as it always was."
    ),
    sources=("flax.optim.weight_norm", "Salimans and Kingma 2016, arXiv:1602.07868"),
    around=rounding(
        64, "XLA compiles the step together with the normalisation, and rounds otherwise; 17 seen"
    ),
    dropped={
        "direction_state": "belongs to the wrapped optimizer, whose entry maps it",
        "scale_state": "belongs to the wrapped optimizer, whose entry maps it",
    },
)
