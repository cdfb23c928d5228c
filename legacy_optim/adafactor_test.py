"""Adafactor: which axes it factors over, its state's shapes and dtypes, its fixed settings."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim as optim

FIXED = {"factored": False, "multiply_by_parameter_scale": False, "min_dim_size_to_factor": 999}


@pytest.mark.parametrize(("name", "value"), FIXED.items(), ids=FIXED)
def test_settings_that_only_the_constructor_takes(name: str, value: Any) -> None:
    definition = optim.Adafactor(0.1, min_dim_size_to_factor=4)
    optimizer, grads = definition.create(jnp.full((4, 5), 0.1)), jnp.ones((4, 5))
    plain = optimizer.apply_gradient(grads)
    overridden = optimizer.apply_gradient(grads, **{name: value})
    assert (plain.target == overridden.target).all()
    settings = {"min_dim_size_to_factor": 4, name: value}
    other = optim.Adafactor(0.1, **settings).create(optimizer.target).apply_gradient(grads)
    assert (
        other.state.param_states.v.shape != plain.state.param_states.v.shape
        or not (other.target == plain.target).all()
    )


@pytest.mark.parametrize(
    ("param", "grad"), [(1.5, np.float32(0.5)), (np.float64(1.5), 0.5), (np.ones((4, 5)), 0.5)]
)
def test_numbers_and_numpy_arrays(param: Any, grad: Any) -> None:
    optimizer = optim.Adafactor(0.1).create(param).apply_gradient(grad)
    expected = optim.Adafactor(0.1).create(jnp.asarray(param))
    expected = expected.apply_gradient(jnp.full(jnp.shape(param), grad))
    assert (optimizer.target == expected.target).all()


def test_a_step_is_taken_before_the_momentum_is_rounded() -> None:
    grads = jnp.linspace(-1.0, 1.0, 20).reshape(4, 5)
    wide, narrow = (
        optim.Adafactor(0.1, beta1=0.9, dtype_momentum=dtype).create(grads).apply_gradient(grads)
        for dtype in (jnp.float32, jnp.bfloat16)
    )
    assert narrow.state.param_states.m.dtype == jnp.bfloat16
    assert (narrow.target == wide.target).all()
