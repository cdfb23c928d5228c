"""Four hundred pairs that are different, each by its meaning: none is proved beyond its scope.

By shapes, dtypes, names, counts, values, bits, orders, settings of chains, draws, and what Python
makes of a setting. A sample in a plain run, all of them under `--equivalence-full`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from equivalence_tests import ProofError, prove_equivalence
from equivalence_tests.proof.pairs.differences import (
    BITS,
    CHAINS,
    COUNTS,
    DRAWS,
    DTYPES,
    NAMES,
    NOT_FINITE,
    ORDERS,
    ROUNDED,
    SETTINGS,
    SHAPES,
    VALUES,
)
from equivalence_tests.proof.result import IDENTICAL, REALS, Proof
from equivalence_tests.proof.scope import ANY, ANY_SIZE, MOST_AXES
from equivalence_tests.proof.testing import PARAMS, direct, some_or_all

BASES = [
    optax.sgd(0.1),
    optax.sgd(0.1, momentum=0.9),
    optax.rmsprop(0.1),
    optax.lion(0.1),
    optax.adagrad(0.1),
    optax.ema(0.9),
    optax.adam(0.1),
]
EFFECTS: list[Callable[[Any], Any]] = [
    lambda update: 1.5 * update + 1.0,
    lambda update: update + 1.0,
    lambda update: update - 1e-3,
    lambda update: 2 - update,
]
Different = tuple[Any, Any, Any, dict[str, Any]]  # two sides, their parameters, more arguments


def _changed(number: int, condition: Callable[..., Any]) -> tuple[Any, Any]:
    """An optimizer, and one that does something else where a condition holds.

    `condition(path, leaves, count, gradient, parameter)` is asked of every leaf.
    """
    base, effect = BASES[number % len(BASES)], EFFECTS[number % len(EFFECTS)]

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), base.init(params)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        count = state[0] + 1
        updates, inner = base.update(grads, state[1], params)
        leaves = jax.tree.leaves(grads)

        def one(path: Any, update: Any, grad: Any, param: Any) -> Any:
            holds = condition(path, leaves, count, grad, param)
            if isinstance(holds, jax.Array):
                return jnp.where(holds, effect(update), update)
            return effect(update) if holds else update

        changed = jax.tree_util.tree_map_with_path(one, updates, grads, params)
        return changed, (count, inner)

    return base, optax.GradientTransformation(init, update)


def _spread(f: Callable[[Any], Any]) -> Any:
    return direct(lambda g: jnp.broadcast_to(f(g), g.shape).astype(g.dtype))


def _noisy(draw: Callable[..., Any]) -> optax.GradientTransformation:
    def init(params: Any) -> Any:
        return jax.random.key(3), jnp.zeros((), jnp.int32)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        key, now = jax.random.split(state[0])
        noise = jax.tree.map(lambda g: draw(now, state[1], g.shape).astype(g.dtype), grads)
        return jax.tree.map(jnp.add, grads, noise), (key, state[1] + 1)

    return optax.GradientTransformation(init, update)


def _everywhere() -> Iterator[tuple[str, Different]]:
    """Yields those that differ for the parameters with which they are to be proved."""
    for n, (looks, shape) in enumerate(SHAPES):
        sides = _changed(n, lambda path, leaves, t, g, p, looks=looks: looks(g))
        yield f"there shapes {n}", (*sides, {"a": jnp.ones(shape)}, {})
    for n, (looks, dtype) in enumerate(DTYPES):
        sides = _changed(n, lambda path, leaves, t, g, p, looks=looks: looks(g))
        yield f"dtypes {n}", (*sides, {"a": jnp.ones(3, dtype)}, {})
    for n, (looks, tree) in enumerate(NAMES):
        sides = _changed(n, lambda path, leaves, t, g, p, looks=looks: looks(path, leaves))
        yield f"names {n}", (*sides, tree, {})
    for n, on in enumerate(COUNTS):
        sides = _changed(n, lambda path, leaves, t, g, p, on=on: on(t))
        yield f"counts {n}", (*sides, PARAMS, {})
    for n, of in enumerate(VALUES):
        sides = _changed(n, lambda path, leaves, t, g, p, of=of: of(g, p))
        yield f"values {n}", (*sides, PARAMS, {})
    for n, pair in enumerate(ORDERS):
        yield f"orders {n}", (*map(_spread, pair), PARAMS, {})  # pyright: ignore[reportReturnType]
    for n, pair in enumerate(CHAINS):
        yield f"chains {n}", (*pair, PARAMS, {})
    for n, pair in enumerate(DRAWS):
        yield f"draws {n}", (*map(_noisy, pair), PARAMS, {})  # pyright: ignore[reportReturnType]
    for n, (left, right) in enumerate(SETTINGS):
        sides = [lambda hp, of=of: optax.sgd(of(hp["x"])) for of in (left, right)]
        yield f"settings {n}", (*sides, PARAMS, {"hyper_params": {"x": 0.25}})  # pyright: ignore[reportReturnType]


def _in_bits() -> Iterator[tuple[str, Different]]:
    """Yields those that may be equal over the reals, where rounding and infinity do not count."""
    for n, pair in enumerate(BITS):
        yield f"bits {n}", (*map(_spread, pair), PARAMS, {})  # pyright: ignore[reportReturnType]
    for n, pair in enumerate(NOT_FINITE):
        yield f"not finite {n}", (*pair, PARAMS, {})
    for n, on in enumerate(ROUNDED):
        sides = _changed(n, lambda path, leaves, t, g, p, on=on: on(t))
        yield f"rounded {n}", (*sides, PARAMS, {})


EVERYWHERE, IN_BITS = dict(_everywhere()), dict(_in_bits())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = {"everywhere": list(EVERYWHERE), "in_bits": list(IN_BITS)}
    for kind, rows in (names | {"elsewhere": range(len(SHAPES))}).items():
        if kind in metafunc.fixturenames:
            metafunc.parametrize(kind, some_or_all(metafunc.config, rows, every=13))


def _proof(left: Any, right: Any, params: Any, options: dict[str, Any]) -> Proof | None:
    try:
        return prove_equivalence(left, right, params, **options)
    except ProofError:
        return None  # refused, with a message


def test_what_differs_is_not_proved(everywhere: str):
    proof = _proof(*EVERYWHERE[everywhere])
    assert proof is None or proof.verdict not in (IDENTICAL, REALS), proof


def test_what_differs_in_bits_is_not_identical(in_bits: str):
    proof = _proof(*IN_BITS[in_bits])
    assert proof is None or proof.verdict != IDENTICAL, proof
    assert in_bits[:7] != "rounded" or proof is None or proof.assumptions, proof


def test_what_differs_for_another_shape_is_not_proved_for_it(elsewhere: int):
    looks, shape = SHAPES[elsewhere]
    sides = _changed(elsewhere, lambda path, leaves, t, g, p: looks(g))
    scope = prove_equivalence(*sides, PARAMS).scope
    covered = scope.coverage == ANY or (scope.coverage == ANY_SIZE and len(shape) <= MOST_AXES)
    assert 0 in shape or not covered, scope
