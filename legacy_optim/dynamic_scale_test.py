"""DynamicScale: when the scale grows and shrinks, and what comes back unscaled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization

from legacy_optim import DynamicScale
from legacy_optim.dynamic_scale import DynamicScaleResult

# gradients (finite or not) -> scale and count of finite steps after each, growth_interval 2
STREAMS = {
    "grows after the interval": ([1, 1, 1, 1], [(8, 1), (8, 2), (16, 0), (16, 1)]),
    "shrinks at once": ([np.inf, 1], [(4, 0), (4, 1)]),
    "NaN is not finite": ([np.nan], [(4, 0)]),
    "starts to count again": ([1, -np.inf, 1, 1, 1], [(8, 1), (4, 0), (4, 1), (4, 2), (8, 0)]),
    "does not grow on an overflow": ([1, 1, np.inf], [(8, 1), (8, 2), (4, 0)]),
}


@pytest.mark.parametrize(("gradients", "expected"), STREAMS.values(), ids=STREAMS)
def test_scale(gradients: list[float], expected: list[tuple[float, int]]) -> None:
    @jax.jit
    def step(dynamic_scale: DynamicScale, slope: float) -> DynamicScaleResult:
        return dynamic_scale.value_and_grad(lambda x: slope * x)(1.0)

    dynamic_scale = DynamicScale(growth_interval=2, scale=8.0)
    for gradient, (scale, count) in zip(gradients, expected, strict=True):
        dynamic_scale, finite, loss, grad = step(dynamic_scale, gradient)
        assert (float(dynamic_scale.scale), int(dynamic_scale.fin_steps)) == (scale, count)
        assert bool(finite) == np.isfinite(gradient)
        np.testing.assert_array_equal(loss, gradient)
        np.testing.assert_array_equal(grad, gradient)


def test_defaults() -> None:
    scale = DynamicScale()
    settings = scale.growth_factor, scale.backoff_factor, scale.growth_interval
    assert (*settings, scale.fin_steps, scale.scale) == (2.0, 0.5, 2000, 0, 65536.0)
    assert len(jax.tree.leaves(scale)) == 2


def test_serialization_keeps_scale_and_count_and_not_the_settings() -> None:
    scale = DynamicScale(growth_interval=7, fin_steps=3, scale=4.0)
    saved = serialization.to_state_dict(scale)
    assert saved == {"fin_steps": 3, "scale": 4.0}
    restored = serialization.from_state_dict(DynamicScale(growth_interval=9), saved)
    assert restored == DynamicScale(growth_interval=9, fin_steps=3, scale=4.0)


def test_small_gradients_survive_float16() -> None:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.asarray(x, jnp.float16) * jnp.float16(1e-4) * jnp.float16(1e-4)

    assert jax.grad(loss)(1.0) == 0
    result = DynamicScale(scale=2.0**15).value_and_grad(loss)(1.0)
    np.testing.assert_allclose(result.grad, 1e-8, rtol=1e-2)  # float16: 11 bits, two roundings
    assert result.grad.dtype == jnp.float32


def test_aux_and_argnums() -> None:
    def loss(x: jax.Array, y: dict[str, jax.Array]) -> tuple[jax.Array, str]:
        return x * y["a"], "aux"

    result = DynamicScale().value_and_grad(loss, argnums=(0, 1), has_aux=True)(2.0, {"a": 3.0})
    assert result.aux == (6.0, "aux")
    assert result.grad == (3.0, {"a": 2.0})


@pytest.mark.filterwarnings("ignore:.*pmap:DeprecationWarning")
def test_gradients_are_averaged_over_an_axis() -> None:
    def step(x: jax.Array) -> DynamicScaleResult:
        return DynamicScale().value_and_grad(lambda w: w * x, axis_name="i")(1.0)

    result = jax.pmap(step, "i")(jnp.array([1.0, 3.0]))
    assert (result.grad == 2.0).all()
    one_bad = jax.pmap(step, "i")(jnp.array([1.0, jnp.inf]))
    assert not one_bad.finite.any()
    assert (one_bad.dynamic_scale.scale == 32768.0).all()
