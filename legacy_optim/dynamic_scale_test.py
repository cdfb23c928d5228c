"""DynamicScale: defaults, files, arguments and axes.

When its scale grows and shrinks, recordings say: `equivalence_tests/reference`.
"""

import jax
import jax.numpy as jnp
import pytest
from flax import serialization

from legacy_optim import DynamicScale
from legacy_optim.dynamic_scale import DynamicScaleResult


def test_serialization_keeps_scale_and_count_and_not_the_settings() -> None:
    scale = DynamicScale(growth_interval=7, fin_steps=3, scale=4.0)
    saved = serialization.to_state_dict(scale)
    assert saved == {"fin_steps": 3, "scale": 4.0}
    restored = serialization.from_state_dict(DynamicScale(growth_interval=9), saved)
    assert restored == DynamicScale(growth_interval=9, fin_steps=3, scale=4.0)


def test_aux_and_argnums() -> None:
    def loss(x: jax.Array, y: dict[str, jax.Array]) -> tuple[jax.Array, str]:
        return x * y["a"], "aux"

    result = DynamicScale().value_and_grad(loss, argnums=(0, 1), has_aux=True)(2.0, {"a": 3.0})
    assert result.aux == (6.0, "aux")
    assert result.grad == (3.0, {"a": 2.0})


def test_steps_are_counted_anew_after_one_that_is_not_finite() -> None:
    scale, seen = DynamicScale(growth_interval=2, scale=8.0), list[tuple[float, float]]()
    for x in (1.0, jnp.inf, 1.0, 1.0, 1.0):
        scale = scale.value_and_grad(lambda w, x=x: w[0] * x + w[1])((1.0, 1.0)).dynamic_scale
        seen.append((jnp.asarray(scale.scale).item(), jnp.asarray(scale.fin_steps).item()))
    assert seen == [(8, 1), (4, 0), (4, 1), (4, 2), (8, 0)]


@pytest.mark.filterwarnings("ignore:.*pmap:DeprecationWarning")
def test_gradients_are_averaged_over_an_axis() -> None:
    def step(x: jax.Array) -> DynamicScaleResult:
        return DynamicScale().value_and_grad(lambda w: w * x, axis_name="i")(1.0)

    result = jax.pmap(step, "i")(jnp.array([1.0, 3.0]))
    assert (result.grad == 2.0).all()
    one_bad = jax.pmap(step, "i")(jnp.array([1.0, jnp.inf]))
    assert not one_bad.finite.any()
    assert (one_bad.dynamic_scale.scale == 32768.0).all()
