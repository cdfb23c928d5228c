"""Pairs that are different, each by its meaning: none is proved beyond its scope.

By shapes, dtypes, names, counts, values, bits, orders, settings of chains, draws, and what Python
makes of a setting.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equivalence_tests import ProofError, prove_equivalence
from equivalence_tests.proof.counterexample.search import Search
from equivalence_tests.proof.pairs.testdata.differences import (
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
    VALUES,
)
from equivalence_tests.proof.result import IDENTICAL, REALS, Proof
from equivalence_tests.proof.scope import ANY, ANY_SIZE, MOST_AXES
from equivalence_tests.proof.testing import PARAMS, direct, transformation

# A leaf's look at itself, and a shape for which it answers True; here, since what the
# prover's own files read of shapes is no look at them.
SHAPES: list[Any] = [
    (lambda g: g.ndim == 0, ()),
    (lambda g: not g.shape, ()),
    (lambda g: g.size == 0, (0,)),
    (lambda g: g.size == 1, (1,)),
    (lambda g: sum(g.shape) == 11, (5, 6)),
    (lambda g: math.prod(g.shape) == 42, (6, 7)),
    (lambda g: int(np.prod(g.shape)) == 42, (6, 7)),
    (lambda g: max(g.shape, default=0) > 512, (513,)),
    (lambda g: min(g.shape, default=9) > 8, (9, 9)),
    (lambda g: g.ndim == 2 and g.shape[0] > g.shape[1], (4, 2)),
    (lambda g: g.nbytes > 10**4, (5000,)),
    (lambda g: g.size.bit_length() > 10, (2000,)),
    (lambda g: divmod(g.size, 128) == (1, 0), (128,)),
    (lambda g: g.size & 1023 == 5, (5,)),
    (lambda g: repr(g.shape) == "(8, 8)", (8, 8)),
    (lambda g: g.T.shape[:1] == (99,), (2, 99)),
    (lambda g: float(g.size) > 1e4, (10001,)),
    (lambda g: g.reshape(-1).shape[0] == 640, (640,)),
    (lambda g: jnp.concatenate([g.ravel(), g.ravel()]).shape[0] == 88, (44,)),
    (lambda g: jnp.shape(g) == (44,), (44,)),
    (lambda g: tuple(sorted(g.shape)) == (2, 9), (9, 2)),
    (lambda g: g.shape > (600,), (640,)),
    (lambda g: {10: True}.get(g.size, False), (10,)),
    (lambda g: g.shape.count(5) == 2, (5, 5)),
    (lambda g: round(g.size**0.5) ** 2 == g.size and g.size > 1, (3, 3)),
    (lambda g: [axis for axis in g.shape if axis == 31] != [], (31,)),
]

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
    """An optimizer, and one that does something else where a condition holds."""
    base, effect = BASES[number % len(BASES)], EFFECTS[number % len(EFFECTS)]

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), base.init(params)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        count = state[0] + 1
        updates, inner = base.update(grads, state[1], params)
        leaves = jax.tree.leaves(grads)

        def one(path: Any, update: Any, grad: Any, param: Any) -> Any:
            represents_integers = condition(path, leaves, count, grad, param)
            if isinstance(represents_integers, jax.Array):
                return jnp.where(represents_integers, effect(update), update)
            return effect(update) if represents_integers else update

        changed = jax.tree_util.tree_map_with_path(one, updates, grads, params)
        return changed, (count, inner)

    return base, transformation(init, update)


def _spread(f: Callable[[Any], Any]) -> Any:
    return direct(lambda g: jnp.broadcast_to(f(g), g.shape).astype(g.dtype))


def _noisy(draw: Callable[..., Any]) -> optax.GradientTransformation:
    def init(params: Any) -> Any:
        return jax.random.key(3), jnp.zeros((), jnp.int32)

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        key, now = jax.random.split(state[0])
        noise = jax.tree.map(lambda g: draw(now, state[1], g.shape).astype(g.dtype), grads)
        return jax.tree.map(jnp.add, grads, noise), (key, state[1] + 1)

    return transformation(init, update)


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
            metafunc.parametrize(kind, rows)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the long search for an input, which comes after every attempt to prove."""
    monkeypatch.setattr(Search, "find_patiently", lambda search: None)


def _proof(left: Any, right: Any, params: Any, options: dict[str, Any]) -> Proof | None:
    try:
        return prove_equivalence(left, right, params, **options)
    except ProofError:
        return None  # refused, with a message


def test_what_differs_is_not_proved(everywhere: str):
    proof = _proof(*EVERYWHERE[everywhere])
    if proof is None or proof.verdict not in (IDENTICAL, REALS):
        return
    # A setting that is looked at by its size stays one number, and the scope says so.
    assert "settings" in everywhere and proof.scope.settings == (), proof
    assert proof.scope.fixed == {"x": 0.25} and "with x = 0.25 alone" in str(proof.scope)


def test_what_differs_in_bits_is_not_identical(in_bits: str):
    proof = _proof(*IN_BITS[in_bits])
    assert proof is None or proof.verdict != IDENTICAL, proof
    assert in_bits[:7] != "rounded" or proof is None or proof.assumptions[1:], proof


def test_what_differs_for_another_shape_is_not_proved_for_it(elsewhere: int):
    looks, shape = SHAPES[elsewhere]
    sides = _changed(0, lambda path, leaves, t, g, p: looks(g))
    scope = prove_equivalence(*sides, PARAMS).scope
    covered = scope.coverage == ANY or (scope.coverage == ANY_SIZE and len(shape) <= MOST_AXES)
    assert 0 in shape or not covered, scope
