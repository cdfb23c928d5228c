"""Adafactor is Optax's adafactor, unless its second epsilon was moved."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    Stock,
    Unsupported,
    apart,
    rounding,
)
from optax_bridge.correspondence.entry import setting as s
from optax_bridge.correspondence.parts import Row
from optax_bridge.correspondence.recipe import Name, call
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE, Range


def _inferred(rows: Sequence[Row]) -> dict[str, Any]:
    """Settings that factor the parameters that were, with momentum if there is some."""
    settings: dict[str, Any] = {"factored": False}
    for _, param, state in rows:
        arrays = (param, *(state or {}).values())
        if state is None or not all(hasattr(array, "shape") for array in arrays):
            continue
        if param.shape == (1,):  # as what is not used has
            continue
        if state["m"].shape == param.shape:
            settings |= {"beta1": 0.9, "dtype_momentum": state["m"].dtype}
        if state["v"].shape == (1,) and len(param.shape) > 1:
            shortest = sorted(param.shape)[-2]
            length = min(settings.get("min_dim_size_to_factor", shortest), shortest)
            settings |= {"factored": True, "min_dim_size_to_factor": length}
    return settings


ENTRY = Entry(
    legacy=LegacyClass("Adafactor"),
    port="optax_bridge.adafactor",
    hyper_params=(
        HyperParam("learning_rate", "learning_rate", None),
        HyperParam("factored", "factored", True),
        HyperParam("multiply_by_parameter_scale", "multiply_by_parameter_scale", True),
        HyperParam("beta1", "momentum", None, within=DECAY),
        HyperParam("decay_rate", "decay_rate", 0.8, within=NOT_NEGATIVE),
        HyperParam("step_offset", "step_offset", 0),
        HyperParam("clipping_threshold", "clipping_threshold", 1.0, within=Range(0, or_none=True)),
        HyperParam("weight_decay_rate", "weight_decay_rate", None),
        HyperParam("min_dim_size_to_factor", "min_dim_size_to_factor", 128, within=NOT_NEGATIVE),
        HyperParam("epsilon1", "epsilon1", 1e-30, within=NOT_NEGATIVE),
        HyperParam("epsilon2", "epsilon2", 1e-3, within=NOT_NEGATIVE),
        HyperParam(
            "dtype_momentum",
            "dtype_momentum",
            np.float32,
            getter=operator.attrgetter("dtype_momentum"),
        ),
    ),
    state=(
        StateField("v_row", exact="AdafactorState.v_row", stock=("FactoredState.v_row",)),
        StateField("v_col", exact="AdafactorState.v_col", stock=("FactoredState.v_col",)),
        StateField("v", exact="AdafactorState.v", stock=("FactoredState.v",)),
        StateField("m", exact="AdafactorState.m", stock=("EmaState.ema",)),
    ),
    stock=(
        Stock(
            call(
                "optax.adafactor",
                learning_rate=s("learning_rate"),
                min_dim_size_to_factor=s("min_dim_size_to_factor"),
                decay_rate=s("decay_rate"),
                decay_offset=s("step_offset"),
                multiply_by_parameter_scale=s("multiply_by_parameter_scale"),
                clipping_threshold=s("clipping_threshold"),
                momentum=s("beta1"),
                dtype_momentum=s("dtype_momentum"),
                weight_decay_rate=s("weight_decay_rate"),
                eps=s("epsilon1"),
                factored=s("factored"),
            ),
            rounding(
                16,
                "order of operations only",
                bfloat16=apart("the legacy statistics are float32, Optax's bfloat16"),
                float16=apart("the legacy statistics are float32, Optax's float16"),
                float64=apart("the legacy statistics are float32, Optax's float64"),
            ),
        ),
    ),
    unsupported=(
        Unsupported(
            "epsilon2",
            1e-3,
            "optax.adafactor has the smallest parameter scale fixed at 1e-3. Use the exact recipe, "
            "optax_bridge.adafactor, which takes epsilon2.",
        ),
    ),
    cases=(
        Case(),
        Case({"min_dim_size_to_factor": 3, "beta1": 0.9}),
        Case({"min_dim_size_to_factor": 2, "weight_decay_rate": 0.01, "clipping_threshold": None}),
        Case({"factored": False, "multiply_by_parameter_scale": False, "decay_rate": 0.5}),
        Case({"step_offset": -10, "epsilon1": 1e-8, "clipping_threshold": 0.5}),
        Case(
            {
                "epsilon2": 1e-2,
                "min_dim_size_to_factor": 3,
                "beta1": 0.5,
                "dtype_momentum": Name("jax.numpy.bfloat16"),
            }
        ),
    ),
    notes=(
        "`epsilon2` cannot be set in Optax. With bfloat16 parameters the legacy statistics are "
        "float32, Optax's in the parameter's dtype. `weight_decay_rate` multiplies the parameter, "
        "whatever the learning rate."
    ),
    sources=("flax.optim.adafactor", "Shazeer and Stern 2018, arXiv:1804.04235"),
    inferred=_inferred,
)
