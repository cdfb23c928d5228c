"""Adafactor: which axes it factors over, its state's shapes and dtypes, its fixed settings."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim as optim

# shape -> shapes of v_row, v_col, v, with min_dim_size_to_factor 4
SHAPES = {
    (4, 5): ((4,), (5,), (1,)),
    (5, 4): ((4,), (5,), (1,)),
    (4, 4): ((4,), (4,), (1,)),
    (3, 5): ((1,), (1,), (3, 5)),
    (9,): ((1,), (1,), (9,)),
    (): ((1,), (1,), ()),
    (2, 6, 5): ((2, 5), (2, 6), (1,)),
    (6, 2, 5): ((2, 5), (6, 2), (1,)),
    # Of equally long axes the last is the longest: v_row averages over it.
    (5, 2, 5): ((5, 2), (2, 5), (1,)),
    (0, 5): ((1,), (1,), (0, 5)),
}


@pytest.mark.parametrize(("shape", "expected"), SHAPES.items(), ids=str)
def test_shapes_of_the_state(shape: tuple[int, ...], expected: Any) -> None:
    state = optim.Adafactor(0.1, min_dim_size_to_factor=4).init_param_state(jnp.ones(shape))
    assert (state.v_row.shape, state.v_col.shape, state.v.shape) == expected
    assert state.m.shape == (1,)


@pytest.mark.parametrize("shape", [(4, 5), (2, 6, 5), (3,), ()], ids=str)
def test_shapes_do_not_change(shape: tuple[int, ...]) -> None:
    optimizer = optim.Adafactor(0.1, min_dim_size_to_factor=4).create(jnp.ones(shape))
    new = optimizer.apply_gradient(jnp.ones(shape))
    for name in ("v_row", "v_col", "v", "m"):
        before, after = (getattr(each.state.param_states, name) for each in (optimizer, new))
        assert (after.shape, after.dtype) == (before.shape, before.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("momentum", ["float32", "bfloat16"])
def test_state_is_float32_whatever_the_parameter_is(dtype: str, momentum: str) -> None:
    definition = optim.Adafactor(0.1, beta1=0.9, dtype_momentum=momentum, min_dim_size_to_factor=4)
    optimizer = definition.create(jnp.ones((4, 5), dtype)).apply_gradient(jnp.ones((4, 5), dtype))
    state = optimizer.state.param_states
    assert {leaf.dtype.name for leaf in (state.v_row, state.v_col, state.v)} == {"float32"}
    assert state.m.dtype == momentum
    assert optimizer.target.dtype == dtype


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


@pytest.mark.parametrize("param", [1.5, np.float64(1.5), np.ones((4, 5))], ids=repr)
@pytest.mark.parametrize("grad", [0.5, np.float32(0.5)], ids=repr)
def test_numbers_and_numpy_arrays(param: Any, grad: Any) -> None:
    optimizer = optim.Adafactor(0.1).create(param).apply_gradient(grad)
    expected = optim.Adafactor(0.1).create(jnp.asarray(param))
    expected = expected.apply_gradient(jnp.full(jnp.shape(param), grad))
    assert (optimizer.target == expected.target).all()


def test_decay_schedule() -> None:
    decay = optim.Adafactor._decay_rate_pow
    assert decay(0) == 0.0
    np.testing.assert_allclose(decay(9, exponent=0.5), 1 - 10**-0.5, rtol=1e-6)
