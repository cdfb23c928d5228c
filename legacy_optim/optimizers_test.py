"""Every optimizer of a single table: constructor, state, and arithmetic against NumPy."""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim as optim

# float32 against float64: each of 20 steps rounds about ten times, half an ULP (6e-8) each, and the
# bias correction 1 - 0.999**t cancels. Largest difference seen: 1.9e-6 of the tensor's scale.
TOLERANCE = 5e-6
STEPS = 20
LR = 0.05

Formula = Callable[[np.ndarray, Iterator[np.ndarray], dict[str, Any]], Iterator[np.ndarray]]


def norm(x: np.ndarray) -> float:
    return float(np.sqrt(np.sum(x * x)))


def gradient_descent(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    for g in gradients:
        p = p - LR * g
        yield p


def momentum(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    m = 0.0 * p
    for g in gradients:
        g = g + hp["weight_decay"] * p
        m = hp["beta"] * m + g
        p = p - LR * (g + hp["beta"] * m if hp["nesterov"] else m)
        yield p


def moments(gradients: Any, hp: dict[str, Any], belief: bool = False) -> Any:
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m = hp["beta1"] * m + (1 - hp["beta1"]) * g
        v = hp["beta2"] * v + (1 - hp["beta2"]) * (g - m if belief else g) ** 2
        v = v + (hp["eps"] if belief else 0.0)
        yield m / (1 - hp["beta1"] ** t) / (np.sqrt(v / (1 - hp["beta2"] ** t)) + hp["eps"])


def adam(p: Any, gradients: Any, hp: dict[str, Any], belief: bool = False) -> Any:
    for update in moments(gradients, hp, belief):
        p = p - LR * update - LR * hp["weight_decay"] * p
        yield p


def adabelief(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    return adam(p, gradients, hp, belief=True)


def lamb(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    for update in moments(gradients, hp):
        update = update + hp["weight_decay"] * p
        p = p - norm(p) / norm(update) * LR * update
        yield p


def lars(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    m = 0.0 * p
    for g in gradients:
        denominator = norm(g) + hp["weight_decay"] * norm(p) + hp["eps"]
        scaled = LR * hp["trust_coefficient"] * norm(p) / denominator
        scaled = scaled * (g + hp["weight_decay"] * p)
        m = hp["beta"] * m + scaled
        p = p - (scaled + hp["beta"] * m if hp["nesterov"] else m)
        yield p


def adagrad(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    squares = 0.0 * p
    for g in gradients:
        squares = squares + g * g
        p = p - LR * g / (np.sqrt(squares) + hp["eps"])
        yield p


def rmsprop(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    v = mean = 0.0 * p
    for g in gradients:
        v = hp["beta2"] * v + (1 - hp["beta2"]) * g * g
        mean = hp["beta2"] * mean + (1 - hp["beta2"]) * g
        variance = v - mean * mean if hp["centered"] else v
        p = p - LR * g / (np.sqrt(variance) + hp["eps"])
        yield p


def adadelta(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    squares = deltas = 0.0 * p
    for g in gradients:
        squares = hp["rho"] * squares + (1 - hp["rho"]) * g * g
        delta = np.sqrt(deltas + hp["eps"]) / np.sqrt(squares + hp["eps"]) * g
        deltas = hp["rho"] * deltas + (1 - hp["rho"]) * delta * delta
        p = p - LR * delta - LR * hp["weight_decay"] * p
        yield p


def adafactor(p: Any, gradients: Any, hp: dict[str, Any]) -> Any:
    rows = columns = v = m = 0.0
    for t, g in enumerate(gradients, 1):
        decay = 1 - (t - hp["step_offset"]) ** -hp["decay_rate"]
        squares = g * g + hp["epsilon1"]
        v = decay * v + (1 - decay) * squares
        second = v
        if hp["factored"] and min(p.shape) >= hp["min_dim_size_to_factor"]:
            rows = decay * rows + (1 - decay) * squares.mean(1, keepdims=True)
            columns = decay * columns + (1 - decay) * squares.mean(0, keepdims=True)
            second = rows * columns / np.mean(rows)
        update = g / np.sqrt(second)
        if hp["clipping_threshold"] is not None:
            update = update / max(1.0, np.sqrt(np.mean(update**2)) / hp["clipping_threshold"])
        scale = LR
        if hp["multiply_by_parameter_scale"]:
            scale = LR * max(np.sqrt(np.mean(p * p)), hp["epsilon2"])
        m = update = (
            scale * update
            if hp["beta1"] is None
            else (hp["beta1"] * m + (1 - hp["beta1"]) * scale * update)
        )
        p = (1 - (hp["weight_decay_rate"] or 0.0)) * p - update
        yield p


@dataclasses.dataclass(frozen=True)
class Row:
    """An optimizer: where it lives, its defaults, its state, its formula, other settings."""

    module: str
    defaults: dict[str, Any]  # all but learning_rate, in the constructor's order
    state: tuple[str, ...] | None  # None: the empty tuple
    formula: Formula
    settings: tuple[dict[str, Any], ...] = ()


BETAS = {"beta1": 0.9, "beta2": 0.999}
TABLE = {
    "GradientDescent": Row("sgd", {}, None, gradient_descent),
    "Momentum": Row(
        "momentum",
        {"beta": 0.9, "weight_decay": 0, "nesterov": False},
        ("momentum",),
        momentum,
        ({"weight_decay": 0.1}, {"nesterov": True, "beta": 0.5}),
    ),
    "Adam": Row(
        "adam",
        {**BETAS, "eps": 1e-8, "weight_decay": 0.0},
        ("grad_ema", "grad_sq_ema"),
        adam,
        ({"weight_decay": 0.1}, {"beta1": 0.5, "beta2": 0.9, "eps": 1e-2}),
    ),
    "AdaBelief": Row(
        "adabelief",
        {**BETAS, "eps": 1e-16, "weight_decay": 0.0},
        ("grad_ema", "grad_sq_ema"),
        adabelief,
        ({"weight_decay": 0.1}, {"eps": 1e-3}),
    ),
    "Adadelta": Row(
        "adadelta",
        {"rho": 0.9, "eps": 1e-6, "weight_decay": 0.0},
        ("sq_avg", "acc_delta"),
        adadelta,
        ({"weight_decay": 0.1}, {"rho": 0.5, "eps": 1e-2}),
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
        adafactor,
        (
            {"min_dim_size_to_factor": 3},
            {"min_dim_size_to_factor": 3, "factored": False, "multiply_by_parameter_scale": False},
            {"beta1": 0.9, "weight_decay_rate": 0.01, "clipping_threshold": None},
        ),
    ),
    "Adagrad": Row("adagrad", {"eps": 1e-8}, ("G",), adagrad, ({"eps": 1e-1},)),
    "LAMB": Row(
        "lamb",
        {**BETAS, "weight_decay": 0, "eps": 1e-6},
        ("grad_ema", "grad_sq_ema"),
        lamb,
        ({"weight_decay": 0.1},),
    ),
    "LARS": Row(
        "lars",
        {
            "beta": 0.9,
            "weight_decay": 0,
            "trust_coefficient": 0.001,
            "eps": 0,
            "nesterov": False,
        },
        ("momentum",),
        lars,
        ({"weight_decay": 0.1, "trust_coefficient": 1.0}, {"nesterov": True, "eps": 0.1}),
    ),
    "RMSProp": Row(
        "rmsprop",
        {"beta2": 0.9, "eps": 1e-8, "centered": False},
        ("v", "mg"),
        rmsprop,
        ({"eps": 0.1}, {"centered": True, "eps": 0.1}),
    ),
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


CASES = [(name, setting) for name, row in TABLE.items() for setting in ({}, *row.settings)]


@pytest.mark.parametrize(
    ("name", "setting"), CASES, ids=[f"{name}-{setting}" for name, setting in CASES]
)
def test_steps_follow_the_formula(name: str, setting: dict[str, Any]) -> None:
    row, rng = TABLE[name], np.random.default_rng(0)
    param, gradients = rng.normal(size=(4, 5)), rng.normal(size=(STEPS, 4, 5))
    optimizer = getattr(optim, name)(LR, **setting).create(jnp.asarray(param, jnp.float32))
    expected = row.formula(param, iter(gradients), {**row.defaults, **setting})
    for gradient, new_param in zip(gradients, expected, strict=True):
        optimizer = optimizer.apply_gradient(jnp.asarray(gradient, jnp.float32))
        error = np.abs(np.asarray(optimizer.target, np.float64) - new_param).max()
        assert error <= TOLERANCE * np.abs(new_param).max()
    assert int(optimizer.state.step) == STEPS


@ROWS
def test_rate_per_call_is_the_rate_of_the_constructor(name: str, row: Row) -> None:
    params = {"w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)}
    given = getattr(optim, name)(LR).create(params).apply_gradient(params)
    per_call = getattr(optim, name)().create(params).apply_gradient(params, learning_rate=LR)
    assert (given.target["w"] == per_call.target["w"]).all()


@ROWS
def test_missing_rate_says_where_to_give_it(name: str, row: Row) -> None:
    optimizer = getattr(optim, name)().create(jnp.ones(3))
    with pytest.raises(ValueError, match=rf"{name}\(learning_rate=.*apply_gradient\(grads"):
        optimizer.apply_gradient(jnp.ones(3))


@ROWS
def test_unknown_override_names_optimizer_and_hyper_parameters(name: str, row: Row) -> None:
    optimizer = getattr(optim, name)(LR).create(jnp.ones(3))
    with pytest.raises(TypeError, match=rf"{name} has no hyper-parameter lr; it has learning_rate"):
        optimizer.apply_gradient(jnp.ones(3), lr=1.0)


@ROWS
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_second_step_does_not_compile_again(name: str, row: Row, dtype: str) -> None:
    traces = []

    @jax.jit
    def step(optimizer: optim.Optimizer, grads: Any) -> optim.Optimizer:
        traces.append(None)
        return optimizer.apply_gradient(grads)

    params = {"w": jnp.ones((2, 3), dtype), "b": jnp.ones((), dtype)}
    optimizer = getattr(optim, name)(LR).create(params)
    for _ in range(3):
        optimizer = step(optimizer, params)
    assert len(traces) == 1
    assert {leaf.dtype for leaf in jax.tree.leaves(optimizer.target)} == {jnp.dtype(dtype)}


# As in flax.optim: the bias correction beta2**t is computed in the parameter's dtype, in which
# 0.999 is 1, so that the second moment is divided by zero and the parameter never moves.
@pytest.mark.parametrize("name", ["Adam", "AdaBelief"])
def test_bias_correction_in_bfloat16_keeps_parameters_still(name: str) -> None:
    optimizer = getattr(optim, name)(LR).create(jnp.ones(3, jnp.bfloat16))
    for _ in range(3):
        optimizer = optimizer.apply_gradient(jnp.ones(3, jnp.bfloat16))
    assert (optimizer.target == 1).all()
    assert (optimizer.state.param_states.grad_ema != 0).all()


GUARDS = {  # parameter, gradient -> parameter after one step of rate 1
    "LAMB-zero parameter": (optim.LAMB(1.0), 0.0, 1.0, 0.0),
    "LAMB-zero update": (optim.LAMB(1.0), 1.0, 0.0, np.nan),  # norm / 0, times 0
    "LAMB-both zero": (optim.LAMB(1.0), 0.0, 0.0, 0.0),
    "LARS-zero parameter": (optim.LARS(1.0), 0.0, 1.0, -1.0),
    "LARS-zero gradient": (optim.LARS(1.0), 1.0, 0.0, 1.0),
}


@pytest.mark.parametrize(("definition", "param", "grad", "expected"), GUARDS.values(), ids=GUARDS)
def test_trust_ratio_at_zero(definition: Any, param: float, grad: float, expected: float) -> None:
    optimizer = definition.create(jnp.full(2, param)).apply_gradient(jnp.full(2, grad))
    np.testing.assert_array_equal(optimizer.target, np.full(2, expected, np.float32))
