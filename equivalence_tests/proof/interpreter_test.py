from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equivalence_tests.proof.errors import NoRule
from equivalence_tests.proof.interpreter import balls, run

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda x: jnp.linalg.norm(x) * jnp.tanh(x),
    "where": lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x**3),
    "matrix": lambda x: jnp.cumsum(x, axis=0) @ x.T + 0 * (jnp.bfloat16(x) @ jnp.bfloat16(x.T)),
    "slices": lambda x: jnp.hstack([x[:, :1], jnp.flip(x, 1)]) / (2 + jnp.max(x)),
    "fori": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y / (1 + i) + x, x),
    "while": lambda x: (
        lambda s: jax.lax.while_loop(lambda y: jnp.sum(y * y) > s[0, 0], lambda y: y / 2 + x / 9, x)
    )(jnp.abs(x)),
    "scan": lambda x: jax.lax.scan(lambda c, r: (c / 2 + r, c * r), x[0], x, reverse=True)[1],
    "by entry": lambda x: (
        jnp.exp2(x) + jnp.cbrt(x) + jax.lax.rsqrt(x * x) + jax.nn.sigmoid(x) + jnp.sign(x)
        + jnp.float32(jnp.bool_(x)) + x % 0.3 + jax.lax.integer_pow(x, -3)
        + jnp.where(x > 0, x, 2.0) ** x + jnp.select([x < -0.5, x < 0.5], [x, 2 * x], 3 * x)
    ),
    "by axis": lambda x: (
        jnp.cumprod(x, 1) + jax.lax.cummin(x, axis=0) + jnp.prod(x) + jnp.min(x)
        + jnp.einsum("ij,ik->ijk", x, x)[:, 0] + jax.lax.clamp(1.0, x, -1.0)
        + jax.lax.broadcasted_iota(float, (2, 3), 1)
    ),
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, jnp.exp, jnp.sin, x),
    "round": lambda x: (
        jnp.clip(jnp.round(4 * x), -1, 2).astype(int).astype(float) % 1.5 + jnp.mean(x)
    ),
    "scatter": lambda x: (
        jnp.asarray(x).at[jnp.array([1, 1]), jnp.array([0, 0])].add(x[:, 1]).at[0, 1].set(x[1, 1])
    ),
    "scatter max": lambda x: (
        jnp.zeros(4).at[jnp.array([3, 0, 3])].max(x[0]).at[0].mul(2.0).at[2].min(-1.0)
        .at[1].subtract(x[1, 1])[:3] * x
    ),
    "sort": lambda x: x[jnp.argsort(x[:, 0])] + jnp.sort(x, axis=1) + x.reshape(-1)[jnp.argmax(x)],
    "top": lambda x: jax.lax.top_k(x, 2)[0] + jax.lax.cummax(x, axis=1, reverse=True)[:, :2],
    "pad": lambda x: (
        jnp.pad(jax.lax.dynamic_slice(x, (0, 1), (2, 2)), ((0, 0), (1, 0))) + jnp.tan(x)
    ),
    "functions": lambda x: (
        jax.scipy.special.erf(x) + jnp.arctan(x) + jax.random.uniform(jax.random.key(0))
    ),
    "calls": lambda x: (
        jax.checkpoint(jnp.sin)(x) + jax.lax.stop_gradient(x) * jax.nn.relu(x).copy()
    ),
    "logsumexp": lambda x: optax.safe_norm(x, 0.1) + jax.lax.cumlogsumexp(x, axis=1),
    "fill": lambda x: jnp.take(x, jnp.array([0, 7, 1]), axis=0, fill_value=2.5)[:2, :],
    "reshape": lambda x: jax.lax.reshape(x, (3, 2), dimensions=(1, 0)).T,
    "int8": lambda x: jax.lax.dot(
        *2 * ((jnp.round(jnp.asarray(x).T[:2] * 40)).astype(jnp.int8),),
        preferred_element_type=jnp.int32,
    ).astype(float),
    "large": lambda x: (
        (0.5 + 1e12 * jnp.asarray(x)).astype(jnp.int32) % 7 + jnp.where(x > 0, x, jnp.arange(3))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_followed_as_jax_runs_them(name: str):
    function = PROGRAMS[name]
    x = np.asarray(np.random.default_rng(0).standard_normal((2, 3)), np.float32)
    program = jax.make_jaxpr(function)(x)
    (found,) = run.run(program, [x], exact=False)
    np.testing.assert_allclose(found, function(x), rtol=1e-5, atol=1e-6)
    (exact,) = run.run(program, [balls.balls(x)], exact=True)
    np.testing.assert_allclose(exact.astype(float), found, rtol=1e-5, atol=1e-6)


def test_a_function_of_entries_is_not_passed():
    program = jax.make_jaxpr(lambda x: x.at[0].apply(jnp.sin))(np.ones(2, np.float32))
    with pytest.raises(NoRule, match="primitive scatter with a function"):
        run.run(program, [balls.balls(np.ones(2))], exact=True)
    program = jax.make_jaxpr(lambda x: x.at[jnp.array([0, 0])].add(x, unique_indices=True))(
        np.ones(2, np.float32)
    )
    with pytest.raises(NoRule, match="unique indices that are not"):
        run.run(program, [balls.balls(np.ones(2))], exact=True)
    program = jax.make_jaxpr(lambda x: jnp.abs(jax.lax.complex(x, x)))(np.float32(1))
    with pytest.raises(NoRule, match="complex"):
        run.run(program, [balls.balls(np.asarray(1.0))], exact=True)
