"""The optimizers of Keras 3: transformations and entries."""

from collections.abc import Mapping, Sequence
from typing import Any

from optax_bridge.correspondence.claim import Claim, different, differs, identical, rounding
from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    LegacyClass,
    OptaxRecipe,
    StateField,
    Unsupported,
    adamax_note,
    squares,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.recipe import Call, call
from optax_bridge.correspondence.values import CORRECTED_DECAY, DECAY, NOT_NEGATIVE, Range
from optax_bridge.exact.ported import transformation
from optax_bridge.keras import definitions

sgd = transformation(definitions.SGD)
rmsprop = transformation(definitions.RMSprop)
adadelta = transformation(definitions.Adadelta)
adam = transformation(definitions.Adam)
adamw = transformation(definitions.AdamW)
adamax = transformation(definitions.Adamax)
lion = transformation(definitions.Lion)

# Arguments of Keras' constructors that have no place here, and what to know of each.
_BESIDE = {
    "clipnorm": "Keras clips each parameter's gradient by its own norm, which no transformation of "
    "Optax does: scale each gradient before the update",
    "clipvalue": "optax.clip(clipvalue) first in optax.chain is the same",
    "global_clipnorm": "optax.clip_by_global_norm(global_clipnorm) first in optax.chain is the "
    "same but for rounding",
    "use_ema": "keep the average in the program, with optax.incremental_update",
    "ema_momentum": "it belongs to use_ema",
    "ema_overwrite_frequency": "it belongs to use_ema",
    "loss_scale_factor": "divide the gradients by it before the update",
    "gradient_accumulation_steps": "optax.MultiSteps(tx, steps) averages them as well",
    "name": "a name changes no number",
}
_WITHIN = {
    "learning_rate": NOT_NEGATIVE, "momentum": DECAY, "rho": DECAY, "beta_1": CORRECTED_DECAY,
    "beta_2": CORRECTED_DECAY, "epsilon": NOT_NEGATIVE,
    "weight_decay": Range(least=0, or_none=True),
}  # fmt: skip
_HALF = differs("Keras rounds every operation to the parameters' dtype, Optax others")
_ORDER = (
    "Keras' operations on JAX in Keras' order; compiled into one program, XLA fuses some of them"
)
_RATE = {"learning_rate": s("learning_rate")}
_MOMENTS = {"b1": s("beta_1"), "b2": s("beta_2")}
_BY_RATE = call("optax.scale_by_learning_rate", s("learning_rate"))
_DECAY = call("optax.add_decayed_weights", s("weight_decay"))


_SAME = identical("the same operations in the same order")


def _rounding(ulp: float) -> Claim:
    return rounding(ulp, "order of operations only", bfloat16=_HALF, float16=_HALF)


def _with_decay(
    alias: Call, scaling: Sequence[Call], claim: Claim, when: Mapping[str, Any] | None = None
) -> tuple[OptaxRecipe, ...]:
    """The variants of a recipe without and with weight decay, which comes before the rate."""
    when = when or {}
    return (
        OptaxRecipe(alias, claim, {**when, "weight_decay": None}),
        OptaxRecipe(call("optax.chain", *scaling, _DECAY, _BY_RATE), claim, when),
    )


def _entry(
    name: str,
    state: Mapping[str, Sequence[str]],
    optax: tuple[OptaxRecipe, ...],
    cases: Sequence[Mapping[str, Any]],
    notes: str,
    unsupported: tuple[Unsupported, ...] = (),
    *sources: str,
) -> Entry:
    of_squares = ("velocities", "velocity_hats", "norm")
    return Entry(
        legacy=LegacyClass(f"{definitions.__name__}.{name}"),
        port=f"optax_bridge.keras.{name.lower()}",
        extra_arguments=_BESIDE,
        exactness=rounding(8, _ORDER),
        within=_WITHIN,
        state=tuple(
            (squares if field in of_squares or "accumulated" in field else StateField)(
                field, f"Keras{name}State.{field}", tuple(places)
            )
            for field, places in state.items()
        ),
        optax=optax,
        unsupported=unsupported,
        cases=tuple(Case(each) for each in cases),
        notes=notes,
        sources=(f"keras.optimizers.{name}", *sources),
    )


_EPSILON_HAT = different(
    "Keras adds `epsilon` to the root of the second moment before its bias correction, Optax after "
    "it: in the first steps Keras' is up to 30 times as large"
)
_DECOUPLED = "Any Keras optimizer takes a `weight_decay`, and it is decoupled: times the rate."
_ADAM_NOTES = (
    "Keras' `epsilon` of 1e-7 is the one that the paper calls epsilon hat, Optax's 1e-8 is not. "
    "Where gradients are far above both, the two train alike. " + _DECOUPLED
)
_ADAM_STATE = {
    "momentums": ("ScaleByAdamState.mu",),
    "velocities": ("ScaleByAdamState.nu",),
    "velocity_hats": (),
}
_NO_AMSGRAD = Unsupported("amsgrad", False, "Optax takes the maximum after the bias correction.")
_ADAM = call("optax.adam", **_RATE, **_MOMENTS, eps=s("epsilon"))
_RMS = {"decay": s("rho"), "eps": s("epsilon")}

ENTRIES = (
    _entry(
        "SGD",
        {"momentums": ("TraceState.trace",)},
        (
            OptaxRecipe(call("optax.sgd", **_RATE), _SAME, {"momentum": 0, "weight_decay": None}),
            OptaxRecipe(call("optax.chain", _DECAY, _BY_RATE), _rounding(8), {"momentum": 0}),
            OptaxRecipe(
                call("optax.chain", _BY_RATE, call("optax.trace", s("momentum"), s("nesterov"))),
                _SAME,
                {"weight_decay": None},
            ),
        ),
        ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}),
        "Its momentum holds updates, the rate included, so a schedule acts on new gradients alone; "
        "in `optax.sgd(..., momentum=...)` it acts on the whole trace. " + _DECOUPLED,
    ),
    _entry(
        "RMSprop",
        {
            "velocities": ("ScaleByRmsState.nu", "ScaleByRStdDevState.nu"),
            "momentums": ("TraceState.trace",),
            "average_gradients": ("ScaleByRStdDevState.mu",),
        },
        (
            *_with_decay(
                call("optax.rmsprop", **_RATE, **_RMS),
                (call("optax.scale_by_rms", **_RMS),),
                _rounding(16),
                {"momentum": 0, "centered": False},
            ),
            *_with_decay(
                call("optax.rmsprop", **_RATE, **_RMS, centered=True),
                (call("optax.scale_by_stddev", **_RMS),),
                _rounding(16),
                {"momentum": 0, "centered": True},
            ),
            *(
                OptaxRecipe(
                    call(
                        "optax.chain",
                        call(scaling, **_RMS),
                        call("optax.scale_by_learning_rate", s("learning_rate"), flip_sign=False),
                        call("optax.trace", s("momentum")),
                        call("optax.scale", -1.0),
                    ),
                    _rounding(16),
                    {"weight_decay": None, "centered": centered},
                )
                for scaling, centered in (
                    ("optax.scale_by_rms", False),
                    ("optax.scale_by_stddev", True),
                )
            ),
        ),
        (
            {},
            {"rho": 0.5, "epsilon": 1e-3, "weight_decay": 0.1},
            {"momentum": 0.9},
            {"centered": True, "epsilon": 1e-3},
        ),
        "`epsilon` is inside the root, as in `optax.rmsprop` by default. " + _DECOUPLED,
    ),
    _entry(
        "Adadelta",
        {
            "accumulated_grad": ("ScaleByAdaDeltaState.e_g",),
            "accumulated_delta_var": ("ScaleByAdaDeltaState.e_x",),
        },
        _with_decay(
            call("optax.adadelta", **_RATE, rho=s("rho"), eps=s("epsilon")),
            (call("optax.scale_by_adadelta", rho=s("rho"), eps=s("epsilon")),),
            _rounding(16),
        ),
        ({}, {"rho": 0.5, "epsilon": 1e-3, "weight_decay": 0.1}),
        "`optax.adadelta` has `rho=0.9` and `eps=1e-6` by default, and adds its `weight_decay` to "
        "the gradient. " + _DECOUPLED,
    ),
    _entry(
        "Adam",
        _ADAM_STATE,
        _with_decay(
            _ADAM,
            (call("optax.scale_by_adam", **_MOMENTS, eps=s("epsilon")),),
            _EPSILON_HAT,
        ),
        (
            {},
            {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3, "weight_decay": 0.1},
            {"amsgrad": True},
        ),
        _ADAM_NOTES,
        (_NO_AMSGRAD,),
    ),
    _entry(
        "AdamW",
        _ADAM_STATE,
        (
            OptaxRecipe(
                call(
                    "optax.adamw",
                    **_RATE,
                    **_MOMENTS,
                    eps=s("epsilon"),
                    weight_decay=s("weight_decay"),
                ),
                _EPSILON_HAT,
            ),
        ),
        (
            {},
            {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3, "weight_decay": 0.1},
            {"amsgrad": True},
        ),
        "`optax.adamw` decays by 1e-4 where Keras decays by 0.004. " + _ADAM_NOTES,
        (_NO_AMSGRAD,),
    ),
    _entry(
        "Adamax",
        {"momentums": (), "norm": ()},
        (),
        ({}, {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3, "weight_decay": 0.1}),
        adamax_note("Keras", "epsilon") + _DECOUPLED,
    ),
    _entry(
        "Lion",
        {"momentums": ("ScaleByLionState.mu",)},
        _with_decay(
            call("optax.lion", **_RATE, **_MOMENTS, weight_decay=0.0),
            (call("optax.scale_by_lion", **_MOMENTS),),
            _rounding(16),
        ),
        ({}, {"beta_1": 0.5, "beta_2": 0.9, "weight_decay": 0.1}),
        "`optax.lion` has a `weight_decay` of 1e-3 by default, Keras none. " + _DECOUPLED,
    ),
)
