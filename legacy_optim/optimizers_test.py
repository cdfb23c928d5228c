"""Every optimizer of a single table: constructor, state, errors and compilation.

What they compute, the recordings of the genuine `flax.optim` say: `equivalence_tests/reference`.
"""

import dataclasses
import importlib
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import legacy_optim as optim

LR = 0.05


@dataclasses.dataclass(frozen=True)
class Row:
    """An optimizer: where it lives, its defaults, its state."""

    module: str
    defaults: dict[str, Any]  # all but learning_rate, in the constructor's order
    state: tuple[str, ...] | None  # None: the empty tuple


BETAS = {"beta1": 0.9, "beta2": 0.999}
TABLE = {
    "GradientDescent": Row("sgd", {}, None),
    "Momentum": Row("momentum", {"beta": 0.9, "weight_decay": 0, "nesterov": False}, ("momentum",)),
    "Adam": Row("adam", {**BETAS, "eps": 1e-8, "weight_decay": 0.0}, ("grad_ema", "grad_sq_ema")),
    "AdaBelief": Row(
        "adabelief", {**BETAS, "eps": 1e-16, "weight_decay": 0.0}, ("grad_ema", "grad_sq_ema")
    ),
    "Adadelta": Row(
        "adadelta", {"rho": 0.9, "eps": 1e-6, "weight_decay": 0.0}, ("sq_avg", "acc_delta")
    ),
    "Adafactor": Row(
        "adafactor",
        {
            "factored": True,
            "multiply_by_parameter_scale": True,
            "beta1": None,
            "decay_rate": 0.8,
            "step_offset": 0,
            "clipping_threshold": 1.0,
            "weight_decay_rate": None,
            "min_dim_size_to_factor": 128,
            "epsilon1": 1e-30,
            "epsilon2": 1e-3,
        },
        ("v_row", "v_col", "v", "m"),
    ),
    "Adagrad": Row("adagrad", {"eps": 1e-8}, ("G",)),
    "LAMB": Row("lamb", {**BETAS, "weight_decay": 0, "eps": 1e-6}, ("grad_ema", "grad_sq_ema")),
    "LARS": Row(
        "lars",
        {"beta": 0.9, "weight_decay": 0, "trust_coefficient": 0.001, "eps": 0, "nesterov": False},
        ("momentum",),
    ),
    "RMSProp": Row("rmsprop", {"beta2": 0.9, "eps": 1e-8, "centered": False}, ("v", "mg")),
}
ROWS = pytest.mark.parametrize(("name", "row"), TABLE.items(), ids=TABLE)


def part_of(name: str, row: Row, kind: str) -> Any:
    return getattr(importlib.import_module(f"legacy_optim.{row.module}"), f"_{name}{kind}")


@ROWS
def test_constructor_and_hyper_parameters_keep_order_and_defaults(name: str, row: Row) -> None:
    constructor = getattr(optim, name)
    defaults = {"learning_rate": None, **row.defaults}
    parameters = inspect.signature(constructor).parameters
    found = {key: value.default for key, value in parameters.items() if key != "dtype_momentum"}
    assert list(found.items()) == list(defaults.items())
    hyper_params = part_of(name, row, "HyperParams")
    assert [field.name for field in dataclasses.fields(hyper_params)] == list(defaults)
    assert constructor(0.5).hyper_params == hyper_params(**{**defaults, "learning_rate": 0.5})


@ROWS
def test_state_keeps_its_class_and_its_fields(name: str, row: Row) -> None:
    optimizer = getattr(optim, name)(LR).create({"w": jnp.ones((2, 3))})
    assert optimizer.state.step.dtype == jnp.int32
    state = optimizer.state.param_states["w"]
    if row.state is None:
        assert state == ()
    else:
        assert type(state) is part_of(name, row, "ParamState")
        assert tuple(field.name for field in dataclasses.fields(state)) == row.state


@ROWS
def test_rate_per_call_is_the_rate_of_the_constructor(name: str, row: Row) -> None:
    params = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)}
    given = getattr(optim, name)(LR).create(params).apply_gradient(params)
    per_call = getattr(optim, name)().create(params).apply_gradient(params, learning_rate=LR)
    assert (given.target["w"] == per_call.target["w"]).all()


@ROWS
def test_a_missing_rate_and_an_unknown_override_are_named(name: str, row: Row) -> None:
    optimizer = getattr(optim, name)().create(jnp.ones(3))
    with pytest.raises(ValueError, match=rf"{name}\(learning_rate=.*apply_gradient\(grads"):
        optimizer.apply_gradient(jnp.ones(3))
    with pytest.raises(TypeError, match=rf"{name} has no hyper-parameter lr; it has learning_rate"):
        optimizer.apply_gradient(jnp.ones(3), lr=1.0)


HOLDING = {
    "WeightNorm": lambda: optim.WeightNorm(optim.Adam(LR)),
    "MultiOptimizer": lambda: optim.MultiOptimizer((optim.t_identity["w"], optim.Momentum(LR))),
}


@pytest.mark.parametrize("name", [*TABLE, *HOLDING])
def test_second_step_does_not_compile_again(name: str) -> None:
    traces = []

    @jax.jit
    def step(optimizer: optim.Optimizer, grads: Any) -> optim.Optimizer:
        traces.append(None)
        return optimizer.apply_gradient(grads)

    params = {"w": jnp.ones((2, 3), "bfloat16"), "b": jnp.ones((), "bfloat16")}
    make = HOLDING.get(name, lambda: getattr(optim, name)(LR))
    optimizer = make().create(params)
    for _ in range(3):
        optimizer = step(optimizer, params)
    assert len(traces) == 1
    assert {leaf.dtype for leaf in jax.tree.leaves(optimizer.target)} == {jnp.dtype("bfloat16")}
