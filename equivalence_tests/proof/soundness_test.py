"""Pairs that are not the same, of which none may be proved.

Most part only beyond `FAR`, where no search for a counterexample goes before the proof has failed.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from equivalence_tests import ProofError, prove_equivalence
from equivalence_tests.proof.algebra.algebra import Algebra
from equivalence_tests.proof.bits.graph import Graph
from equivalence_tests.proof.counterexample.runs import relative_distance
from equivalence_tests.proof.induction.equality import Comparer, Level
from equivalence_tests.proof.reals import indexing
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS
from equivalence_tests.proof.testing import counting, leafwise, rule, steps, text_of

PARAMS = {"k": jnp.ones((2, 3))}
FAR = 1e12
Step = Callable[..., jax.Array]


def _far(step: Step) -> Any:
    return leafwise(lambda p, g: jnp.where(g > FAR, step(p, g), p))


def _moments(right: bool) -> Any:
    """`v` may fall below 0 on the left, and is never below 0 on the right, where it is unused."""

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        if right:
            return {"v": jax.tree.map(jnp.ones_like, params), "w": zeros}
        return {"a": zeros, "v": zeros}

    def step(grads: Any, state: Any, params: Any) -> Any:
        def moved(name: str, by: Callable[[jax.Array], jax.Array]) -> Any:
            return jax.tree.map(lambda m, g: m + by(g), state[name], grads)

        if right:
            new = {"v": moved("v", jnp.square), "w": moved("w", lambda g: FAR - g)}
            return jax.tree.map(lambda p, w: p - w, params, state["w"]), new
        new = {"a": moved("a", jnp.square), "v": moved("v", lambda g: FAR - g)}
        return jax.tree.map(lambda p, v: p - jnp.abs(v), params, state["v"]), new

    return init, step


# Each of the left and the right side.
FALSE: dict[str, tuple[Any, Any]] = {
    "a reshape in another order": (
        _far(lambda p, g: lax.reshape(p, (2, 3), dimensions=(1, 0))),
        _far(lambda p, g: p),
    ),
    "a broadcast to axes in another order": (
        _far(lambda p, g: lax.broadcast_in_dim(p, (3, 2), (1, 0)).reshape(2, 3)),
        _far(lambda p, g: p),
    ),
    "a number over 0, and its negative": (_far(lambda p, g: p / 0), _far(lambda p, g: -p / 0)),
    "a clamp at infinity": (
        _far(lambda p, g: lax.clamp(jnp.float32(jnp.inf), p, jnp.float32(jnp.inf))),
        _far(lambda p, g: p),
    ),
    "saturation": (
        _far(lambda p, g: g.astype(jnp.int8).astype(jnp.float32)),
        _far(lambda p, g: g.astype(jnp.int32).astype(jnp.float32)),
    ),
    "no negative numbers": (
        _far(lambda p, g: p.astype(jnp.uint32).astype(jnp.float32)),
        _far(lambda p, g: p.astype(jnp.int32).astype(jnp.float32)),
    ),
    "a power below 1": (_far(lambda p, g: jnp.maximum(2.0**p, 1)), _far(lambda p, g: 2.0**p)),
    "a number too large for a sign": (
        _far(lambda p, g: p.astype(jnp.uint32).astype(jnp.int32).astype(jnp.float32)),
        _far(lambda p, g: p.astype(jnp.uint32).astype(jnp.float32)),
    ),
    "a sign that is lost": (
        _far(lambda p, g: p.astype(jnp.int32).astype(jnp.uint32).astype(jnp.float32)),
        _far(lambda p, g: p.astype(jnp.int32).astype(jnp.float32)),
    ),
    **{
        f"a count that {what} 0": tuple(
            counting(jnp.int32, lambda p, g, n, of=of: p - g * of(n), 10**6, after)
            for of in (jnp.abs, jnp.asarray)
        )
        for what, after in {
            "falls below": lambda n: n - 1,
            "is set below": lambda n: jnp.where(n > 10**7, -1, n + 1),
        }.items()
    },
    "a power of a negative number": tuple(
        counting(jnp.int32, lambda p, g, n, of=of: p - g * of((-0.5) ** n), 50001, lambda n: n - 2)
        for of in (jnp.abs, jnp.asarray)
    ),
    "a step between two others": (
        steps(lambda p, g, n: p - jnp.where((n > 10**6) & ~(n > 10**6 + 1), 2, 1) * g),
        steps(lambda p, g, n: p - g),
    ),
    "a count that stands still": (
        counting(jnp.bfloat16, lambda p, g, n: p - (n - 256).astype(jnp.float32) * g, 256),
        steps(lambda p, g, n: p - g * n),
    ),
    "a count cut to 8 bits": (
        steps(lambda p, g, n: p - g * n.astype(jnp.int8)),
        steps(lambda p, g, n: p - g * n),
    ),
    "the size of a count of 8 bits": (
        counting(jnp.int8, lambda p, g, n: p - g * jnp.abs(n)),
        counting(jnp.int8, lambda p, g, n: p - g * n),
    ),
    "an unsigned difference": (
        counting(jnp.uint32, lambda p, g, n: p - g * (n - 1)),
        steps(lambda p, g, n: p - g * (n - 1)),
    ),
    "bits shifted out": (
        steps(lambda p, g, n: p - g * (n.astype(jnp.int8) << 5)),
        steps(lambda p, g, n: p - g * (n << 5)),
    ),
    "a factor that overflows": (
        steps(lambda p, g, n: p - g * (n * 2**16 * 2**16)),
        steps(lambda p, g, n: p - g * (n * 2.0**32)),
    ),
    "complex numbers": (
        _far(lambda p, g: jnp.abs(lax.complex(p, g) * lax.complex(p, g) + 1)),
        _far(lambda p, g: jnp.abs(lax.complex(p, g) * lax.complex(p, g)) + 1),
    ),
    "two parts of a state that share a name": (_moments(False), _moments(True)),
    "a quotient by itself": (leafwise(lambda p, g: p * (g / g)), leafwise(lambda p, g: p)),
    "a root and its square": (
        leafwise(lambda p, g: p - jnp.sqrt(100 - g) ** 2),
        leafwise(lambda p, g: p - (100 - g)),
    ),
    "a square root below a negative number": (
        _far(lambda p, g: jnp.where(jnp.sqrt(g) > p, p, g)),
        _far(lambda p, g: jnp.where(g > p * p, p, g)),
    ),
    "both square roots of a number": (
        _far(lambda p, g: jnp.where(p * p == 4, p, g)),
        _far(lambda p, g: jnp.where(p * p == 4, 2.0, g)),
    ),
    "the root of a quotient of negative numbers": (
        _far(lambda p, g: jnp.sqrt(-g / (-1 - p * p))),
        _far(lambda p, g: jnp.sqrt(-g) / jnp.sqrt(-1 - p * p)),
    ),
    "rows from the last to the first": (
        _far(lambda p, g: lax.scan(lambda c, x: (c - x, c), 0 * p[0], p, reverse=True)[1]),
        _far(lambda p, g: jnp.flip(lax.scan(lambda c, x: (c - x, c), 0 * p[0], p)[1], 0)),
    ),
    "every second column": (
        _far(lambda p, g: lax.slice(jnp.concatenate([p, g], 1), (0, 0), (2, 5), (1, 2))),
        _far(lambda p, g: lax.slice(jnp.concatenate([p, g], 1), (0, 0), (2, 3))),
    ),
    "sums along other axes": (
        _far(lambda p, g: p * jnp.sum(p[:, :2], 0, keepdims=True)[:, :1]),
        _far(lambda p, g: p * jnp.sum(p[:, :2], 1, keepdims=True)[:1]),
    ),
    "a larger threshold": (
        _far(lambda p, g: jnp.where(p > 3, p, jnp.where(p > -3, g, 0))),
        _far(lambda p, g: jnp.where(p > -3, p, jnp.where(p > 3, g, 0))),
    ),
    "thresholds from both sides": (
        _far(lambda p, g: jnp.where(p > 3, jnp.where(-p > -4, p, g), g)),
        _far(lambda p, g: jnp.where(p > 3, p, g)),
    ),
}


@pytest.mark.parametrize("name", FALSE)
def test_what_is_not_the_same_is_not_proved(name: str, recorded: Any):
    try:
        proof = prove_equivalence(*FALSE[name], PARAMS)
    except ProofError as error:  # JAX 0.9 has no broadcast to axes in another order
        assert "broadcast_dimensions must be strictly increasing" in str(error), error
        return
    assert proof.verdict not in (IDENTICAL, REALS), proof
    recorded("soundness.txt", {name: text_of(proof)}, some=True)


def _twice_from(step: int) -> Step:
    return lambda p, g, n: p - jnp.where(n < step, 1.0, 2.0) * g


# Pairs that part late, at large numbers, or where leaves are mixed up.
DIFFERENT_SIDES: dict[str, tuple[Any, Any]] = {
    "after 50 steps": (steps(_twice_from(50)), steps(_twice_from(10**6))),
    "a count of 8 bits": (
        counting(jnp.int8, lambda p, g, n: p - g * n),
        steps(lambda p, g, n: p - g * n),
    ),
    "after steps that no number tells": (
        steps(lambda p, g, n: p - jnp.where(1.0 * n * n > 900.5, 2.0, 1.0) * g),
        steps(lambda p, g, n: p - jnp.where(1.0 * n * n > 1000.5, 2.0, 1.0) * g),
    ),
    "a threshold within a difference": (
        optax.sgd(optax.piecewise_constant_schedule(0.1, {100: 0.1})),
        optax.sgd(optax.piecewise_constant_schedule(0.1, {101: 0.1})),
    ),
    "a clip at 1e30": (leafwise(lambda p, g: p - jnp.clip(g, -1e30, 1e30)), leafwise(jnp.subtract)),
    "none that is denormal": (
        leafwise(lambda p, g: p * jnp.where(jnp.abs(g) < 1e-38, 1, 2)),
        leafwise(lambda p, g: p * 2),
    ),
    "a tie of computed numbers": (
        leafwise(lambda p, g: jnp.where(jnp.float32(0.1) * 0.1 * (g / g) > 0.01, p, 2 * g)),
        leafwise(lambda p, g: p),
    ),
    "infinities of both signs": (
        leafwise(lambda p, g: p + jnp.inf),
        leafwise(lambda p, g: p - jnp.inf),
    ),
    "a function without an exact rule": (
        leafwise(lambda p, g: p + lax.igamma(2.0 + 0 * g, g * g)),
        leafwise(lambda p, g: p + lax.igamma(2.1 + 0 * g, g * g)),
    ),
    "leaves mixed up": (
        leafwise(jnp.add),
        (lambda p: (), lambda g, s, p: ({"a": p["a"] + g["b"], "b": p["b"] + g["a"]}, s)),
    ),
}


@pytest.mark.parametrize("name", DIFFERENT_SIDES)
def test_a_counterexample_is_found(name: str, recorded: Any):
    left, right = DIFFERENT_SIDES[name]
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    proof = prove_equivalence(left, right, params)
    recorded("soundness.txt", {name: text_of(proof)}, some=True)


# No rule gives the first functions' exact numbers, and 1 - igamma(2, x) is rounding for a large x.
CANCELLING: dict[str, tuple[Step, Step]] = {
    "incomplete gamma functions": (
        lambda p, g: p + lax.igammac(2 + 0 * g, g * g),
        lambda p, g: p + (1 - lax.igamma(2 + 0 * g, g * g)),
    ),
    "without the parameter": (
        lambda p, g: lax.igammac(2 + 0 * g, g * g),
        lambda p, g: 1 - lax.igamma(2 + 0 * g, g * g),
    ),
    "a Bessel function": (
        lambda p, g: p + lax.bessel_i1e(g) * (1 + 1e8) - lax.bessel_i1e(g) * 1e8,
        lambda p, g: p + lax.bessel_i1e(g) + lax.bessel_i0e(g) - lax.bessel_i0e(g),
    ),
}


@pytest.mark.parametrize("name", CANCELLING)
def test_what_cancels_is_no_difference(name: str, recorded: Any):
    left, right = CANCELLING[name]
    proof = prove_equivalence(leafwise(left), leafwise(right), {"a": jnp.ones(2)})
    assert proof.verdict != DIFFERENT, proof
    recorded("soundness.txt", {name: text_of(proof)}, some=True)


def test_no_input_is_out_of_the_reach_of_its_dtype():
    most = float(jnp.finfo(jnp.float32).max)
    sides = leafwise(lambda p, g: p - jnp.clip(g, -most, most)), leafwise(lambda p, g: p - g)
    for params in (PARAMS, {"k": jnp.ones(())}):  # a scalar goes through every search as well
        assert prove_equivalence(*sides, params).verdict == "not decided"


def test_a_constant_rounded_to_the_dtype_of_the_parameters_is_no_difference():
    sides = (
        lambda hp: leafwise(lambda p, g: p - math.sqrt(hp["rate"]) * g),
        lambda hp: leafwise(lambda p, g: p - jnp.sqrt(hp["rate"]) * g),
    )
    params = {"a": jnp.ones((4, 3))}
    assert prove_equivalence(*sides, params, hyper_params={"rate": 0.1}).verdict == REALS


@pytest.mark.parametrize(
    ("dtype", "rate"), [(jnp.float32, 0.1001), (jnp.float32, 0.10000003), (jnp.bfloat16, 0.2)]
)
def test_an_element_that_is_undefined_hides_no_other(dtype: Any, rate: float):
    """Of one leaf: the first element is 0 / 0 on both sides, all others differ in this dtype.

    By so little as of the second rate that exact arithmetic alone tells it from rounding.
    """

    def side(rate: float) -> Any:
        def step(p: jax.Array, g: jax.Array) -> jax.Array:
            first = jnp.arange(g.size).reshape(g.shape) == 0
            size = rate if g.dtype == dtype or dtype == jnp.float32 else 0.1
            return p - jnp.where(first, (g - g) / (g - g), size * g)

        return leafwise(step)

    proof = prove_equivalence(side(0.1), side(rate), {"k": jnp.ones((2, 3), dtype)})
    assert proof.verdict == DIFFERENT, proof


def test_a_nan_on_both_sides_is_no_difference_and_hides_none():
    left = np.array([np.nan, 1.0])
    assert relative_distance(left, left) == 0
    assert relative_distance(left, np.array([np.nan, 2.0])) == 0.5
    assert relative_distance(left, np.array([0.0, 1.0])) == np.inf


def test_with_which_settings_a_counterexample_was_looked_for_is_said():
    def factorial(x: jax.Array) -> jax.Array:
        return jnp.exp(lax.lgamma(x + 1))

    left, right = (
        lambda hp, f=f: leafwise(lambda p, g: p - hp["rate"] * f(1 + g * g))
        for f in (factorial, lambda x: x * factorial(x - 1))
    )
    proof = prove_equivalence(left, right, {"k": jnp.ones(())}, hyper_params={"rate": 0.1})
    assert re.search(r"with rate = 0.1, nor a few with \d other settings", str(proof)), proof


def test_a_setting_is_not_taken_for_a_gradient_of_its_name():
    sides = (
        lambda hp: leafwise(lambda p, g: p - hp["grads['k']"] * g),
        lambda hp: leafwise(lambda p, g: p - g * g),
    )
    with pytest.raises(ProofError, match="give it another name"):
        prove_equivalence(*sides, {"k": jnp.ones(())}, hyper_params={"grads['k']": 3.0})
    for name in ("b1", "steps", "params_decay"):  # which no input is called
        side = lambda hp, name=name: leafwise(lambda p, g: p - hp[name] * g)  # noqa: E731
        numbers = {name: 0.1}
        assert prove_equivalence(side, side, PARAMS, hyper_params=numbers).verdict == IDENTICAL


def test_parts_that_are_computed_of_one_another_are_not_followed_for_ever():
    graph = Graph()
    comparer = Comparer(graph)
    kind = np.dtype(np.float32)
    a, b = (graph.leaf(name, (), kind) for name in "ab")
    larger = graph.apply("add", (a, b), (), (), kind)
    comparer._older[a.id] = larger  # as if `a` had been found to be `a + b`
    assert comparer.compare(larger, b).level is Level.UNKNOWN


def _position(index: Any, known: dict[str, int]) -> int:
    """The number that an index is where its symbols have values."""
    if isinstance(index, int | str):
        return known[index] if isinstance(index, str) else index
    kind, *items = index
    if kind == "of":
        return _position(items[0], known) // items[1] % items[2]
    pairs = zip(items[::2], items[1::2], strict=True)
    return sum(_position(item, known) * stride for item, stride in pairs)


@pytest.mark.parametrize("middle", [(12,), (4, 3), (2, 3, 2), (2, 6)])
@pytest.mark.parametrize("last", [(6, 2), (3, 4), (2, 2, 3)])
def test_an_index_through_two_shapes_reads_what_numpy_reads(middle: tuple[int, ...], last: Any):
    first = (2, 3, 2)
    index = indexing.indices(last)
    inner = indexing.reshaped_index(middle, last, index)
    place = None if inner is None else indexing.reshaped_index(first, middle, inner)
    if place is None:
        return
    numbers = np.arange(12).reshape(first)
    wanted = numbers.reshape(middle).reshape(last)
    for at in np.ndindex(last):
        known = {f"i{axis}": int(i) for axis, i in enumerate(at)}
        read = tuple(_position(item, known) for item in place)
        assert numbers[read] == wanted[at]


def test_a_sign_through_a_root_is_that_of_numerator_and_denominator():
    algebra = Algebra()
    a, b, c = (algebra.leaf(name, ()) for name in "abc")
    root = algebra.root(algebra.div(a, b))  # a and b may both be negative
    value = algebra.div(algebra.mul(c, root), algebra.add(root, algebra.number(1)))
    times_b = algebra.add(algebra.mul(c, a), algebra.mul(algebra.mul(c, root), b))
    assert not algebra.equal(algebra.positive(value), algebra.positive(times_b))
    both = algebra.mul(c, root)
    assert algebra.equal(algebra.positive(value), algebra.positive(both))


def _multiplied(factor: Callable[[Any, Any], Any]) -> optax.GradientTransformation:
    """Gradient descent whose steps are multiplied by what a function of count and gradient says."""
    return rule(lambda t, g, p: (-0.1 * g * factor(t - 1, g),))


# What differs -> the factor.
ASKED_FOR: dict[str, Callable[[Any, Any], Any]] = {
    "from a step on": lambda n, g: jnp.where(n > 50_000, 2.0, 1.0),
    "one far step": lambda n, g: jnp.where(n == 123_456, 2.0, 1.0),
    "periods": lambda n, g: jnp.where((n + 1) % 211 == 0, 2.0, 1.0),
    "a schedule's end": lambda n, g: jnp.minimum(1.0, 1e5 / (n + 1)),
    "a quotient": lambda n, g: jnp.where(n / 7.0 > 1e4, 2.0, 1.0),
    "far and large": lambda n, g: jnp.where((n > 70_000) & (g > 1e4), 2.0, 1.0),
    "huge gradients": lambda n, g: jnp.where(g > 1e15, 2.0, 1.0),
    "tiny gradients": lambda n, g: jnp.where(jnp.abs(g) < 1e-30, 2.0, 1.0),
    "one value": lambda n, g: jnp.where(g == 0.7310585, 2.0, 1.0),
    "few values": lambda n, g: jnp.where((g > 3.14159) & (g < 3.1416), 2.0, 1.0),
}


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_the_programs_ask_for_becomes_an_input(name: str, recorded: Any):
    sides = _multiplied(ASKED_FOR[name]), _multiplied(lambda n, g: 1.0)
    recorded("soundness.txt", {name: text_of(prove_equivalence(*sides, PARAMS))}, some=True)


def test_a_state_that_many_gradients_build_up_is_reached():
    def side(factor: float) -> Any:
        def leaf(t: Any, g: Any, p: Any, a: Any) -> Any:
            return -0.1 * g * jnp.where(a > 1000, factor, 1.0), a + jnp.minimum(jnp.abs(g), 1)

        return rule(leaf, 0.0)

    proof = prove_equivalence(side(2.0), side(1.0), PARAMS)
    assert proof.verdict == DIFFERENT and "steps 1 to 1001, each: grads" in str(proof), proof


def test_far_steps_of_a_program_that_asks_for_its_dtype_are_taken_in_it():
    def factor(n: Any, g: Any) -> Any:
        return jnp.where(n > 50_000, 2.0 if g.dtype == jnp.float16 else 1.0, 1.0).astype(g.dtype)

    params = {"w": jax.ShapeDtypeStruct((3,), jnp.float16)}
    proof = prove_equivalence(_multiplied(factor), _multiplied(lambda n, g: 1.0), params)
    assert proof.verdict == "different", proof
    assert "from step 50002 on" in str(proof)


@pytest.mark.parametrize(("order", "verdict"), [((1, 2, 0), IDENTICAL), ((2, 0, 1), DIFFERENT)])
def test_two_transposes_are_one_in_their_order(order: tuple[int, ...], verdict: str):
    twice = leafwise(lambda _, g: g.transpose(1, 0, 2).transpose(0, 2, 1))
    once = leafwise(lambda _, g: g.transpose(order))
    assert prove_equivalence(twice, once, {"k": jnp.ones((3, 3, 3))}).verdict == verdict
