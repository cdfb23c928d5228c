from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from equivalence_tests import prove_equivalence
from equivalence_tests.proof.reading.symbols import unwrap
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS
from equivalence_tests.proof.testing import (
    NUMBERS,
    PARAMS,
    assert_proved,
    rule,
    text_of,
    train_state,
)


def _stepping(init: Any, step: Callable[..., Any]) -> Any:
    """A count and one moment for each leaf: `step(count, param, moment, grad)` makes both anew."""

    def whole(grads: Any, state: Any, params: Any) -> Any:
        count, moments = state
        both = jax.tree.map(lambda p, m, g: step(count, p, m, g), params, moments, grads)
        new, moments = jax.tree.transpose(jax.tree.structure(params), None, both)
        return new, (count + 1, moments)

    return lambda params: (jnp.zeros((), jnp.int32), jax.tree.map(init, params)), whole


def _adam_in_one_array(n: Any, p: Any, both: Any, g: Any) -> Any:
    """A step of Adam whose moments are stacked behind all other axes."""
    m, v = (jnp.squeeze(part, -1) for part in jnp.split(both, 2, -1))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    root = jnp.sqrt(v / (1 - 0.999 ** (n + 1))) + 1e-8
    return p - 1e-3 * m / (1 - 0.9 ** (n + 1)) / root, jnp.stack([m, v], -1)


_MOMENTUM = optax.sgd(0.1, momentum=0.9)
OF_OTHER_LEAVES: dict[str, tuple[Any, Any]] = {
    "two averages": (
        optax.chain(optax.ema(0.9, debias=False), optax.ema(0.5, debias=False)),
        optax.chain(optax.ema(0.5, debias=False), optax.ema(0.9, debias=False)),
    ),
    "stacked behind": (
        _stepping(lambda p: jnp.zeros((*p.shape, 2)), _adam_in_one_array),
        optax.adam(1e-3),
    ),
    "turned": (
        _stepping(
            lambda p: jnp.zeros_like(p.T),
            lambda n, p, m, g: (p - 0.1 * (0.9 * m + g.T).T, 0.9 * m + g.T),
        ),
        _MOMENTUM,
    ),
}


def _twice(factor: float) -> Any:
    """Momentum that is kept twice, the second time with a factor; a step takes from both."""
    return rule(
        lambda t, g, p, m, n: (
            -0.05 * ((0.9 * m + g) + (0.9 * n + factor * g) / factor),
            0.9 * m + g,
            0.9 * n + factor * g,
        ),
        *(0.0, 0.0),
    )


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_leaf_of_the_left_is_related_to_two_of_the_right(factor: float, recorded: Any):
    proof = prove_equivalence(_MOMENTUM, _twice(factor), PARAMS)
    assert proof.verdict == REALS, proof
    recorded("relations.txt", {f"twice, {factor:g}": text_of(proof)}, some=True)


@pytest.mark.parametrize("name", OF_OTHER_LEAVES)
def test_relations_are_found_by_trying(name: str, recorded: Any):
    params = {"k": jnp.ones((2, 3))} if name == "turned" else PARAMS
    proof = prove_equivalence(*OF_OTHER_LEAVES[name], params)
    assert proof.verdict == REALS, proof
    recorded("relations.txt", {name: text_of(proof)}, some=True)


def test_a_relation_may_have_hyper_params(recorded: Any):
    def plain(hp: Any) -> Any:
        return optax.sgd(hp["rate"], momentum=hp["decay"])

    def inside(hp: Any) -> Any:
        rate, decay = unwrap(hp["rate"]), unwrap(hp["decay"])
        return rule(lambda t, g, p, m: 2 * (decay * m - rate * g,), 0.0)

    proof = assert_proved(plain, inside, REALS, hyper_params=NUMBERS)
    recorded("relations.txt", {"of hyper-parameters": text_of(proof)}, some=True)


def test_a_relation_of_ones_own(recorded: Any):
    def relation(carry: Any) -> Any:
        count, params, state = carry
        moments = jax.tree.map(lambda trace: -0.1 * trace, state[0].trace)
        return count, params, (count, moments)

    minus = rule(lambda t, g, p, m: 2 * (0.5 * m - 0.1 * g,), 0.0)
    proof = assert_proved(optax.sgd(0.1, momentum=0.5), minus, REALS, relation=relation)
    recorded("relations.txt", {"of one's own": text_of(proof)}, some=True)


def _clock(after: Callable[[Any], Any], dtype: Any = jnp.int32) -> Any:
    """Momentum that copies the gradient where a clock is 0."""

    def step(grads: Any, state: Any, params: Any) -> Any:
        clock, moments = state
        new = jax.tree.map(lambda m, g: jnp.where(clock == 0, g, 0.9 * m + g), moments, grads)
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, new)
        return params, (after(clock).astype(dtype), new)

    return lambda p: (jnp.zeros((), dtype), jax.tree.map(jnp.zeros_like, p)), step


# Clocks that are 0 again, some of them later than any search for a counterexample goes.
CLOCKS: dict[str, Any] = {
    "after three": _clock(lambda n: (n + 1) % 3),
    "at once": _clock(lambda n: 1 - n),
    "after 5000": _clock(lambda n: jnp.where(n >= 5000, 0, n + 1)),
    "after 256": _clock(lambda n: n + 1, jnp.uint8),
    "after 65536": _clock(lambda n: n + 1, jnp.uint16),
}


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_that_is_0_again_is_not_proved(name: str, recorded: Any):
    proof = prove_equivalence(CLOCKS[name], _MOMENTUM, PARAMS)
    assert proof.verdict not in (IDENTICAL, REALS), proof
    recorded("relations.txt", {name: text_of(proof)}, some=True)


@pytest.mark.parametrize(
    "clock", [_clock(lambda n: n + 1), _clock(lambda n: jnp.where(n < 5, n + 1, 1))]
)
def test_a_clock_that_is_never_0_again_is(clock: Any):
    assert prove_equivalence(clock, _MOMENTUM, PARAMS).verdict == REALS


def test_accumulated_gradients(recorded: Any):
    ours = train_state(optax.adam(0.1), accumulate_every=2)
    proof = assert_proved(ours, optax.MultiSteps(optax.adam(0.1), 2), REALS)
    recorded("relations.txt", {"by state": text_of(proof)}, some=True)
    other = optax.MultiSteps(optax.adam(0.1), 3)
    assert prove_equivalence(ours, other, PARAMS).verdict == DIFFERENT
