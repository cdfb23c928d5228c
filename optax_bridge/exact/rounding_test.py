"""Rounding by fewer instructions is XLA's own, and what is not known stays as it is."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.exact.one_loop import keeps_bits
from optax_bridge.exact.rounding import in_float32, in_float32_on_cpus


def bits(array: Any) -> np.ndarray:
    return np.asarray(array).view(np.uint16)


def test_every_float32_near_a_bfloat16_is_rounded_as_by_xla():
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    patterns = (np.arange(2**16, dtype=np.uint32)[:, None] << 16) | lower
    large = np.abs(patterns.view(np.float32))
    whole = jnp.asarray(patterns.view(np.float32)[np.isfinite(large)])
    half = jnp.float32(0.5)

    def halved(one: Any, other: Any) -> Any:  # a float32 that becomes bfloat16, and one operation
        one = one.astype(jnp.bfloat16)
        return one, -(one * other.astype(jnp.bfloat16))

    expected = jax.jit(halved)(whole, half)
    for plain, wide in zip(expected, jax.jit(in_float32(halved))(whole, half), strict=True):
        np.testing.assert_array_equal(bits(plain), bits(wide))


@pytest.mark.skipif(not keeps_bits(), reason="`one_loop`, which it is for, refuses this JAX")
def test_every_pair_of_hostile_bfloat16_gives_the_same_bits():
    one = np.arange(0, 2**16, 7, dtype=np.uint16).view(jnp.bfloat16)
    others = np.array([0, 0x8000, 1, 0x7F80, 0xFF80, 0x7FA5, 0xFFFF, 0x3F81, 0xC2F7, 0x7F7F])
    other = others.astype(np.uint16).view(jnp.bfloat16)[:, None]

    def all_of_them(a: Any, b: Any) -> Any:
        return (
            a + b,
            a - b,
            a * b,
            a / b,
            jnp.sqrt(a),
            jnp.square(a),
            jnp.maximum(a, b),
            (a * b) + a,
        )

    expected, found = (jax.jit(f)(one, other) for f in (all_of_them, in_float32(all_of_them)))
    for plain, wide in zip(expected, found, strict=True):
        is_nan = np.isnan(plain)  # of two that meet, either's sign may be kept
        np.testing.assert_array_equal(is_nan, np.isnan(wide))
        np.testing.assert_array_equal(bits(plain)[~is_nan], bits(wide)[~is_nan])
        np.testing.assert_array_equal(bits(plain)[is_nan] & 0x7FFF, 0x7FC0)
        np.testing.assert_array_equal(bits(wide)[is_nan] & 0x7FFF, 0x7FC0)


UNKNOWN: dict[str, Any] = {
    "sum": lambda x, y: x - jnp.sum(x * x, axis=0),
    "exp": lambda x, y: jnp.exp(x) * x,
    "float32-besides": lambda x, y: x * 3 * y,
    "power": lambda x, y: jax.jit(lambda x: x**3 + x)(x),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_is_computed_as_it_was(case: str):
    rng = np.random.default_rng(0)
    half = jnp.asarray(rng.standard_normal((8, 16)), jnp.bfloat16)
    single = jnp.asarray(rng.standard_normal(16), jnp.float32)
    plain, wide = (jax.jit(f)(half, single) for f in (UNKNOWN[case], in_float32(UNKNOWN[case])))
    assert plain.dtype == wide.dtype
    np.testing.assert_array_equal(plain, wide)
    program = str(jax.make_jaxpr(in_float32(UNKNOWN[case]))(half, single))
    assert "bitcast_convert_type" not in program


def test_other_devices_and_single_arrays_compute_as_they_did():
    def function(x: Any) -> Any:
        return x * x + x

    x = jnp.ones((4, 4), jnp.bfloat16)
    run = jax.jit(in_float32_on_cpus(function))
    assert "bitcast" in run.trace(x).lower(lowering_platforms=("cpu",)).as_text()
    assert "bitcast" not in run.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    eager = jax.make_jaxpr(jax.vmap(in_float32_on_cpus(function)))(x)
    assert "bitcast" not in str(eager)
