"""Pairs of optimizers that are equal, as people write them: the last of four files."""

import jax
import jax.numpy as jnp
import optax

from equivalence_tests.proof.testing import (
    EQUAL_PAIRS,
    direct,
    rule,
    transformation,
    with_schedule,
)

pair = EQUAL_PAIRS.register


@pair("warm-up and cosine, joined")
def _():
    joined = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.1, 10), optax.cosine_decay_schedule(0.1, 90)], [10]
    )
    return optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100)), optax.sgd(joined)


@pair("lamb by hand")
def _():
    def lamb(t, g, p, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        u = (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.1 * p
        a, b = jnp.sqrt(jnp.vdot(p, p)), jnp.sqrt(jnp.vdot(u, u))
        ratio = jnp.where(a * b > 0, a / b, 1.0)
        return -0.01 * ratio * u, m, v

    return optax.lamb(0.01, weight_decay=0.1), rule(lamb, 0.0, 0.0)


@pair("draws by a key that is kept or made")
def _():
    constant = jax.random.key(0)

    def noisy(key):
        def draw(t, g, p):
            return (-0.1 * (g + jax.random.normal(jax.random.fold_in(key(), t), g.shape)),)

        return rule(draw)

    return noisy(lambda: constant), noisy(lambda: jax.random.PRNGKey(0))


@pair("sum of products by einsum")
def _():
    def normalize(g):
        return g / (1 + jnp.einsum("...i,...i->", g, g))

    return direct(lambda g: g / (1 + jnp.trace(jnp.atleast_2d(g) @ jnp.atleast_2d(g).T))), direct(
        normalize
    )


@pair("adam mapped over rows")
def _():
    def by_rows(t, g, p, m, v):
        def row(g, m, v):
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            return -0.01 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v

        return jax.vmap(row)(g, m, v)

    return optax.adam(0.01), rule(by_rows, 0.0, 0.0)


@pair("decay that warms up")
def _():
    def first(t, g, p, m):
        decay = jnp.minimum(0.99, (1 + t) / (10 + t))
        return (decay * m + (1 - decay) * g,) * 2

    def second(t, g, p, m):
        ramp = (1.0 + t) / (10.0 + t)
        decay = jnp.where(ramp < 0.99, ramp, 0.99)
        return (m - (1 - decay) * (m - g),) * 2

    return rule(first, 0.0), rule(second, 0.0)


@pair("three lines by interpolation")
def _():
    def lines(t):
        return jnp.where(t < 100, 0.1 + 0.009 * t, jnp.where(t < 200, 1 - 0.01 * (t - 100), 0.0))

    points = jnp.array([0.0, 100.0, 200.0]), jnp.array([0.1, 1.0, 0.0])
    return with_schedule(lambda t: jnp.interp(t, *points)), with_schedule(lines)


@pair("each leaf clipped to its root mean square")
def _():
    def block(g):
        rms = jnp.sqrt(jnp.mean(g * g))
        return g * jnp.where(rms > 0.1, 0.1 / rms, 1.0)

    return optax.clip_by_block_rms(0.1), direct(block)


@pair("a mean with decay one minus one over t")
def _():
    def first(t, g, p, v):
        decay = 1.0 - t**-0.8
        v = decay * v + (1 - decay) * g * g
        return -0.01 * g / jnp.sqrt(v + 1e-30), v

    def second(t, g, p, v):
        weight = jnp.power(jnp.asarray(t, jnp.float32), -0.8)
        v = v + weight * (g * g - v)
        return -0.01 * g * jax.lax.rsqrt(v + 1e-30), v

    return rule(first, 0.0), rule(second, 0.0)


@pair("exponential decay of a kept rate")
def _():
    def by_state(t, g, p, rate):
        return -rate * g, rate * 0.5

    return optax.sgd(optax.exponential_decay(0.1, 1, 0.5)), rule(by_state, 0.1)


@pair("momentum whose first step copies")
def _():
    def copy_first(t, g, p, m):
        m = jnp.where(t == 1, g, 0.9 * m + g)
        return -0.1 * m, m

    return optax.sgd(0.1, momentum=0.9), rule(copy_first, 0.0)


@pair("rmsprop with momentum, the rate inside")
def _():
    def rms(t, g, p, v, m):
        v = 0.9 * v + 0.1 * g * g
        m = 0.8 * m + 0.01 * g / jnp.sqrt(v + 1e-8)
        return -m, v, m

    return optax.rmsprop(0.01, momentum=0.8), rule(rms, 0.0, 0.0)


@pair("amsgrad with the root kept")
def _():
    def first(t, g, p, v, top):
        v = 0.99 * v + 0.01 * g * g
        top = jnp.maximum(top, v)
        return -0.01 * g / (jnp.sqrt(top) + 1e-8), v, top

    def second(t, g, p, v, top):
        v = 0.99 * v + 0.01 * g * g
        top = jnp.maximum(top, jnp.sqrt(v))
        return -0.01 * g / (top + 1e-8), v, top

    return rule(first, 0.0, 0.0), rule(second, 0.0, 0.0)


@pair("window of three, rolled or shifted")
def _():
    def init(params):
        return jax.tree.map(lambda p: jnp.zeros((3, *p.shape)), params)

    def update(grads, state, params=None):
        state = jax.tree.map(lambda s, g: jnp.roll(s, 1, axis=0).at[0].set(g), state, grads)
        return jax.tree.map(lambda s: s.mean(0), state), state

    shifted = rule(lambda t, g, p, a, b: ((g + a + b) / 3, g, a), 0.0, 0.0)
    return transformation(init, update), shifted


@pair("lion, the sign of a multiple")
def _():
    def lion(t, g, p, m):
        return -0.01 * jnp.sign(9 * m + g), 0.99 * m + 0.01 * g

    return optax.lion(0.01, weight_decay=0.0), rule(lion, 0.0)


@pair("heavy ball by the parameters before")
def _():
    def init(params):
        return params

    def update(grads, state, params):
        new = jax.tree.map(lambda p, q, g: p - 0.1 * g + 0.9 * (p - q), params, state, grads)
        return jax.tree.map(lambda a, b: a - b, new, params), params

    return optax.sgd(0.1, momentum=0.9), transformation(init, update)


@pair("log cosh by its asymptote")
def _():
    def stable(g):
        return jnp.abs(g) + jnp.log1p(jnp.exp(-2 * jnp.abs(g))) - jnp.log(2.0)

    return direct(lambda g: jnp.log(jnp.cosh(g))), direct(stable)


@pair("cycle by the remainder")
def _():
    return (
        with_schedule(lambda t: 0.1 * (1 - (t % 20) / 20)),
        with_schedule(lambda t: 0.1 * (1 - (t / 20 - jnp.floor(t / 20)))),
    )


@pair("window's sum, kept or taken")
def _():
    def by_state(t, g, p, total, a, b):
        total = total + g - b
        return total / 2, total, g, a

    return rule(by_state, 0.0, 0.0, 0.0), rule(lambda t, g, p, a: ((g + a) / 2, g), 0.0)


@pair("adam with sums without their weights")
def _():
    def sums(t, g, p, m, v):
        m, v = 0.9 * m + g, 0.999 * v + g * g
        return (
            -0.01 * (0.1 * m / (1 - 0.9**t)) / (jnp.sqrt(0.001 * v / (1 - 0.999**t)) + 1e-8),
            m,
            v,
        )

    return optax.adam(0.01), rule(sums, 0.0, 0.0)


@pair("optimistic descent by hand")
def _():
    def optimistic(t, g, p, last):
        return -0.1 * (2 * g - jnp.where(t == 1, g, last)), g

    return optax.optimistic_gradient_descent(0.1), rule(optimistic, 0.0)


@pair("linear decay by interpolation")
def _():
    return optax.sgd(optax.linear_schedule(0.1, 0.01, 100)), with_schedule(
        lambda t: jnp.interp(t, jnp.array([0.0, 100.0]), jnp.array([0.1, 0.01]))
    )


@pair("exponential decay by exp")
def _():
    return optax.sgd(optax.exponential_decay(0.1, 10, 0.5)), with_schedule(
        lambda t: 0.1 * jnp.exp(-jnp.log(2.0) * t / 10)
    )
