"""Pairs of optimizers that are equal, as people write them: the first of four files."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax

from equivalence_tests.proof.testing import (
    EQUAL_PAIRS,
    direct,
    rule,
    transformation,
    whole,
    with_schedule,
)

pair = EQUAL_PAIRS.register


@pair("gradient noise of one draw, scaled")
def _():
    def init(params):
        return jax.random.key(0)

    def noisy(scale):
        def update(grads, state, params=None):
            state, key = jax.random.split(state)
            return jax.tree.map(lambda g: scale(g, jax.random.normal(key, g.shape)), grads), state

        return transformation(init, update)

    return noisy(lambda g, n: -0.1 * (g + 0.01 * n)), noisy(lambda g, n: -0.1 * g - 0.001 * n)


@pair("soft clip by sigmoid")
def _():
    return direct(lambda g: jnp.tanh(g)), direct(lambda g: 2 * jax.nn.sigmoid(2 * g) - 1)


@pair("triangle by absolute value")
def _():
    def tent(t):
        x = t % 20
        return 0.1 * (1 - jnp.abs(x - 10) / 10)

    def cases(t):
        x = jnp.mod(t, 20)
        return jnp.where(x < 10, 0.01 * x, 0.1 - 0.01 * (x - 10))

    return with_schedule(tent), with_schedule(cases)


@pair("cautious mask")
def _():
    def first(t, g, p, m):
        m = 0.9 * m + 0.1 * g
        return -0.1 * jnp.where(m * g > 0, m, 0.0), m

    def second(t, g, p, m):
        m = 0.9 * m + 0.1 * g
        return -0.1 * m * (jnp.sign(m) * jnp.sign(g) > 0).astype(g.dtype), m

    return rule(first, 0.0), rule(second, 0.0)


@pair("adan by hand")
def _():
    def adan(t, g, p, m, v, n, last):
        gap = jnp.where(t == 1, 0.0, g - last)
        m, v = 0.98 * m + 0.02 * g, 0.92 * v + 0.08 * gap
        n = 0.99 * n + 0.01 * (g + 0.08 * gap) ** 2
        top = m / (1 - 0.98**t) + 0.08 * v / (1 - 0.92**t)
        return -0.01 * top / (jnp.sqrt(n / (1 - 0.99**t)) + 1e-8), m, v, n, g

    return optax.adan(0.01, b1=0.98, b2=0.92, b3=0.99, eps=1e-8, eps_root=0.0), rule(
        adan, 0.0, 0.0, 0.0, 0.0
    )


@pair("mean of a mean")
def _():
    def first(t, g, p, a, b):
        a = 0.9 * a + 0.1 * g
        b = 0.9 * b + 0.1 * a
        return 2 * a - b, a, b

    def second(t, g, p, a, b):
        a = a + (g - a) / 10
        b = b + (a - b) / 10
        return a + (a - b), a, b

    return rule(first, 0.0, 0.0), rule(second, 0.0, 0.0)


@pair("rmsprop with powers")
def _():
    def rms(t, g, p, v):
        v = 0.9 * v + 0.1 * g**2
        return -0.01 * g * (v + 1e-8) ** -0.5, v

    return optax.rmsprop(0.01), rule(rms, 0.0)


@pair("staircase by whole division")
def _():
    return optax.sgd(optax.exponential_decay(0.1, 30, 0.5, staircase=True)), with_schedule(
        lambda t: 0.1 * 0.5 ** (t // 30)
    )


@pair("lion by cases")
def _():
    def lion(t, g, p, m):
        c = 0.9 * m + 0.1 * g
        sign = jnp.where(c > 0, 1.0, jnp.where(c < 0, -1.0, 0.0))
        return -0.01 * (sign + 0.1 * p), 0.99 * m + 0.01 * g

    return optax.lion(0.01, weight_decay=0.1), rule(lion, 0.0)


@pair("global norm of one long vector")
def _():
    def clip_update(grads):
        flat, back = jax.flatten_util.ravel_pytree(grads)
        norm = jnp.sqrt(jnp.dot(flat, flat))
        return back(jnp.where(norm < 1.0, flat, flat / norm))

    return optax.clip_by_global_norm(1.0), whole(clip_update)


@pair("softplus by logaddexp")
def _():
    return direct(lambda g: jax.nn.softplus(g)), direct(lambda g: jnp.log(1 + jnp.exp(g)))


@pair("adabelief by hand")
def _():
    def belief(t, g, p, m, s):
        new = m + 0.1 * (g - m)
        s = 0.999 * s + 0.001 * jnp.square(g - new) + 1e-16
        return -0.01 * new / (1 - 0.9**t) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-16), new, s

    return optax.adabelief(0.01, eps=1e-16, eps_root=1e-16), rule(belief, 0.0, 0.0)


@pair("frozen for ten steps")
def _():
    return (
        rule(lambda t, g, p: (jnp.where(t <= 10, 0.0, -0.1 * g),)),
        rule(lambda t, g, p: (-0.1 * g * (t > 10),)),
    )


@pair("two momenta, apart or stacked")
def _():
    def apart(t, g, p, a, b):
        a, b = 0.9 * a + g, 0.99 * b + g
        return -0.1 * (a + b) / 2, a, b

    def init(params):
        return jax.tree.map(lambda p: jnp.zeros((2, *p.shape)), params)

    def update(grads, state, params=None):
        decays = jnp.array([0.9, 0.99])
        state = jax.tree.map(
            lambda s, g: decays.reshape(2, *(1,) * g.ndim) * s + g[None], state, grads
        )
        return jax.tree.map(lambda s: -0.1 * jnp.mean(s, axis=0), state), state

    return rule(apart, 0.0, 0.0), transformation(init, update)


@pair("a count that is a float")
def _():
    def init(params):
        return {"mean": jax.tree.map(jnp.zeros_like, params), "step": jnp.ones(())}

    def update(grads, state, params=None):
        mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], grads)
        step = state["step"]
        return jax.tree.map(lambda m: m / (1 - 0.9**step), mean), {"mean": mean, "step": step + 1}

    return optax.ema(0.9), transformation(init, update)


@pair("a counter that goes round")
def _():
    def init(params):
        return jnp.array(4, jnp.int32)

    def update(grads, state, params=None):
        scale = jnp.where(state == 0, -0.5, -0.1)
        return jax.tree.map(lambda g: scale * g, grads), jnp.where(state == 0, 4, state - 1)

    return transformation(init, update), with_schedule(lambda t: jnp.where(t % 5 == 4, 0.5, 0.1))


@pair("clipped by the global norm, as a factor")
def _():
    def clip_update(grads):
        norm = jnp.sqrt(sum(jnp.sum(jnp.square(g)) for g in jax.tree.leaves(grads)))
        factor = 1.0 / jnp.maximum(1.0, norm)
        return jax.tree.map(lambda g: g * factor, grads)

    return optax.clip_by_global_norm(1.0), whole(clip_update)


@pair("the transformer's schedule")
def _():
    def first(t):
        t = t + 1.0
        return 512**-0.5 * jnp.minimum(t**-0.5, t * 4000**-1.5)

    def second(t):
        t = t + 1.0
        return jax.lax.rsqrt(512.0) * jnp.where(t < 4000, t / 4000**1.5, jax.lax.rsqrt(t))

    return with_schedule(first), with_schedule(second)


@pair("adam, powers kept in the state")
def _():
    def powers(t, g, p, m, v, a, b):
        m, v, a, b = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, a * 0.9, b * 0.999
        return -0.01 * (m / (1 - a)) / (jnp.sqrt(v / (1 - b)) + 1e-8), m, v, a, b

    return optax.adam(0.01), rule(powers, 0.0, 0.0, 1.0, 1.0)


@pair("centralized gradients by hand")
def _():
    def centre(g):
        return g if g.ndim < 2 else g - jnp.sum(g, axis=1, keepdims=True) / g.shape[1]

    return optax.centralize(), direct(centre)


@pair("lars by hand")
def _():
    def lars(t, g, p, m):
        g = g + 1e-4 * p
        a, b = jnp.sqrt(jnp.sum(p**2)), jnp.sqrt(jnp.sum(g**2))
        m = 0.9 * m + 0.1 * jnp.where(a > 0, jnp.where(b > 0, 0.001 * a / b, 1.0), 1.0) * g
        return -m, m

    return optax.lars(0.1, weight_decay=1e-4), rule(lars, 0.0)


@pair("radam by hand")
def _():
    def radam(t, g, p, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        most, power = 2 / (1 - 0.999) - 1, 0.999**t
        rho = most - 2 * t * power / (1 - power)
        hat = m / (1 - 0.9**t)
        r = jnp.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
        adaptive = r * hat / (jnp.sqrt(v / (1 - power)) + 1e-8)
        return -0.01 * jnp.where(rho < 5, hat, adaptive), m, v

    return optax.radam(0.01), rule(radam, 0.0, 0.0)


@pair("belief from the mean before")
def _():
    def first(t, g, p, m, s):
        new = 0.9 * m + 0.1 * g
        s = 0.99 * s + 0.01 * (g - new) ** 2
        return -0.01 * new / (jnp.sqrt(s) + 1e-8), new, s

    def second(t, g, p, m, s):
        gap = g - m
        new, s = m + 0.1 * gap, 0.99 * s + 0.01 * 0.81 * gap * gap
        return -0.01 * new / (jnp.sqrt(s) + 1e-8), new, s

    return rule(first, 0.0, 0.0), rule(second, 0.0, 0.0)


@pair("warm-up by a minimum")
def _():
    warm = optax.join_schedules(
        [optax.linear_schedule(0.0, 0.1, 10), optax.constant_schedule(0.1)], [10]
    )
    return optax.sgd(warm), with_schedule(lambda t: 0.1 * jnp.minimum(1.0, t / 10))
