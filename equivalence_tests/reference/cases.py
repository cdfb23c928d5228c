"""The table of what is recorded: every case as data, in the words of the legacy constructors.

`tools/record_reference.py` runs this table on the genuine flax.optim with Python 3.10, on the
inputs of `tools/reference_inputs.py`, so nothing here may need a newer Python or another part of
the project. The tests hold the recordings against this table: a case that was added or changed
without recording again is an error there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

# A constructor's arguments, or the description of an optimizer, by name.
Spec = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """One training run that is recorded from the genuine flax.optim."""

    name: str
    optimizer: Spec
    tree: str = "odd"
    stream: str = "hostile"
    rate: str = "constructor"
    peak: tuple[float, ...] = ()
    overrides: Spec = dataclasses.field(default_factory=dict)
    focus: str | None = None
    dtype: str = "float32"
    container: str = "dict"
    jit: bool = True
    bits: bool = False


def _optimizer(name: str, **kwargs: Any) -> Spec:
    return {"class": name, "kwargs": kwargs}


def _weight_norm(wrapped: str, **kwargs: Any) -> Spec:
    """WeightNorm around a class; arguments that begin with `wn_` are its own."""
    outer = {name: value for name, value in kwargs.items() if name.startswith("wn_")}
    inner = {name: value for name, value in kwargs.items() if name not in outer}
    return {"class": "WeightNorm", "wrapped": _optimizer(wrapped, **inner), "kwargs": outer}


def _multi(**groups: Spec) -> Spec:
    pairs = [{"match": f"/{name}$", "optimizer": optimizer} for name, optimizer in groups.items()]
    return {"class": "MultiOptimizer", "groups": pairs, "kwargs": {}}


def _cases(file: str, settings: Mapping[str, tuple[Spec, Spec]], **shared: Any) -> list[Case]:
    """One case for each `setting: (optimizer, other fields)`; `shared` fields hold for all."""
    return [
        Case(f"{file}/{setting}", optimizer, **{**shared, **fields})
        for setting, (optimizer, fields) in settings.items()
    ]


def _set(fields: Spec | None = None, /, **kwargs: Any) -> tuple[Spec, Spec]:
    """One setting of a class: its keyword arguments, and the other fields of the case."""
    return kwargs, dict(fields or {})


def _family(
    file: str, name: str, rate: float, settings: Mapping[str, tuple], **shared: Any
) -> list[Case]:
    """One case for each setting of a class, `rate` the learning rate where a setting has none."""
    table = {}
    for setting, (kwargs, fields) in settings.items():
        default = {} if fields.get("rate") else {"learning_rate": rate}
        table[setting] = (_optimizer(name, **{**default, **kwargs}), fields)
    return _cases(file, table, **shared)


_FEW = {"tree": "few"}
_SCHEDULED = {"rate": "array", "peak": (0.1,)}
_BFLOAT16 = {"dtype": "bfloat16", "stream": "normal"}
# A float32 array times a bfloat16 gradient is float32, so the first step promotes the parameters.
_PROMOTED = {"dtype": "bfloat16", "stream": "short", "rate": "array", "peak": (0.1,)}
_FLOAT16 = {"dtype": "float16", "stream": "normal"}
_DECAY = (0.0, 0.01)
_EAGER = {"jit": False, "stream": "short", "tree": "few"}

# fmt: off
CASES: tuple[Case, ...] = (
    *_family("gradient_descent", "GradientDescent", 0.1, {
        "constant": _set(),
        "scheduled": _set(_SCHEDULED),
        "python_float": _set({"rate": "float", "peak": (0.5,)}),
        "frozen_dict": _set({"container": "frozen_dict", "stream": "short"}),
        "eager": _set(_EAGER),
        "bfloat16": _set(_BFLOAT16),
        "bfloat16_promoted": _set(_PROMOTED),
        # Some processors compute in float16, others in float32 and round.
        "float16": _set({**_FLOAT16, "bits": False}),
    }, bits=True),
    *_family("momentum", "Momentum", 0.1, {
        "defaults": _set(),
        "scheduled": _set(_SCHEDULED),
        "beta": _set(beta=0.5),
        "weight_decay": _set(weight_decay=0.01),
        "nesterov": _set(nesterov=True),
        "all": _set(_SCHEDULED, beta=0.95, weight_decay=0.05, nesterov=True),
        "override": _set({"overrides": {"beta": 0.8, "weight_decay": 0.02}}, beta=0.5),
        "eager": _set(_EAGER),
        "bfloat16": _set(_BFLOAT16, weight_decay=0.01),
        "bfloat16_promoted": _set(_PROMOTED),
    }, bits=True),
    *_family("adam", "Adam", 0.01, {
        "defaults": _set(),
        "scheduled": _set(_SCHEDULED),
        "beta1": _set(_FEW, beta1=0.5),
        "beta1_zero": _set(_FEW, beta1=0.0),
        "beta2": _set(_FEW, beta2=0.9),
        "eps_large": _set(_FEW, eps=0.1),
        "eps_zero": _set({"stream": "sparse"}, eps=0.0),
        "weight_decay": _set(_FEW, weight_decay=0.1),
        "all": _set(_SCHEDULED, beta1=0.8, beta2=0.98, eps=1e-05, weight_decay=0.01),
        "override": _set({**_FEW, "overrides": {"beta2": 0.95, "weight_decay": 0.02}}),
        "focus": _set({"focus": "/(kernel|bias)$", "tree": "layers"}),
        "eager": _set(_EAGER),
        "long": _set({"tree": "pair", "stream": "long", **_SCHEDULED}, weight_decay=0.01),
        "bfloat16": _set(_BFLOAT16),
        "bfloat16_long": _set({"tree": "pair", "stream": "long", "dtype": "bfloat16"}, beta2=0.99),
        "bfloat16_beta2": _set(_BFLOAT16, beta2=0.9, weight_decay=0.1),
        "bfloat16_promoted": _set(_PROMOTED),
        "float16": _set(_FLOAT16),
    }),
    *_family("adabelief", "AdaBelief", 0.01, {
        "defaults": _set(),
        "scheduled": _set(_SCHEDULED),
        "betas": _set(_FEW, beta1=0.5, beta2=0.9),
        "eps": _set(_FEW, eps=1e-08),
        "eps_large": _set(_FEW, eps=0.1),
        "weight_decay": _set(_FEW, weight_decay=0.1),
        "all": _set(_SCHEDULED, beta1=0.8, beta2=0.98, eps=1e-06, weight_decay=0.01),
        "bfloat16": _set(_BFLOAT16, beta2=0.9),
    }),
    *_family("adadelta", "Adadelta", 1.0, {
        "defaults": _set(),
        "scheduled": _set({"rate": "array", "peak": (1.0,)}),
        "rho": _set(_FEW, rho=0.5),
        "eps": _set(_FEW, eps=0.001),
        "weight_decay": _set(_FEW, weight_decay=0.1),
        "all": _set({"rate": "array", "peak": (1.0,)}, rho=0.95, eps=1e-05, weight_decay=0.01),
        "bfloat16": _set(_BFLOAT16),
    }),
    *_family("adafactor", "Adafactor", 0.1, {
        "defaults": _set({"tree": "odd"}),
        "defaults_large": _set({"tree": "tiled", "stream": "short"}),
        "scheduled": _set(_SCHEDULED, min_dim_size_to_factor=3),
        "factored": _set(min_dim_size_to_factor=3),
        "unfactored": _set(factored=False, min_dim_size_to_factor=3),
        "absolute": _set(_FEW, multiply_by_parameter_scale=False, min_dim_size_to_factor=3),
        "beta1": _set(beta1=0.9, min_dim_size_to_factor=3),
        "beta1_bfloat16": _set(beta1=0.9, min_dim_size_to_factor=3, dtype_momentum="bfloat16"),
        "decay_rate": _set(_FEW, decay_rate=0.5, min_dim_size_to_factor=3),
        "step_offset": _set(_FEW, step_offset=-100, min_dim_size_to_factor=3),
        "no_clipping": _set(_FEW, clipping_threshold=None, min_dim_size_to_factor=3),
        "clipping": _set(_FEW, clipping_threshold=0.5, min_dim_size_to_factor=3),
        "weight_decay": _set(weight_decay_rate=0.01, min_dim_size_to_factor=3),
        "epsilon1": _set(_FEW, epsilon1=0.0001, min_dim_size_to_factor=3),
        "epsilon2": _set(_FEW, epsilon2=1.0, min_dim_size_to_factor=3),
        "all": _set({"rate": "array", "peak": (0.01,)}, multiply_by_parameter_scale=False,
            beta1=0.8, decay_rate=0.7, step_offset=-10, clipping_threshold=2.0,
            weight_decay_rate=0.005, min_dim_size_to_factor=4, epsilon1=1e-20, epsilon2=0.01),
        # Zero gradients leave nothing but epsilon1 in the statistics.
        "zero_first": _set({"stream": "zero_first"}, min_dim_size_to_factor=3),
        "eager": _set(_EAGER, min_dim_size_to_factor=3),
        "bfloat16": _set(_BFLOAT16, min_dim_size_to_factor=3, beta1=0.9),
    }, tree="factors"),
    *_family("adagrad", "Adagrad", 0.1, {
        "defaults": _set(),
        "scheduled": _set(_SCHEDULED),
        "eps": _set(eps=0.01),
        # Without an eps between them, today's XLA merges the root and the division.
        "eps_zero": _set({"stream": "sparse", "bits": False}, eps=0.0),
        "eps_scheduled": _set(_SCHEDULED, eps=0.001),
        "bfloat16": _set(_BFLOAT16),
    }, bits=True),
    *_family("lamb", "LAMB", 0.01, {
        "defaults": _set(),
        "defaults_large": _set({"tree": "tiled", "stream": "short"}),
        "scheduled": _set(_SCHEDULED),
        "betas": _set(_FEW, beta1=0.5, beta2=0.9),
        "weight_decay": _set(_FEW, weight_decay=0.1),
        "eps": _set(_FEW, eps=0.01),
        "all": _set(_SCHEDULED, beta1=0.8, beta2=0.98, weight_decay=0.01, eps=0.0001),
        # A zero update on a tensor that is not zero divides by zero: NaN from then on.
        "zero_first": _set({"stream": "zero_first"}),
        "bfloat16": _set(_BFLOAT16, beta2=0.9),
    }),
    *_family("lars", "LARS", 1.0, {
        "defaults": _set(),
        "defaults_large": _set({"tree": "tiled", "stream": "short"}),
        "scheduled": _set({"rate": "array", "peak": (2.0,)}),
        "beta": _set(_FEW, beta=0.5),
        "weight_decay": _set(_FEW, weight_decay=0.1),
        "trust_coefficient": _set(_FEW, trust_coefficient=0.05),
        "eps": _set(_FEW, eps=1.0),
        "nesterov": _set(_FEW, nesterov=True),
        "all": _set({"rate": "array", "peak": (2.0,)}, beta=0.8, weight_decay=0.01,
            trust_coefficient=0.01, eps=0.001, nesterov=True),
        "zero_first": _set({"stream": "zero_first"}),
        "bfloat16": _set(_BFLOAT16, trust_coefficient=0.1),
    }),
    *_family("rmsprop", "RMSProp", 0.01, {
        "defaults": _set(),
        "scheduled": _set(_SCHEDULED),
        "beta2": _set(beta2=0.5),
        "eps": _set(eps=0.1),
        # Today's XLA fuses a multiplication and an addition here that it did not in 2023.
        "centered": _set({"bits": False}, centered=True),
        "all": _set({**_SCHEDULED, "bits": False}, beta2=0.99, eps=0.0001, centered=True),
        "eager": _set(_EAGER),
        "bfloat16": _set(_BFLOAT16),
    }, bits=True),
    *_cases("weight_norm", {
        "gradient_descent": (_weight_norm("GradientDescent", learning_rate=0.1), {}),
        "momentum": (_weight_norm("Momentum", learning_rate=0.1, weight_decay=0.01), {}),
        "scheduled": (_weight_norm("Momentum", nesterov=True), _SCHEDULED),
        "adam": (_weight_norm("Adam", learning_rate=0.01), {}),
        "adam_decay": (_weight_norm("Adam", learning_rate=0.01, wn_decay=0.1), {"tree": "pair"}),
        "eps": (_weight_norm("Adam", learning_rate=0.01, wn_eps=0.5), {"tree": "pair"}),
        "all": (_weight_norm("Adam", weight_decay=0.01, wn_decay=0.01, wn_eps=0.0001), _SCHEDULED),
        "override": (_weight_norm("Momentum", learning_rate=0.1),
            {"tree": "pair", "overrides": {"wn_decay": 0.05, "wn_eps": 0.001, "beta": 0.8}}),
        "rmsprop": (_weight_norm("RMSProp", learning_rate=0.01, centered=True), {"tree": "pair"}),
        "adafactor": (_weight_norm("Adafactor", learning_rate=0.1, min_dim_size_to_factor=2), {}),
        "lamb": (_weight_norm("LAMB", learning_rate=0.01), {}),
        "zero_initialised": (_weight_norm("GradientDescent", learning_rate=0.1),
            {"tree": "zero_kernel", "stream": "short"}),
        "eager": (_weight_norm("Momentum", learning_rate=0.1, wn_decay=0.01),
            {**_EAGER, "tree": "pair"}),
    }, tree="kernels"),
    *_cases("multi_optimizer", {
        "two_momenta": (_multi(
            kernel=_optimizer("Momentum", learning_rate=0.01),
            bias=_optimizer("Momentum", learning_rate=0.1, beta=0.5),
        ), {"bits": True}),
        "every_leaf": (_multi(
            kernel=_optimizer("Adam", learning_rate=0.01),
            bias=_optimizer("GradientDescent", learning_rate=0.1),
            table=_optimizer("RMSProp", learning_rate=0.01, centered=True),
            temperature=_optimizer("Adagrad", learning_rate=0.1),
        ), {}),
        "one_rate_for_all": (_multi(
            kernel=_optimizer("Adam", weight_decay=0.1), bias=_optimizer("LARS", weight_decay=0.01),
        ), _SCHEDULED),
        "rate_per_group": (_multi(
            kernel=_optimizer("Momentum", nesterov=True), bias=_optimizer("Adam"),
        ), {"rate": "groups", "peak": (0.1, 0.01)}),
        "frozen_dict": (_multi(
            kernel=_optimizer("LAMB", learning_rate=0.01),
            table=_optimizer("Adafactor", learning_rate=0.1, min_dim_size_to_factor=2),
        ), {"container": "frozen_dict"}),
    }, tree="layers"),
    *_cases("dynamic_scale", {
        "defaults": (_optimizer("DynamicScale"), {}),
        "growth": (_optimizer("DynamicScale", growth_interval=2), {}),
        "factors": (_optimizer("DynamicScale", growth_factor=8.0, backoff_factor=0.25,
            growth_interval=1), {}),
        "auxiliary": (_optimizer("DynamicScale", growth_interval=3, scale=1024.0),
            {"overrides": {"has_aux": True}}),
    }, tree="pair"),
)
# fmt: on

# Every optimizer in half precision, name: (plain, with decay where it has one).
_HALF_PRECISION: dict[str, tuple[Spec, ...]] = {
    "adabelief": tuple(_optimizer("AdaBelief", learning_rate=0.01, weight_decay=d) for d in _DECAY),
    "adadelta": tuple(_optimizer("Adadelta", learning_rate=1.0, weight_decay=d) for d in _DECAY),
    "adafactor": (
        _optimizer("Adafactor", learning_rate=0.1, min_dim_size_to_factor=3),
        _optimizer("Adafactor", beta1=0.9, weight_decay_rate=0.01, min_dim_size_to_factor=3),
    ),
    "adagrad": (_optimizer("Adagrad", learning_rate=0.1),),
    "adam": tuple(_optimizer("Adam", learning_rate=0.01, weight_decay=d) for d in _DECAY),
    "gradient_descent": (_optimizer("GradientDescent", learning_rate=0.1),),
    "lamb": tuple(_optimizer("LAMB", learning_rate=0.01, weight_decay=d) for d in _DECAY),
    "lars": (
        _optimizer("LARS", learning_rate=1.0, trust_coefficient=0.1),
        _optimizer("LARS", trust_coefficient=0.1, weight_decay=0.01, nesterov=True),
    ),
    "momentum": (
        _optimizer("Momentum", learning_rate=0.1),
        _optimizer("Momentum", weight_decay=0.01, nesterov=True),
    ),
    "multi_optimizer": tuple(
        _multi(
            kernel=_optimizer("Adam", learning_rate=0.01, weight_decay=d),
            table=_optimizer("Momentum", learning_rate=0.1, weight_decay=d),
        )
        for d in _DECAY
    ),
    "rmsprop": (
        _optimizer("RMSProp", learning_rate=0.01),
        _optimizer("RMSProp", centered=True),  # it has no decay
    ),
    "weight_norm": tuple(_weight_norm("Adam", learning_rate=0.01, wn_decay=d) for d in _DECAY),
}


def _half_precision_cases() -> list[Case]:
    """Returns each optimizer plain, with decay and with an array of rates, jitted and eagerly."""
    cases = []
    for name, (plain, *decay) in _HALF_PRECISION.items():
        table = {name: (plain, {})}
        table |= {f"{name}_decay": (each, {"rate": "float", "peak": (0.05,)}) for each in decay}
        for dtype in ("bfloat16", "float16"):
            for jit in (True, False):
                ending = dtype if jit else f"{dtype}_eager"
                settings = {f"{key}_{ending}": value for key, value in table.items()}
                bits = dtype == "bfloat16" and name != "adafactor"
                fields = {"tree": "half", "stream": "half", "dtype": dtype, "jit": jit}
                cases += _cases("half_precision", settings, bits=bits, **fields)
        if name != "weight_norm":  # there, bfloat16 gradients of promoted parameters are an error
            scheduled = {f"{name}_scheduled": (plain, _SCHEDULED)}
            fields = {"tree": "half", "stream": "half", "dtype": "bfloat16"}
            cases += _cases("half_precision", scheduled, **fields)
    return cases


HALF_PRECISION: tuple[Case, ...] = tuple(_half_precision_cases())

# Saved in mid-training with flax.serialization.to_bytes: the last CHECKPOINT_STEPS steps of the
# stream continue from the checkpoint, the others lead up to it.
CHECKPOINT_STEPS = 5

CHECKPOINTS: tuple[Case, ...] = tuple(
    Case(f"checkpoints/{name}", optimizer, **{"tree": "layers", "stream": "checkpoint", **fields})
    for name, (optimizer, fields) in {
        "adam": (_optimizer("Adam", learning_rate=0.01, weight_decay=0.01), {"tree": "odd"}),
        "momentum": (_optimizer("Momentum", beta=0.8), {"tree": "odd", **_SCHEDULED}),
        "lars": (_optimizer("LARS", learning_rate=1.0, weight_decay=0.01), {"tree": "odd"}),
        "adafactor": (
            _optimizer("Adafactor", learning_rate=0.1, beta1=0.9, min_dim_size_to_factor=3),
            {"tree": "factors"},
        ),
        "weight_norm": (
            _weight_norm("Adam", learning_rate=0.01, wn_decay=0.01),
            {"tree": "kernels"},
        ),
        "multi_optimizer": (
            _multi(
                kernel=_optimizer("Adam", learning_rate=0.01),
                bias=_optimizer("Momentum", learning_rate=0.1),
            ),
            {"container": "frozen_dict"},
        ),
    }.items()
)
