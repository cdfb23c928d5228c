"""Pairs of optimizers that are equal, as people write them: the third of four files."""

from typing import Any

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


@pair("trust ratio by linalg")
def _():
    def ratio(t, g, p):
        a, b = jnp.linalg.norm(p), jnp.linalg.norm(g)
        return (-0.1 * g * jnp.where((a == 0) | (b == 0), 1.0, 0.001 * a / b),)

    return optax.chain(
        optax.scale_by_trust_ratio(trust_coefficient=0.001), optax.scale(-0.1)
    ), rule(ratio)


@pair("adam, corrections folded into the rate")
def _():
    def with_rates(t, g, p, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        root = jnp.sqrt(1 - 0.999**t)
        return -1e-3 * root / (1 - 0.9**t) * m / (jnp.sqrt(v) + 1e-8 * root), m, v

    return optax.adam(1e-3), rule(with_rates, 0.0, 0.0)


@pair("amsgrad by where")
def _():
    def amsgrad(t, g, p, m, v, top):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        hat = v / (1 - 0.999**t)
        top = jnp.where(hat >= top, hat, top)
        return -0.01 * m / (1 - 0.9**t) / (jnp.sqrt(top) + 1e-8), m, v, top

    return optax.amsgrad(0.01), rule(amsgrad, 0.0, 0.0, 0.0)


@pair("nesterov by hand")
def _():
    def nesterov(t, g, p, m):
        m = 0.9 * m + g
        return -0.1 * (g + 0.9 * m), m

    return optax.sgd(0.1, momentum=0.9, nesterov=True), rule(nesterov, 0.0)


@pair("cosine decay to a floor")
def _():
    def floor(t):
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * jnp.clip(t / 50, 0, 1)))
        return 0.01 + (0.1 - 0.01) * cosine

    return optax.sgd(optax.cosine_decay_schedule(0.1, 50, alpha=0.1)), with_schedule(floor)


@pair("clipped second-order step")
def _():
    def first(t, g, p, m, h):
        m, h = 0.9 * m + 0.1 * g, 0.99 * h + 0.01 * g * g
        return -0.01 * jnp.clip(m / jnp.maximum(0.05 * h, 1e-12), -1, 1), m, h

    def second(t, g, p, m, h):
        m, h = 0.9 * m + 0.1 * g, 0.99 * h + 0.01 * g * g
        denom = jnp.maximum(0.05 * h, 1e-12)
        return -0.01 * jnp.sign(m) * jnp.minimum(jnp.abs(m) / denom, 1.0), m, h

    return rule(first, 0.0, 0.0), rule(second, 0.0, 0.0)


@pair("lerp from the other end")
def _():
    return optax.ema(0.99, debias=False), rule(lambda t, g, p, m: (g + 0.99 * (m - g),) * 2, 0.0)


@pair("linear decay by a maximum")
def _():
    return optax.sgd(optax.linear_schedule(0.1, 0.0, 100)), with_schedule(
        lambda t: 0.1 * jnp.maximum(0.0, 1 - t / 100)
    )


@pair("damped momentum is a mean")
def _():
    return (
        optax.chain(optax.ema(0.9, debias=False), optax.scale(-0.01)),
        optax.sgd(0.001, momentum=0.9),
    )


@pair("moments of one flat vector")
def _():
    inner = optax.sgd(0.1, momentum=0.9)

    def flat(tree: Any) -> Any:
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])

    def update(grads, state, params):
        step: Any
        step, state = inner.update(flat(grads), state, flat(params))
        return jax.flatten_util.ravel_pytree(params)[1](step), state

    return inner, transformation(lambda params: inner.init(flat(params)), update)


@pair("momentum row by row in a scan")
def _():
    def by_scan(t, g, p, m):
        def row(carry, pair):
            m = 0.9 * pair[0] + pair[1]
            return carry, (-0.1 * m, m)

        return jax.lax.scan(row, None, (m, g))[1]

    return optax.sgd(0.1, momentum=0.9), rule(by_scan, 0.0)


@pair("novograd by hand")
def _():
    def init(params):
        return jnp.zeros((), jnp.int32), params, jax.tree.map(lambda p: jnp.zeros(()), params)

    def update(grads, state, params):
        first = state[0] == 0
        v = jax.tree.map(
            lambda v, g: jnp.where(first, jnp.sum(g * g), 0.25 * v + 0.75 * jnp.sum(g * g)),
            state[2],
            grads,
        )
        u = jax.tree.map(lambda g, v, p: g / (jnp.sqrt(v) + 1e-6) + 0.1 * p, grads, v, params)
        m = jax.tree.map(lambda m, u: jnp.where(first, u, 0.9 * m + u), state[1], u)
        return jax.tree.map(lambda m: -0.01 * m, m), (state[0] + 1, m, v)

    return optax.novograd(0.01, weight_decay=0.1), transformation(init, update)


@pair("correction kept as one minus a power")
def _():
    def by_state(t, g, p, m, c):
        m, c = 0.9 * m + 0.1 * g, 1 - 0.9 * (1 - c)
        return m / c, m, c

    return optax.ema(0.9), rule(by_state, 0.0, 0.0)


@pair("decay of some by a mask")
def _():
    mask = {"b": False, "k": True}
    second = optax.multi_transform(
        {"yes": optax.adamw(0.01, weight_decay=0.1), "no": optax.adam(0.01)},
        {"b": "no", "k": "yes"},
    )
    return optax.adamw(0.01, weight_decay=0.1, mask=mask), second


@pair("slow weights by cond and by where")
def _():
    def by_where(t, g, p, slow):
        fast = p - 0.1 * g
        due = t % 5 == 0
        slow = jnp.where(due, slow + 0.5 * (fast - slow), slow)
        return jnp.where(due, slow, fast) - p, slow

    def by_cond(t, g, p, slow):
        def pull(fast, slow):
            slow = 0.5 * slow + 0.5 * fast
            return slow, slow

        fast = p - 0.1 * g
        fast, slow = jax.lax.cond(t % 5 == 0, pull, lambda fast, slow: (fast, slow), fast, slow)
        return fast - p, slow

    return rule(by_where, 0.0), rule(by_cond, 0.0)


@pair("global norm, squares compared")
def _():
    def clip_update(grads):
        square = sum(jnp.vdot(g, g) for g in jax.tree.leaves(grads))
        factor = jnp.where(square < 4.0, 1.0, 2.0 * jax.lax.rsqrt(square))
        return jax.tree.map(lambda g: g * factor, grads)

    return optax.clip_by_global_norm(2.0), whole(clip_update)


@pair("schedule before and after the moments")
def _():
    schedule = optax.linear_schedule(0.1, 0.0, 50)
    return optax.adam(schedule), optax.chain(
        optax.scale_by_adam(), optax.scale_by_schedule(lambda t: -1.0 * jnp.asarray(schedule(t)))
    )


@pair("sign of momentum or of its mean")
def _():
    def signum(t, g, p, m):
        m = 0.9 * m + 0.1 * g
        return -0.01 * jnp.sign(m), m

    return optax.chain(optax.trace(0.9), optax.scale_by_sign(), optax.scale(-0.01)), rule(
        signum, 0.0
    )


@pair("two iterations unrolled")
def _():
    def by_loop(g):
        for a, b in ((1.5, -0.5), (1.4, -0.4)):
            g = a * g + b * g**3
        return g

    def by_scan(g):
        weights = jnp.array([[1.5, -0.5], [1.4, -0.4]])
        return jax.lax.scan(lambda x, w: (w[0] * x + w[1] * x**3, None), g, weights)[0]

    return direct(by_loop), direct(by_scan)


@pair("adagrad by hand")
def _():
    def adagrad(t, g, p, total):
        total = total + g * g
        return -0.1 * g / jnp.sqrt(total + 1e-7), total

    return optax.adagrad(0.1), rule(adagrad, 0.1)
