"""GradientDescent is Optax's sgd without momentum."""

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    Stock,
    identical,
    setting,
)
from optax_bridge.correspondence.recipe import call

ENTRY = Entry(
    legacy=LegacyClass("GradientDescent"),
    port="optax_bridge.sgd",
    hyper_params=(HyperParam("learning_rate", "learning_rate", None),),
    state=(),
    stock=(
        Stock(
            call("optax.sgd", learning_rate=setting("learning_rate")),
            identical("one product and one subtraction on both sides"),
        ),
    ),
    cases=(Case(learning_rate=0.1),),
    notes="Nothing changes: both compute `p - learning_rate * g`.",
    sources=("flax.optim.sgd",),
)
