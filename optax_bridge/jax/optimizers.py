"""The optimizers of `jax.example_libraries.optimizers`: transformations and entries."""

from optax_bridge.correspondence.claim import Claim, differs, identical, rounding
from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    LegacyClass,
    OptaxRecipe,
    StateField,
    adamax_note,
    squares,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import Call, call
from optax_bridge.correspondence.values import CORRECTED_DECAY, DECAY, NOT_NEGATIVE
from optax_bridge.exact.ported import transformation
from optax_bridge.jax import definitions

sgd = transformation(definitions.sgd)
momentum = transformation(definitions.momentum)
nesterov = transformation(definitions.nesterov)
adagrad = transformation(definitions.adagrad)
rmsprop = transformation(definitions.rmsprop)
rmsprop_momentum = transformation(definitions.rmsprop_momentum)
adam = transformation(definitions.adam)
adamax = transformation(definitions.adamax)

_WITHIN = {
    "step_size": NOT_NEGATIVE, "mass": DECAY, "momentum": DECAY, "gamma": DECAY,
    "b1": CORRECTED_DECAY, "b2": CORRECTED_DECAY, "eps": NOT_NEGATIVE,
}  # fmt: skip
_RATE = {"learning_rate": s("step_size")}
_RMS = {"decay": s("gamma"), "eps": s("eps")}
_MOMENTS = {"b1": s("b1"), "b2": s("b2"), "eps": s("eps")}
_SAME = identical("the same operations in the same order")
_HALF = differs("JAX rounds every operation to the parameters' dtype, Optax others")
_BIAS = differs(
    "JAX computes the bias correction `1 - b ** t` in the parameters' dtype, where it may be 0: "
    "then they stand still, or become NaN"
)


def _rounding(ulp: float, why: str) -> Claim:
    return rounding(ulp, why, bfloat16=_HALF, float16=_HALF)


def _entry(
    name: str,
    state: tuple[StateField, ...],
    recipe: Call | None,
    claim: Claim,
    cases: tuple[Case, ...],
    notes: str,
    *sources: str,
) -> Entry:
    return Entry(
        legacy=LegacyClass(f"{definitions.__name__}.{name}"),
        port=f"optax_bridge.jax.{name}",
        within=_WITHIN,
        state=state,
        optax=() if recipe is None else (OptaxRecipe(recipe, claim),),
        cases=cases,
        notes=notes,
        sources=(f"jax.example_libraries.optimizers.{name}", *sources),
        exactness=identical("JAX's own functions, which still have the example optimizers"),
    )


ENTRIES = (
    _entry(
        "sgd",
        (),
        call("optax.sgd", **_RATE),
        _SAME,
        (Case(),),
        "Nothing to know: `optax.sgd` is the same.",
    ),
    _entry(
        "momentum",
        (StateField("velocity", "JaxMomentumState.velocity", ("TraceState.trace",)),),
        call("optax.sgd", **_RATE, momentum=s("mass")),
        _SAME,
        (Case({"mass": 0.9}), Case({"mass": 0.5})),
        "`optax.sgd` has no momentum unless it is given one.",
    ),
    _entry(
        "nesterov",
        (StateField("velocity", "JaxNesterovState.velocity", ("TraceState.trace",)),),
        call("optax.sgd", **_RATE, momentum=s("mass"), nesterov=True),
        _SAME,
        (Case({"mass": 0.9}), Case({"mass": 0.5})),
        "`optax.sgd` has no momentum unless it is given one.",
    ),
    _entry(
        "adagrad",
        (
            squares("g_sq", "JaxAdagradState.g_sq", ("ScaleByRssState.sum_of_squares",)),
            StateField("m", "JaxAdagradState.m", ("EmaState.ema",)),
        ),
        call(
            "optax.chain",
            call("optax.scale_by_rss", initial_accumulator_value=0.0, eps=0.0),
            call("optax.ema", s("momentum"), debias=False),
            call("optax.scale_by_learning_rate", s("step_size")),
        ),
        _rounding(8, "Optax multiplies by the reciprocal root"),
        (Case(), Case({"momentum": 0.5}), Case({"momentum": 0.0})),
        "It averages the scaled gradients with `momentum=0.9`, which `optax.adagrad` does not. "
        "That one also begins with an accumulator of 0.1 and adds `eps` inside the root: it is "
        "another optimizer.",
        "Duchi et al. 2011",
    ),
    _entry(
        "rmsprop",
        (squares("avg_sq_grad", "JaxRmspropState.avg_sq_grad", ("ScaleByRmsState.nu",)),),
        call("optax.rmsprop", **_RATE, **_RMS),
        _rounding(8, "Optax multiplies by the reciprocal root"),
        (Case(), Case({"gamma": 0.5, "eps": 1e-3})),
        "`eps` is inside the root, as in `optax.rmsprop` by default.",
        "Tieleman and Hinton 2012",
    ),
    _entry(
        "rmsprop_momentum",
        (
            squares("avg_sq_grad", "JaxRmsprop_momentumState.avg_sq_grad", ("ScaleByRmsState.nu",)),
            StateField("mom", "JaxRmsprop_momentumState.mom", ("TraceState.trace",)),
        ),
        call(
            "optax.chain",
            call("optax.scale_by_rms", **_RMS),
            call("optax.scale_by_learning_rate", s("step_size"), flip_sign=False),
            call("optax.trace", s("momentum")),
            call("optax.scale", -1.0),
        ),
        _rounding(8, "Optax multiplies by the reciprocal root"),
        (Case(), Case({"gamma": 0.5, "eps": 1e-3, "momentum": 0.5})),
        "The rate is applied before the momentum, so that a schedule acts on new gradients alone. "
        "`optax.rmsprop(..., momentum=...)` is the same, but for the sign of its trace.",
        "Tieleman and Hinton 2012",
    ),
    _entry(
        "adam",
        (
            StateField("m", "JaxAdamState.m", ("ScaleByAdamState.mu",)),
            squares("v", "JaxAdamState.v", ("ScaleByAdamState.nu",)),
        ),
        call("optax.adam", **_RATE, **_MOMENTS),
        rounding(8, "order of operations only", bfloat16=_BIAS, float16=_BIAS),
        (Case(), Case({"b1": 0.5, "b2": 0.9, "eps": 1e-3})),
        "With a step count that is a Python number, in a step that is not compiled, JAX computes "
        "the bias corrections by multiplication: 6e-6 apart from the compiled step after 50 steps. "
        "The recipes follow the compiled one.",
        "Kingma and Ba 2014, arXiv:1412.6980",
    ),
    _entry(
        "adamax",
        (
            StateField("m", "JaxAdamaxState.m"),
            squares("u", "JaxAdamaxState.u"),
        ),
        None,
        _SAME,
        (Case(), Case({"b1": 0.5, "b2": 0.9, "eps": 1e-3})),
        adamax_note("JAX", "eps") + "The step count is as in `adam`.",
        "Kingma and Ba 2014, arXiv:1412.6980",
    ),
)
