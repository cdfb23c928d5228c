"""Differences between two optimizers, by their meaning, as data: `false_test` makes the pairs.

Where an optimizer looks at something, the data name what it looks at.
"""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.tree_util import keystr

# DTYPES: the same of dtypes.
DTYPES: list[Any] = [
    (lambda g: g.dtype == jnp.bfloat16, jnp.bfloat16),
    (lambda g: g.dtype != jnp.float32, jnp.float16),
    (lambda g: g.dtype.itemsize == 2, jnp.bfloat16),
    (lambda g: g.itemsize < 4, jnp.float16),
    (lambda g: jnp.finfo(g.dtype).bits < 32, jnp.float16),
    (lambda g: jnp.finfo(g.dtype).eps > 1e-4, jnp.bfloat16),
    (lambda g: float(jnp.finfo(g.dtype).max) < 1e5, jnp.float16),
    (lambda g: str(g.dtype) == "float16", jnp.float16),
    (lambda g: g.dtype.name.startswith("b"), jnp.bfloat16),
    (lambda g: g.dtype in (jnp.float16, jnp.bfloat16), jnp.bfloat16),
    (lambda g: "16" in repr(g.dtype), jnp.float16),
    (lambda g: jnp.result_type(g, jnp.float16) == jnp.float16, jnp.float16),
    (lambda g: jnp.promote_types(g.dtype, jnp.bfloat16) == jnp.bfloat16, jnp.bfloat16),
    (lambda g: (g * 1.0).dtype == jnp.bfloat16, jnp.bfloat16),
    (lambda g: jnp.zeros_like(g).dtype == jnp.float16, jnp.float16),
    (lambda g: hash(g.dtype) == hash(np.dtype("float16")), jnp.float16),
    (lambda g: {np.dtype("float16"): True}.get(g.dtype, False), jnp.float16),
    (lambda g: np.dtype(g.dtype).num == np.dtype("float16").num, jnp.float16),
]

# NAMES: a look at a leaf's path and at all leaves, and a tree for which it answers True.
LEAF = jnp.ones(3)
NAMES: list[Any] = [
    (lambda path, leaves: "head" in keystr(path), {"head": LEAF}),
    (lambda path, leaves: keystr(path) == "['bias']", {"bias": LEAF}),
    (lambda path, leaves: keystr(path).endswith("scale']"), {"scale": LEAF}),
    (lambda path, leaves: len(leaves) > 5, {f"a{i}": LEAF for i in range(6)}),
    (lambda path, leaves: len(leaves) == 1, {"a": LEAF}),
    (lambda path, leaves: len(leaves) % 7 == 0, {f"a{i}": LEAF for i in range(7)}),
    (lambda path, leaves: len(path) > 1, {"a": {"c": LEAF}}),
    (lambda path, leaves: len(path) == 0, LEAF),
    (lambda path, leaves: path and hasattr(path[0], "idx"), [LEAF, LEAF]),
    (lambda path, leaves: path and hasattr(path[0], "name"), optax.TraceState(LEAF)),
    (lambda path, leaves: keystr(path) > "['w", {"w": LEAF}),
    (lambda path, leaves: keystr(path).isupper(), {"W": LEAF}),
    (lambda path, leaves: len(keystr(path)) > 12, {"embedding": LEAF}),
    (lambda path, leaves: hash(keystr(path)) == hash("['w']"), {"w": LEAF}),
    (lambda path, leaves: keystr(path) in {"['w']", "['x']"}, {"x": LEAF}),
    (lambda path, leaves: re.search(r"\d", keystr(path)), {"layer_1": LEAF}),
    (
        lambda path, leaves: sum(leaf.ndim for leaf in leaves) == 4,
        {"a": LEAF[None], "c": LEAF[None]},
    ),
    (lambda path, leaves: leaves[0].shape == leaves[-1].shape, {"a": LEAF}),
    (lambda path, leaves: len({leaf.shape for leaf in leaves}) == 1, {"a": LEAF, "c": LEAF}),
    (lambda path, leaves: leaves[-1].ndim == 1, {"a": LEAF}),
]

# COUNTS: steps (from 1) on which a leaf's update is changed.
COUNTS: list[Any] = [
    lambda t: t == 1,
    lambda t: jax.lax.fori_loop(0, jnp.minimum(t, 90), lambda i, n: n + 1, 0) > 70,
    lambda t: t == 7,
    lambda t: t % 211 == 0,
    lambda t: jnp.mod(t, 1000) == 999,
    lambda t: t > 50000,
    lambda t: t > 10**6,
    lambda t: t == 2**24,
    lambda t: t >= 2**30,
    lambda t: t == 2**31 - 1,
    lambda t: t * t < 0,
    lambda t: t.astype(jnp.int8) < 0,
    lambda t: t.astype(jnp.uint8) == 0,
    lambda t: t & 1023 == 1000,
    lambda t: (t >> 9) == 1,
    lambda t: (t ^ 300) == 0,
    lambda t: jax.lax.population_count(t) == 9,
    lambda t: t // 1000 == 5,
    lambda t: (t - 1) // 30 % 2 == 1,
    lambda t: jnp.sqrt(t.astype(float)) > 1000,
    lambda t: 0.9**t < 1e-20,
    lambda t: jnp.sin(t * 0.001) < -0.5,
    lambda t: (t > 100) & (t < 102),
    lambda t: ~(t < 123),
    lambda t: jnp.clip(t, 0, 900) == 900,
    lambda t: jnp.isin(t, jnp.array([19, 190, 1900])),
    lambda t: jnp.searchsorted(jnp.array([10, 500]), t) == 2,
    lambda t: jnp.array([False] * 64 + [True])[t % 65],
]

# VALUES: numbers of a gradient and a parameter for which an update is changed.
VALUES: list[Any] = [
    lambda g, p: g == 0.25,
    lambda g, p: g == 123.0,
    lambda g, p: g > 1e15,
    lambda g, p: g > 3e38,
    lambda g, p: g < -1e30,
    lambda g, p: jnp.abs(g) < 1e-30,
    lambda g, p: (g != 0) & (jnp.abs(g) < 1e-37),
    lambda g, p: (g > 0.5) & (g < 0.50001),
    lambda g, p: g * g == 4,
    lambda g, p: g == p,
    lambda g, p: g == 3 * p,
    lambda g, p: g * p < -1e6,
    lambda g, p: p == 1,
    lambda g, p: p > 1e10,
    lambda g, p: jnp.sum(g) == 0,
    lambda g, p: jnp.sum(g * g) > 1e12,
    lambda g, p: jnp.max(g) > 1e6,
    lambda g, p: jnp.min(p) < -1e6,
    lambda g, p: jnp.all(g == 0),
    lambda g, p: jnp.all(g > 0),
    lambda g, p: (jnp.ravel(g)[0] == 3) & (jnp.ravel(g)[1] == 5),
    lambda g, p: jnp.argmax(g) == 2,
    lambda g, p: jnp.floor(g) == 17,
    lambda g, p: jnp.mod(g, 1.0) == 0.5,
    lambda g, p: jnp.round(g) == 40,
    lambda g, p: jnp.cos(g) < -0.9999,
    lambda g, p: jnp.exp(g) > 1e20,
    lambda g, p: jnp.tanh(g) > 0.999999,
    lambda g, p: g.astype(jnp.int32) == 99,
    lambda g, p: jnp.prod(g) < 0,
    lambda g, p: jnp.linalg.norm(p) > 1e4,
    lambda g, p: jnp.sort(g.ravel())[0] > 5,
    lambda g, p: (g == 0) & (p == 0),
    lambda g, p: jnp.var(g) == 0,
]

# ROUNDED: the same of what a proof over the reals leaves out: rounding, overflow of counts.
ROUNDED: list[Any] = [
    lambda t: t < 0,
    lambda t: 0.999**t == 0,
    lambda t: jnp.exp(-1.0 * t) == 0,
    lambda t: t.astype(jnp.float16) == jnp.inf,
    lambda t: t.astype(jnp.bfloat16) != t,
]

# BITS: two functions of a gradient that differ by infinities, NaN, signs of zeros, rounding.
BITS: list[Any] = [
    (lambda g: jnp.where(jnp.isinf(g), 0.0, g), lambda g: g),
    (lambda g: jnp.where(jnp.isnan(g), 0.0, g), lambda g: g),
    (lambda g: jnp.where(jnp.isfinite(g), g, 0.0), lambda g: g),
    (lambda g: jnp.nan_to_num(g), lambda g: g),
    (lambda g: jnp.where(g == jnp.inf, 1.0, g), lambda g: g),
    (lambda g: jnp.where(g != g, 1.0, g), lambda g: g),
    (lambda g: jnp.where(g == g, g, 2.0), lambda g: g),
    (lambda g: g - g, jnp.zeros_like),
    (lambda g: g * 0, jnp.zeros_like),
    (lambda g: 0 * g, lambda g: g - g),
    (lambda g: g + 0.0, lambda g: g),
    (lambda g: 0.0 + g, lambda g: g - 0.0),
    (lambda g: 0.0 - g, lambda g: -g),
    (lambda g: (g + 1) - 1, lambda g: g),
    (lambda g: g * 3 / 3, lambda g: g),
    (lambda g: g / 3, lambda g: g * (1 / 3)),
    (lambda g: g / 10, lambda g: g * 0.1),
    (lambda g: (g * 2) * 0.1, lambda g: g * 0.1 + g * 0.1),
    (lambda g: g * 0.1 + g * 0.2, lambda g: g * (0.1 + 0.2)),
    (lambda g: jnp.maximum(g, 0), lambda g: jnp.where(g > 0, g, 0)),
    (lambda g: jnp.maximum(g, 0), lambda g: jnp.where(g < 0, 0, g)),
    (lambda g: jnp.minimum(g, jnp.inf), lambda g: g),
    (lambda g: jnp.abs(g), lambda g: jnp.where(g < 0, -g, g)),
    (lambda g: jnp.sign(g) * jnp.abs(g), lambda g: g),
    (lambda g: jnp.sqrt(g * g), jnp.abs),
    (lambda g: g**3, lambda g: jnp.exp(3 * jnp.log(jnp.abs(g))) * jnp.sign(g)),
    (lambda g: 1 / (1 / g), lambda g: g),
    (lambda g: g.astype(jnp.bfloat16).astype(jnp.float32), lambda g: g),
    (lambda g: g.astype(jnp.float16).astype(jnp.float32), lambda g: g),
    (lambda g: jax.lax.reduce_precision(g, 8, 10), lambda g: g),
    (lambda g: g * 1e30 * 1e-30, lambda g: g),
    (lambda g: g * 1e-30 * 1e30, lambda g: g),
    (lambda g: jnp.sum(g) + g, lambda g: g + jnp.sum(jnp.flip(g))),
    (lambda g: g + jnp.cumsum(g.ravel())[-1], lambda g: g + jnp.sum(g)),
    (lambda g: g, lambda g: jnp.where(g == 0, 0.0, g)),
    (lambda g: jnp.tanh(g), lambda g: 2 * jax.nn.sigmoid(2 * g) - 1),
    (lambda g: jnp.expm1(g), lambda g: jnp.exp(g) - 1),
    (lambda g: jnp.log1p(g * g), lambda g: jnp.log(1 + g * g)),
    (lambda g: jax.lax.rsqrt(g * g + 1), lambda g: 1 / jnp.sqrt(g * g + 1)),
    (lambda g: g + 1e-9, lambda g: g + 1e-9 + 0.0 * g),
]

# NOT_FINITE: two optimizers that differ where a gradient is no finite number.
NOT_FINITE: list[Any] = [
    (optax.adam(0.1), optax.apply_if_finite(optax.adam(0.1), 3)),
    (optax.zero_nans(), optax.identity()),
]

# ORDERS: two functions of a gradient that are different functions of real numbers.
ORDERS: list[Any] = [
    (lambda g: jnp.clip(2 * g, -1, 1), lambda g: 2 * jnp.clip(g, -1, 1)),
    (lambda g: jnp.square(jnp.sum(g)), lambda g: jnp.sum(jnp.square(g))),
    (lambda g: jnp.abs(jnp.mean(g)), lambda g: jnp.mean(jnp.abs(g))),
    (lambda g: g - jnp.mean(g), lambda g: g - jnp.median(g)),
    (lambda g: jnp.sum(g, axis=0), lambda g: jnp.sum(g, axis=-1, keepdims=True)),
    (
        lambda g: jnp.cumsum(g, axis=-1),
        lambda g: jnp.flip(jnp.cumsum(jnp.flip(g, -1), axis=-1), -1),
    ),
    (lambda g: jnp.cumsum(g.ravel()).reshape(g.shape), lambda g: jnp.cumsum(g, axis=0)),
    (lambda g: jnp.roll(g, 1, axis=-1), lambda g: jnp.roll(g, -1, axis=-1)),
    (lambda g: jnp.flip(g, -1), lambda g: g),
    (lambda g: jnp.sort(g, axis=-1), lambda g: g),
    (lambda g: jnp.sort(g, axis=-1), lambda g: -jnp.sort(g, axis=-1)),
    (lambda g: g.T.reshape(g.shape), lambda g: g),
    (lambda g: g.at[..., 0].set(0), lambda g: g.at[..., -1].set(0)),
    (lambda g: g.at[..., 0].add(1), lambda g: g.at[..., 0].set(1)),
    (
        lambda g: jnp.max(g, axis=-1, keepdims=True),
        lambda g: jnp.max(jnp.abs(g), -1, keepdims=True),
    ),
    (lambda g: jnp.maximum(g, 1), lambda g: jnp.minimum(g, 1)),
    (lambda g: jnp.sqrt(g * g + 1), lambda g: jnp.abs(g) + 1),
    (lambda g: 1 / (jnp.sqrt(g * g) + 1e-3), lambda g: 1 / jnp.sqrt(g * g + 1e-3)),
    (lambda g: jnp.floor(g), lambda g: jnp.trunc(g)),
    (lambda g: jnp.floor(g), lambda g: jnp.ceil(g) - 1),
    (lambda g: jnp.round(g), lambda g: jnp.floor(g + 0.5)),
    (lambda g: jnp.mod(g, 3.0), lambda g: jnp.fmod(g, 3.0)),
    (lambda g: jnp.floor_divide(g, 2.0), lambda g: g / 2.0),
    (lambda g: g.astype(jnp.int32), lambda g: g),
    (lambda g: g.astype(jnp.int8), lambda g: g.astype(jnp.int32)),
    (lambda g: g.astype(jnp.uint8), lambda g: g.astype(jnp.int8)),
    (lambda g: g.astype(bool), lambda g: jnp.sign(g)),
    (lambda g: jax.lax.bitcast_convert_type(g, jnp.int32), lambda g: g.astype(jnp.int32)),
    (lambda g: jnp.sign(g), lambda g: g / jnp.maximum(jnp.abs(g), 1e-12)),
    (lambda g: jnp.where(g > 0, 1.0, -1.0), lambda g: jnp.sign(g)),
    (lambda g: jnp.where(g > 0.5, 1.0, 0.0), lambda g: jnp.where(g >= 0.5, 1.0, 0.0)),
    (lambda g: jnp.log1p(jnp.abs(g)), lambda g: jnp.log(jnp.abs(g))),
    (lambda g: jnp.exp2(g), lambda g: jnp.exp(g)),
    (lambda g: jnp.cbrt(g), lambda g: jnp.abs(g) ** (1 / 3)),
    (lambda g: jnp.abs(g) ** 1.5, lambda g: jnp.abs(g) ** 1.50001),
    (lambda g: jnp.tanh(g), lambda g: jax.nn.sigmoid(2 * g)),
    (
        lambda g: jnp.linalg.norm(g),
        lambda g: jnp.linalg.norm(g, ord=1) if g.ndim == 1 else jnp.sum(jnp.abs(g)),
    ),
    (lambda g: jnp.vdot(g, g) * g, lambda g: g**3),
    (lambda g: jnp.argmax(g), lambda g: jnp.argmin(g)),
    (lambda g: jax.lax.stop_gradient(g), lambda g: jax.grad(lambda x: jnp.sum(x**3))(g) / 3),
    2 * (lambda g: jax.lax.rng_uniform(0.0, 1.0, g.shape),),  # two draws
]

# CHAINS: two optimizers whose parts are in another order, or whose settings differ by little.
MOMENT = optax.trace(0.9)
CHAINS: list[Any] = [
    (optax.chain(optax.clip(1.0), MOMENT), optax.chain(MOMENT, optax.clip(1.0))),
    (optax.chain(optax.scale_by_sign(), MOMENT), optax.chain(MOMENT, optax.scale_by_sign())),
    (
        optax.chain(optax.add_decayed_weights(0.1), MOMENT),
        optax.chain(MOMENT, optax.add_decayed_weights(0.1)),
    ),
    (
        optax.chain(optax.clip_by_global_norm(1.0), MOMENT),
        optax.chain(optax.clip_by_block_rms(1.0), MOMENT),
    ),
    (
        optax.chain(optax.scale_by_adam(), optax.scale_by_trust_ratio()),
        optax.chain(optax.scale_by_trust_ratio(), optax.scale_by_adam()),
    ),
    (
        optax.chain(optax.add_noise(0.1, 0.5, 0), MOMENT),
        optax.chain(MOMENT, optax.add_noise(0.1, 0.5, 0)),
    ),
    (optax.sgd(0.1), optax.sgd(0.1000001)),
    (optax.sgd(0.1, momentum=0.9), optax.sgd(0.1, momentum=0.9, nesterov=True)),
    (
        optax.sgd(optax.linear_schedule(0.1, 0.0, 100)),
        optax.sgd(lambda t: optax.linear_schedule(0.1, 0.0, 100)(t + 1)),
    ),
    (
        optax.sgd(optax.cosine_decay_schedule(0.1, 9000)),
        optax.sgd(optax.cosine_decay_schedule(0.1, 9000, alpha=1e-6)),
    ),
    (
        optax.sgd(optax.piecewise_constant_schedule(0.1, {5000: 0.1})),
        optax.sgd(optax.piecewise_constant_schedule(0.1, {5001: 0.1})),
    ),
    (optax.adam(0.1), optax.adam(0.1, eps=1.1e-8)),
    (optax.adam(0.1), optax.adam(0.1, eps_root=1e-30)),
    (optax.adam(0.1), optax.nadam(0.1)),
    (optax.adam(0.1), optax.adamw(0.1, weight_decay=1e-12)),
    (optax.adam(0.1), optax.chain(optax.scale_by_rms(0.999), optax.ema(0.9), optax.scale(-0.1))),
    (
        optax.adamw(0.1, weight_decay=0.1),
        optax.chain(optax.add_decayed_weights(0.1), optax.adam(0.1)),
    ),
    (
        optax.adamw(0.1, mask={"b": True, "k": False}),
        optax.adamw(0.1, mask={"b": False, "k": True}),
    ),
    (optax.ema(0.9), optax.ema(0.9, debias=False)),
    (optax.rmsprop(0.1), optax.rmsprop(0.1, eps_in_sqrt=False)),
    (optax.rmsprop(0.1), optax.rmsprop(0.1, initial_scale=1e-20)),
    (optax.rmsprop(0.1), optax.rmsprop(0.1, centered=True)),
    (optax.adagrad(0.1), optax.adagrad(0.1, initial_accumulator_value=0.1000001)),
    (optax.lion(0.1), optax.lion(0.1, b1=0.99, b2=0.9)),
    (optax.clip_by_global_norm(1e9), optax.identity()),
    (optax.clip(3e38), optax.identity()),
    (optax.MultiSteps(MOMENT, 2), optax.MultiSteps(MOMENT, 3)),
    (optax.MultiSteps(MOMENT, 2), optax.MultiSteps(MOMENT, 2, use_grad_mean=False)),
    (optax.MultiSteps(MOMENT, 2), MOMENT),
    (optax.keep_params_nonnegative(), optax.identity()),
]

# DRAWS: two ways to draw noise of a key, a step's number and a shape.
NORMAL = jax.random.normal
DRAWS: list[Any] = [
    (lambda k, t, s: NORMAL(k, s), lambda k, t, s: NORMAL(jax.random.fold_in(k, 1), s)),
    (lambda k, t, s: NORMAL(k, s), lambda k, t, s: -NORMAL(k, s)),
    (lambda k, t, s: NORMAL(k, s), lambda k, t, s: NORMAL(k, s) * 1.00001),
    (lambda k, t, s: NORMAL(k, s), lambda k, t, s: jax.random.uniform(k, s)),
    (lambda k, t, s: NORMAL(k, s), lambda k, t, s: NORMAL(k, (2, *s))[0]),
    (lambda k, t, s: NORMAL(k, s), lambda k, t, s: NORMAL(k, s, jnp.bfloat16)),
    (
        lambda k, t, s: NORMAL(jax.random.split(k)[0], s),
        lambda k, t, s: NORMAL(jax.random.split(k)[1], s),
    ),
    (lambda k, t, s: jax.random.uniform(k, s), lambda k, t, s: 1 - jax.random.uniform(k, s)),
    (
        lambda k, t, s: jax.random.bernoulli(k, 0.5, s),
        lambda k, t, s: ~jax.random.bernoulli(k, 0.5, s),
    ),
    (lambda k, t, s: NORMAL(jax.random.key(1), s), lambda k, t, s: NORMAL(jax.random.key(2), s)),
    (
        lambda k, t, s: NORMAL(jax.random.key(1), s),
        lambda k, t, s: NORMAL(jax.random.key(1, impl="rbg"), s),
    ),
]

# SETTINGS: two rates of a setting x (0.25 where an example is needed); they differ for some x.
SETTINGS: list[Any] = [
    (lambda x: x, lambda x: 0.25),
    (lambda x: x, lambda x: jnp.where(x == 0.7, 0.0, x)),
    (lambda x: x, lambda x: jnp.where(x > 1e6, 0.0, x)),
    (lambda x: x, lambda x: abs(x)),
    (lambda x: x, lambda x: jnp.maximum(x, 0.0)),
    (lambda x: x, lambda x: jnp.minimum(x, 1.0)),
    (lambda x: x, lambda x: 4 * x * x),
    (lambda x: x, lambda x: x if x != 0.7 else 0.0),
    (lambda x: x, lambda x: x if x > 0 else 0.0),
    (lambda x: x, lambda x: x or 1.0),
    (lambda x: x, lambda x: x if x == 0.25 else 2 * x),
    (lambda x: x, lambda x: x if x < 1000 else 1.0),
    (lambda x: x, lambda x: float(x)),
    (lambda x: x, lambda x: int(x * 4) / 4),
    (lambda x: x, lambda x: round(x, 1)),
    (lambda x: x, lambda x: x // 0.25 * 0.25),
    (lambda x: x, lambda x: 2 * x if isinstance(x, float) else x),
    (lambda x: jnp.sqrt(x), lambda x: 2 * x),
    (lambda x: 1 / x, lambda x: 16 * x),
    (lambda x: x, lambda x: float(str(x)) if not isinstance(x, jax.Array) else 0.25),
]
