"""Pairs beside those that a rule makes equal: they differ just where the rule would be wrong."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flint import fmpq
from jax import lax

from equivalence_tests.proof.algebra.algebra import Algebra
from equivalence_tests.proof.algebra.cases import Cases
from equivalence_tests.proof.counterexample.search import Search
from equivalence_tests.proof.errors import NoRule
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import UNDECIDED
from equivalence_tests.proof.testing import direct, rule, text_of, transformation, with_schedule

PARAMS = {"k": jnp.ones((2, 3))}
# What wraps round, computed in 8 bits and of the numbers that these hold.
IN_8_BITS: dict[str, Callable[[Any], Any]] = {
    "negative": jnp.negative,
    "magnitude": jnp.abs,
    "sum": lambda x: x + x[::-1],
    "product": lambda x: x * x[::-1],
    "power": lambda x: lax.integer_pow(x, 3),
    "quotient": lambda x: lax.div(x, jnp.full_like(x, -1)),
    "total": lambda x: x.sum(dtype=x.dtype),
    "scalar product": lambda x: x.ravel() @ x.ravel(),
}
OF_GRADIENTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **{
        f"{name} in 8 bits": (
            lambda g, f=f: f(g.astype(jnp.int8)).astype(float),
            lambda g, f=f: f(g.astype(jnp.int8).astype(float)),
        )
        for name, f in IN_8_BITS.items()
    },
    "total of two in 8 bits": (
        lambda g: jnp.concatenate([g.astype(jnp.int8)] * 2).sum(dtype=jnp.int8).astype(float),
        lambda g: 2 * g.astype(jnp.int8).sum(dtype=jnp.int8).astype(float),
    ),
    "floor in 8 bits": (lambda g: jnp.floor(g).astype(jnp.int8).astype(float), jnp.floor),
    "one of two, not both": (lambda g: 1.0 * ((g > 0) ^ (g > 1)), lambda g: 1.0 * (g > 0)),
    "a clamp of crossed ends": (
        lambda g: lax.clamp(jnp.float32(1), g, jnp.float32(0)),
        lambda g: 1 + 0 * g,
    ),
    "the next number of another dtype": (
        lambda g: jnp.nextafter(g.astype(jnp.bfloat16), jnp.bfloat16(0)).astype(float),
        lambda g: jnp.nextafter(g, 0.0),
    ),
    "rounded": (jnp.round, lambda g: g),
    "halves": (lambda g: lax.round(g, lax.RoundingMethod.AWAY_FROM_ZERO), jnp.round),
    "over what is denormal": (lambda g: g / 2.0**-140, lambda g: g * jnp.inf),
    "fourth root of a square": (lambda g: (g * g) ** 0.25, lambda g: jnp.sqrt(g)),
    "sixth root of a cube": (lambda g: (g * g + g**3) ** 0.25, lambda g: (g + g * g) ** 0.5),
    "root of a root, one more": (lambda g: (g * g + 1) ** 0.125, lambda g: (g * g + 1) ** 0.25),
    "logarithm of a square": (lambda g: jnp.log(g * g), lambda g: 2 * jnp.log(g)),
    "logarithm of a product": (lambda g: jnp.log(3 * g * g + 3), lambda g: jnp.log(g * g + 1)),
    "log cosh without a case": (
        lambda g: jnp.log(jnp.cosh(g)),
        lambda g: jnp.abs(g) + jnp.log1p(jnp.exp(-2 * g)) - jnp.log(2.0),
    ),
    "floor of twice": (lambda g: jnp.floor(2 * g), lambda g: 2 * jnp.floor(g)),
    "floor with a half": (lambda g: jnp.floor(g + 0.5), lambda g: jnp.floor(g) + 0.5),
    "an inverse below 0": (
        lambda g: g * jnp.minimum(1.0, 1 / jnp.sum(g)),
        lambda g: g / jnp.maximum(1.0, jnp.sum(g)),
    ),
    "above 0 or from 1 on": (lambda g: 1.0 * (g > 0), lambda g: 1.0 * (g >= 1)),
    "a tie": (lambda g: 1.0 * (g > 1), lambda g: 1.0 * (g >= 1)),
    "where one of two is 0": (
        lambda g: jnp.where(g * g.sum() > 0, g, 0),
        lambda g: jnp.where((g > 0) & (g.sum() > 0), g, 0),
    ),
    "a mean for a maximum": (
        lambda g: jnp.where(g >= g.mean(), g, 0),
        lambda g: jnp.where(g >= g.max(), g, 0),
    ),
    "a constant near a root": (lambda g: g * 0.044194, lambda g: g * lax.rsqrt(512.0)),
    "a power near another": (lambda g: g * 1000**-1.5, lambda g: g * 1001**-1.5),
    "largest or first": (
        lambda g: jnp.where(g[:1] == g[:1].max(), g[:1], 0),
        lambda g: g[:1] * jax.nn.one_hot(g[:1].argmax(), 3),
    ),
    "largest or smallest": (lambda g: g[g[:, 0].argmax()], lambda g: g[g[:, 0].argmin()]),
    "the first or the last of two": (
        lambda g: g[jnp.argmax(g[:, 0])],
        lambda g: g[1 - jnp.argmax(g[::-1, 0])],
    ),
    "more than one maximum": (lambda g: 1.0 * (g >= g.max()), lambda g: 1.0 * (2 * g >= g.max())),
    "padded with 1": (
        lambda g: jnp.pad(g, 1, constant_values=1.0).sum() * g,
        lambda g: g.sum() * g,
    ),
    "flipped": (lambda g: jnp.flip(g, 1), lambda g: g),
    "flipped along the other axis": (lambda g: jnp.flip(g, 1), lambda g: jnp.flip(g, 0)),
    "another row": (lambda g: g[jnp.int32(g[0, 0] > 0)], lambda g: g[1]),
    "a row beyond the end": (
        lambda g: g.at[jnp.where(g[0, 0] > 0, 2, 0)].set(0.0),
        lambda g: g.at[jnp.where(g[0, 0] > 0, 1, 0)].set(0.0),
    ),
    "set or added": (lambda g: g.at[1].set(3.0), lambda g: g.at[1].add(3.0)),
    "filled or clipped": (
        lambda g: jnp.take(g, jnp.where(g[0, 0] > 0, 5, 0), axis=0, mode="fill", fill_value=0.0),
        lambda g: jnp.take(g, jnp.where(g[0, 0] > 0, 5, 0), axis=0, mode="clip"),
    ),
    "another key": (
        lambda g: jax.random.normal(jax.random.key(0), g.shape),
        lambda g: jax.random.normal(jax.random.PRNGKey(1), g.shape),
    ),
    "another generator": (
        lambda g: jax.random.normal(jax.random.key(0), g.shape),
        lambda g: jax.random.normal(jax.random.key(0, impl="rbg"), g.shape),
    ),
    "a total of ones": (lambda g: g * (g + 1).sum(), lambda g: g * (g.sum() + 1)),
    "none above the smallest": (lambda g: jnp.where(g <= g.min(), g, 0), lambda g: g),
    "whole numbers": (lambda g: 1.0 * (jnp.floor(g) == g), lambda g: 0 * g),
    "the sign of a quotient": (lambda g: 1.0 * (g / g.sum() > 0), lambda g: 1.0 * (g > 0)),
    "an even factor": (lambda g: 1.0 * (g * g * g.sum() > 0), lambda g: 1.0 * (g.sum() > 0)),
    "above a number alone": (
        lambda g: jnp.where(g == 1, 1.0, jnp.where(g > 1, g, 0)),
        lambda g: jnp.where(g == 1, 1.0, g),
    ),
    "a row that is moved to the end": (
        lambda g: lax.dynamic_update_slice(g, 0 * g[:1], (jnp.where(g[0, 0] > 0, 5, 0), 0)),
        lambda g: jnp.where(g[0, 0] > 0, g, g.at[0].set(0.0)),
    ),
    "clipped or dropped": (
        lambda g: g.at[jnp.where(g[0, 0] > 0, 2, 0)].set(0.0, mode="clip"),
        lambda g: g.at[jnp.where(g[0, 0] > 0, 2, 0)].set(0.0, mode="drop"),
    ),
    "a function of a row": (lambda g: g.at[0].apply(jnp.sin), lambda g: g.at[0].set(0.0)),
    "summed from the end": (lambda g: lax.cumsum(g, reverse=True)[0], lambda g: g[0]),
    "all of none": (lambda g: g * jnp.all(jnp.zeros(0) > 1), lambda g: 0 * g),
    "a product of more": (
        lambda g: g * jnp.prod(jnp.full(3, g[0, 0])),
        lambda g: g * jnp.prod(jnp.full(2, g[0, 0])),
    ),
    "largest so far": (lambda g: lax.cummax(g, axis=0), lambda g: lax.cummax(g, axis=1)),
    "two orders": (
        lambda g: g * (jnp.flip(g, 0) * jnp.flip(g, 1)).sum(),
        lambda g: g * (g * g).sum(),
    ),
    "two sorts": (
        lambda g: g * (jnp.sort(g[0]) * jnp.sort(g[1])).sum(),
        lambda g: g * (g[0] * g[1]).sum(),
    ),
    "sorted by another": (
        lambda g: g * lax.sort((g[0], g[1]), num_keys=1)[1].sum(),
        lambda g: g * g[0].sum(),
    ),
    "padded inside": (
        lambda g: g * lax.pad(g, 1.0, ((0, 0, 1), (0, 0, 0))).sum(),
        lambda g: g * g.sum(),
    ),
    "an index into an empty row": (lambda g: g + g[:0].sum(), lambda g: g + g[:1].sum()),
}
OF_COUNTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "bits of a count": (lambda t: 1.0 * (t & 3), lambda t: 3.0 * t),
    "another period": (lambda t: 1.0 * (t % 5 == 4), lambda t: 1.0 * (t % 10 == 4)),
    "a quotient's end": (
        lambda t: lax.switch(t // 10, [lambda: 0.3, lambda: 0.2, lambda: 0.1]),
        lambda t: jnp.where(t < 10, 0.3, jnp.where(t < 21, 0.2, 0.1)),
    ),
    "a branch beyond the last": (
        lambda t: lax.switch(t, [lambda: 0.3, lambda: 0.2]),
        lambda t: jnp.where(t == 1, 0.2, 0.3),
    ),
    "a power that goes on": (
        lambda t: 0.5 ** jnp.minimum(t // 30, 3),
        lambda t: jnp.where(t < 30, 1.0, jnp.where(t < 60, 0.5, 0.25)),
    ),
    "steps that are doubled": (
        lambda t: jnp.minimum(2 * t, 100_001) / 2,
        lambda t: jnp.minimum(t, 50_000) * 1.0,
    ),
}


def _counter(start: int, after: Callable[[Any], Any], rate: Callable[[Any], Any]) -> Any:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -rate(state) * g, grads), after(state)

    return transformation(lambda params: jnp.array(start, jnp.int32), update)


def _ring(write: Callable[[Any], Any]) -> Any:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        count, rows = state
        rows = jax.tree.map(lambda r, g: r.at[write(count)].set(g), rows, grads)
        return jax.tree.map(lambda r: -0.1 * r.sum(0), rows), (count + 1, rows)

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jax.tree.map(lambda p: jnp.zeros((3, *p.shape)), params)

    return transformation(init, update)


_WINDOW = rule(lambda t, g, p, a, b: (-0.1 * (g + a + b), g, a), 0.0, 0.0)
OF_STATES = {
    "a counter that stops": (
        _counter(0, lambda s: jnp.minimum(s + 1, 90_000), lambda s: 1e-6 * s),
        with_schedule(lambda t: 1e-6 * t),
    ),
    "a counter that stops one later": (
        _counter(100, lambda s: jnp.maximum(s - 1, 0), lambda s: 0.01 * s),
        with_schedule(lambda t: 0.01 * jnp.maximum(100 - t, 1)),
    ),
    "a counter that goes round later": (
        _counter(0, lambda s: (s + 1) % 7, lambda s: 0.1 * s),
        with_schedule(lambda t: 0.1 * (t % 14)),
    ),
    "rows that are not written again": (_ring(lambda t: jnp.minimum(t, 2)), _WINDOW),
    "rows beyond the end": (_ring(lambda t: t), _WINDOW),
    "rows of another window": (_ring(lambda t: t % 2), _WINDOW),
}


@pytest.fixture(autouse=True)
def without_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """No counterexample is looked for, so that the rules alone say what is not proved."""

    def search(*_: object) -> None:
        raise NoRule("not looked for")

    monkeypatch.setattr(Search, "find_quickly", search)


def _assert_not_proved(recorded: Any, name: str, left: Any, right: Any) -> None:
    proof = prove_equivalence(left, right, PARAMS)
    assert proof.verdict == UNDECIDED, proof
    recorded("neighbours.txt", {name: text_of(proof)}, some=True)


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_what_differs_for_some_gradients_assert_not_proved(name: str, recorded: Any):
    pair = OF_GRADIENTS[name]
    _assert_not_proved(
        recorded, name, *(direct(lambda g, f=f: jnp.broadcast_to(f(g), g.shape)) for f in pair)
    )


@pytest.mark.parametrize("name", OF_COUNTS)
def test_what_differs_at_some_steps_assert_not_proved(name: str, recorded: Any):
    _assert_not_proved(recorded, name, *map(with_schedule, OF_COUNTS[name]))


@pytest.mark.parametrize("name", OF_STATES)
def test_what_differs_in_some_states_assert_not_proved(name: str, recorded: Any):
    _assert_not_proved(recorded, name, *OF_STATES[name])


def test_what_is_0_at_the_start_is_not_above_0():
    algebra = Algebra()
    count = algebra.leaf("n", (), integer=True, nonneg=True)
    decayed = algebra.to_the(algebra.number(fmpq(9, 10)), count)
    correction = algebra.sub(algebra.number(1), decayed)
    assert algebra.nonneg(correction) and not algebra.above_zero(correction)
    remainder = algebra.sub(count, algebra.floor(count))
    assert not algebra.above_zero(remainder)


def test_a_case_in_which_something_is_divided_by_0_is_not_taken_for_0():
    algebra = Algebra()
    x, p = (algebra.leaf(name, ()) for name in "xp")
    values = [
        algebra.choose(algebra.zero(x), number, algebra.div(p, x))
        for number in (algebra.number(1), algebra.number(2), x)
    ]
    for number, other in ((0, 1), (0, 2), (1, 2)):
        assert not Cases(algebra).equal(values[number], values[other])
    too_many = Cases(algebra)
    too_many._left = 0
    assert not too_many.equal(algebra.positive(x), algebra.positive(p))
