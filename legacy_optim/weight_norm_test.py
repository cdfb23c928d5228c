"""WeightNorm: the split, the steps of direction and scale, what is left as it is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim as optim
from legacy_optim.weight_norm import _WeightNormHyperParams, _WeightNormParamState

# float32 against float64, about ten rounding errors of half an ULP (6e-8) a step. Largest
# difference seen: 2.4e-7 of the tensor's scale.
TOLERANCE = 1e-6


def test_hyper_parameters() -> None:
    inner = optim.Adam(0.1)
    assert optim.WeightNorm(inner).hyper_params == _WeightNormHyperParams(
        inner.hyper_params, wn_decay=0, wn_eps=1e-8
    )


# shape -> shape of the scale; () where the parameter is not split
SHAPES = {(2, 3): (1, 3), (4, 2, 3): (1, 1, 3), (2, 1): (1, 1), (3,): (), (1, 3): (), (): ()}


@pytest.mark.parametrize(("shape", "scale"), SHAPES.items(), ids=str)
def test_state(shape: tuple[int, ...], scale: tuple[int, ...]) -> None:
    param = jnp.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    optimizer = optim.WeightNorm(optim.Momentum(0.1)).create({"w": param})
    state = optimizer.state.param_states["w"]
    assert type(state) is _WeightNormParamState
    if not scale:
        assert (state.direction == param).all()
        assert state.scale == state.scale_state == ()
    else:
        assert state.scale.shape == state.scale_state.momentum.shape == scale
        norms = np.sqrt(np.sum(np.square(param), axis=tuple(range(len(shape) - 1))))
        np.testing.assert_allclose(state.scale.ravel(), norms, rtol=TOLERANCE)
        np.testing.assert_allclose(state.direction * state.scale, param, rtol=TOLERANCE)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_steps_follow_the_formula(decay: float) -> None:
    rng, rate, eps = np.random.default_rng(0), 0.1, 1e-8
    weight, gradients = rng.normal(size=(4, 3)), rng.normal(size=(10, 4, 3))
    definition = optim.WeightNorm(optim.GradientDescent(rate), wn_decay=decay, wn_eps=eps)
    optimizer = definition.create(jnp.asarray(weight, jnp.float32))
    scale = np.sqrt(np.sum(weight**2, axis=0) + eps)
    direction = weight / scale
    for g in gradients:
        length = np.sqrt(np.sum(direction**2, axis=0) + eps)
        scale_grad = np.sum(g * direction, axis=0) / length
        direction_grad = scale / length * (g - scale_grad * direction / length)
        direction = direction - rate * (direction_grad + decay * direction)
        scale = scale - rate * scale_grad
        weight = scale * direction / np.sqrt(np.sum(direction**2, axis=0) + eps)
        optimizer = optimizer.apply_gradient(jnp.asarray(g, jnp.float32))
        error = np.abs(np.asarray(optimizer.target, np.float64) - weight).max()
        assert error <= TOLERANCE * np.abs(weight).max()


def test_a_kernel_of_zeros_stays_finite() -> None:
    optimizer = optim.WeightNorm(optim.Momentum(0.1), wn_eps=1e-4).create(jnp.zeros((2, 3)))
    state = optimizer.state.param_states
    assert (state.direction == 0).all()
    np.testing.assert_allclose(state.scale, 0.01, rtol=TOLERANCE)
    assert jnp.isfinite(optimizer.apply_gradient(jnp.ones((2, 3))).target).all()


@pytest.mark.parametrize("shape", [(3,), (1, 3), ()], ids=str)
def test_what_is_not_split_moves_as_without_it(shape: tuple[int, ...]) -> None:
    inner = optim.Adam(0.1)
    with_norm = optim.WeightNorm(inner, wn_decay=0.5).create(jnp.ones(shape))
    without = inner.create(jnp.ones(shape))
    for _ in range(3):
        with_norm = with_norm.apply_gradient(jnp.ones(shape))
        without = without.apply_gradient(jnp.ones(shape))
    assert (with_norm.target == without.target).all()


OVERRIDES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "none": ({}, (0.1, 0.0, 1e-8)),
    "of the wrapped": ({"learning_rate": 0.5}, (0.5, 0.0, 1e-8)),
    "own": ({"wn_decay": 0.5, "wn_eps": 1.0}, (0.1, 0.5, 1.0)),
    "all of the wrapped": (
        {"hyper_params": optim.Momentum(0.7).hyper_params, "wn_decay": 0.5},
        (0.7, 0.5, 1e-8),
    ),
}


@pytest.mark.parametrize(("overrides", "expected"), OVERRIDES.values(), ids=OVERRIDES)
def test_overrides(overrides: dict[str, Any], expected: tuple[float, ...]) -> None:
    definition = optim.WeightNorm(optim.Momentum(0.1))
    new = definition.update_hyper_params(**overrides)
    assert (new.inner.learning_rate, new.wn_decay, new.wn_eps) == expected


def test_errors_are_those_of_the_wrapped_optimizer() -> None:
    optimizer = optim.WeightNorm(optim.Momentum()).create(jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"Momentum\(learning_rate="):
        optimizer.apply_gradient(jnp.ones((2, 3)))
    with pytest.raises(TypeError, match="Momentum has no hyper-parameter lr"):
        optimizer.apply_gradient(jnp.ones((2, 3)), lr=1.0)


def test_second_step_does_not_compile_again() -> None:
    traces = []

    @jax.jit
    def step(optimizer: optim.Optimizer, grads: Any) -> optim.Optimizer:
        traces.append(None)
        return optimizer.apply_gradient(grads)

    params = {"w": jnp.ones((2, 3)), "b": jnp.ones(3), "s": jnp.ones(())}
    optimizer = optim.WeightNorm(optim.Adam(0.1)).create(params)
    for _ in range(3):
        optimizer = step(optimizer, params)
    assert len(traces) == 1
