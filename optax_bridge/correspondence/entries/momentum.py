"""Momentum is Optax's sgd with momentum; its weight decay stands before the trace."""

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
from optax_bridge.correspondence.values import DECAY

_SGD = call(
    "optax.sgd",
    learning_rate=s("learning_rate"),
    momentum=s("beta"),
    nesterov=s("nesterov"),
)

_SAME = identical(
    "the same operations in the same order; compiled into one program with a model, XLA may fuse "
    "them otherwise: 1 ULP seen"
)

ENTRY = Entry(
    legacy=LegacyClass("Momentum"),
    port="optax_bridge.momentum",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("beta", "decay", 0.9, within=DECAY),
        HyperParam("weight_decay", "weight_decay", 0),
        HyperParam("nesterov", "nesterov", False),
    ),
    state=(StateField("momentum", exact="MomentumState.trace", stock=("TraceState.trace",)),),
    stock=(
        Stock(_SGD, _SAME, when={"weight_decay": 0}),
        Stock(
            call("optax.chain", call("optax.add_decayed_weights", s("weight_decay")), _SGD),
            _SAME,
        ),
    ),
    cases=(
        Case(),
        Case({"nesterov": True}),
        Case({"beta": 0.5, "weight_decay": 0.01}),
        Case({"beta": 0.99, "weight_decay": 0.1, "nesterov": True}),
    ),
    notes=(
        "`beta` defaults to 0.9; `optax.sgd` has no momentum unless you give it. Weight decay is "
        "*coupled*: it is added to the gradient before the momentum, so "
        "`optax.add_decayed_weights` comes first in the chain."
    ),
    sources=("flax.optim.momentum", "Sutskever et al. 2013"),
)
