"""Pairs of optimizers that are equal, as people write them: the second of four files."""

import jax
import jax.numpy as jnp
import optax

from equivalence_tests.proof.testing import EQUAL_PAIRS, direct, rule, transformation, with_schedule

pair = EQUAL_PAIRS.register


@pair("mean of all gradients")
def _():
    return (
        rule(lambda t, g, p, total: ((total + g) / t, total + g), 0.0),
        rule(lambda t, g, p, mean: (mean + (g - mean) / t,) * 2, 0.0),
    )


@pair("nesterov by velocities")
def _():
    def velocity(t, g, p, v):
        new = 0.9 * v - 0.1 * g
        return -0.9 * v + (1 + 0.9) * new, new

    return optax.sgd(0.1, momentum=0.9, nesterov=True), rule(velocity, 0.0)


@pair("nadam with rates folded")
def _():
    def nadam(t, g, p, m, v):
        m, v = m + 0.1 * (g - m), v + 0.001 * (g * g - v)
        a, b = 0.01 * 0.1 / (1 - 0.9**t), 0.01 * 0.9 / (1 - 0.9 ** (t + 1))
        denom = jnp.sqrt(v / (1 - 0.999**t)) + 1e-8
        return -(a * g) / denom - (b * m) / denom, m, v

    return optax.nadam(0.01), rule(nadam, 0.0, 0.0)


@pair("clip of twice the gradient")
def _():
    return (
        optax.chain(optax.scale(2.0), optax.clip(1.0)),
        optax.chain(optax.clip(0.5), optax.scale(2.0)),
    )


@pair("rate injected")
def _():
    return optax.adam(0.01), optax.inject_hyperparams(optax.adam)(learning_rate=0.01)


@pair("adamax by where")
def _():
    def adamax(t, g, p, m, u):
        m, size, old = 0.9 * m + 0.1 * g, jnp.abs(g) + 1e-8, 0.999 * u
        u = jnp.where(size > old, size, old)
        return -0.01 / (1 - 0.9**t) * m / u, m, u

    return optax.adamax(0.01), rule(adamax, 0.0, 0.0)


@pair("window of three in a ring buffer")
def _():
    def init(params):
        return jnp.zeros((), jnp.int32), jax.tree.map(lambda p: jnp.zeros((3, *p.shape)), params)

    def update(grads, state, params=None):
        count, rows = state
        rows = jax.tree.map(lambda r, g: r.at[count % 3].set(g), rows, grads)
        return jax.tree.map(lambda r: -0.1 * r.sum(0), rows), (count + 1, rows)

    shifted = rule(lambda t, g, p, a, b: (-0.1 * (g + a + b), g, a), 0.0, 0.0)
    return transformation(init, update), shifted


@pair("centred rmsprop by hand")
def _():
    def centre(t, g, p, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g * g
        return -0.01 * g * jax.lax.rsqrt(v - m * m + 1e-8), m, v

    return optax.rmsprop(0.01, centered=True), rule(centre, 0.0, 0.0)


@pair("a sum in a loop")
def _():
    def loop(g):
        total = jax.lax.fori_loop(0, g.shape[0], lambda i, s: s + jnp.sum(g[i] ** 2), 0.0)
        return g / (1 + total)

    return direct(lambda g: g / (1 + jnp.sum(g * g))), direct(loop)


@pair("one second moment for a leaf")
def _():
    def first(t, g, p, v):
        v = 0.9 * v + 0.1 * jnp.mean(g**2)
        return -0.01 * g / (jnp.sqrt(v) + 1e-8), v

    def second(t, g, p, v):
        v = 0.9 * v + 0.1 * jnp.linalg.norm(g) ** 2 / g.size
        return -0.01 * g * (1 / (jnp.sqrt(v) + 1e-8)), v

    return rule(first, 0.0), rule(second, 0.0)


@pair("centred rmsprop by a running variance")
def _():
    def first(t, g, p, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.9 * v + 0.1 * g * g
        return -0.01 * g / jnp.sqrt(v - m**2 + 1e-3), m, v

    def second(t, g, p, m, variance):
        variance = 0.9 * (variance + 0.1 * (g - m) ** 2)
        return -0.01 * g / jnp.sqrt(variance + 1e-3), m + 0.1 * (g - m), variance

    return rule(first, 0.0, 0.0), rule(second, 0.0, 0.0)


@pair("correction kept as a logarithm")
def _():
    def logs(t, g, p, m, log):
        m, log = 0.9 * m + 0.1 * g, log + jnp.log(0.9)
        return m / -jnp.expm1(log), m, log

    return optax.ema(0.9), rule(logs, 0.0, 0.0)


@pair("quadratic decay by hand")
def _():
    return optax.sgd(optax.polynomial_schedule(0.1, 0.01, 2, 100)), with_schedule(
        lambda t: 0.01 + 0.09 * jnp.square(1 - jnp.minimum(t, 100) / 100)
    )


@pair("debiased mean kept itself")
def _():
    def by_state(t, g, p, mean):
        mean = mean + (1 - 0.9) / (1 - 0.9**t) * (g - mean)
        return mean, mean

    return optax.ema(0.9), rule(by_state, 0.0)


@pair("cosine decay by hand")
def _():
    return optax.sgd(optax.cosine_decay_schedule(0.1, 100)), with_schedule(
        lambda t: 0.05 * (1 + jnp.cos(jnp.pi * jnp.minimum(t, 100) / 100))
    )


@pair("steps that remain")
def _():
    def init(params):
        return jnp.array(1000, jnp.int32)

    def update(grads, state, params=None):
        rate = jnp.where(state > 0, 0.1 * state / 1000, 0.0)
        return jax.tree.map(lambda g: -rate * g, grads), state - 1

    return (
        with_schedule(lambda t: 0.1 * jnp.maximum(1000 - t, 0) / 1000),
        transformation(init, update),
    )


@pair("clip relative to the parameter")
def _():
    def first(t, g, p):
        a, b = jnp.maximum(jnp.linalg.norm(p), 1e-3), jnp.linalg.norm(g)
        return (jnp.where(b > 0.01 * a, g * (0.01 * a / jnp.maximum(b, 1e-6)), g),)

    def second(t, g, p):
        a, b = jnp.maximum(jnp.sqrt(jnp.sum(p * p)), 1e-3), jnp.sqrt(jnp.sum(g * g))
        scale = jnp.where(b <= a * 0.01, 1.0, 0.01 * a / jnp.maximum(b, 1e-6))
        return (scale * g,)

    return rule(first), rule(second)


@pair("the rate within the momentum")
def _():
    return optax.sgd(0.1, momentum=0.9), rule(lambda t, g, p, v: (0.9 * v - 0.1 * g,) * 2, 0.0)


@pair("adan with the difference by a product")
def _():
    def adan(t, g, p, last, m, v, n):
        gap = (t > 1) * (g - last)
        m, v = m + 0.02 * (g - m), v + 0.08 * (gap - v)
        n = n + 0.01 * (jnp.square(g + (1 - 0.92) * gap) - n)
        c1, c2, c3 = 1 - 0.98**t, 1 - 0.92**t, 1 - 0.99**t
        return (
            -0.01 * (m / c1 + (1 - 0.92) * v / c2) / (jnp.sqrt(n) / jnp.sqrt(c3) + 1e-8),
            g,
            m,
            v,
            n,
        )

    return optax.adan(0.01, b1=0.98, b2=0.92, b3=0.99, eps=1e-8, eps_root=0.0), rule(
        adan, 0.0, 0.0, 0.0, 0.0
    )


@pair("steps down by where")
def _():
    return optax.sgd(optax.piecewise_constant_schedule(0.1, {10: 0.1, 20: 0.5})), with_schedule(
        lambda t: jnp.where(t < 10, 0.1, jnp.where(t < 20, 0.01, 0.005))
    )


@pair("nadam by hand")
def _():
    def nadam(t, g, p, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        ahead = 0.9 * m / (1 - 0.9 ** (t + 1)) + 0.1 * g / (1 - 0.9**t)
        return -0.01 * ahead / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8), m, v

    return optax.nadam(0.01), rule(nadam, 0.0, 0.0)


@pair("a counter that stops at 0")
def _():
    def init(params):
        return jnp.array(100, jnp.int32)

    def update(grads, state, params=None):
        rate = jnp.where(state > 0, 0.1, 0.05)
        return jax.tree.map(lambda g: -rate * g, grads), jnp.maximum(state - 1, 0)

    return transformation(init, update), with_schedule(lambda t: jnp.where(t < 100, 0.1, 0.05))


@pair("lion by lerps")
def _():
    def lion(t, g, p, m):
        direction = jnp.sign(m + (1 - 0.9) * (g - m))
        return -(p - (p * (1 - 0.01 * 0.1) - 0.01 * direction)), m + (1 - 0.99) * (g - m)

    return optax.lion(0.01, weight_decay=0.1), rule(lion, 0.0)


@pair("adadelta with the signed step")
def _():
    def adadelta(t, g, p, x, v):
        v = v + 0.1 * (g**2 - v)
        step = -g * jnp.sqrt(x + 1e-6) * jax.lax.rsqrt(v + 1e-6)
        return step, x + 0.1 * (step**2 - x), v

    return optax.adadelta(1.0), rule(adadelta, 0.0, 0.0)


@pair("clipped by value with where")
def _():
    return optax.clip(0.5), direct(lambda g: jnp.where(jnp.abs(g) > 0.5, 0.5 * jnp.sign(g), g))
