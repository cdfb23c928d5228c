"""A proof lists the assumptions that it needs, and no others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from equivalence_tests import prove_equivalence
from equivalence_tests.proof.dtypes import NO_OVERFLOW
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS, UNDECIDED
from equivalence_tests.proof.testing import counting, leafwise, steps

PARAMS = {"k": jnp.ones((2, 3))}
ASSUMED: dict[str, tuple[Any, Any, str]] = {
    "NaN": (lambda p, g: p - jnp.where(jnp.isnan(g), 0, g), lambda p, g: p - g, "are finite"),
    "infinity": (lambda p, g: p - jnp.where(jnp.isinf(g), 0, g), lambda p, g: p - g, "are finite"),
    "finite": (lambda p, g: p - jnp.where(jnp.isfinite(g), g, 0), lambda p, g: p - g, "are finite"),
    "below": (lambda p, g: p - jnp.where(g < jnp.inf, g, 0), lambda p, g: p - g, "are finite"),
    "precision": (
        lambda p, g: p - lax.reduce_precision(g, 4, 1),
        lambda p, g: p - g,
        "rounding to 4 bits of exponent and 1 of mantissa is left out",
    ),
    **{
        name: (lambda p, g, of=of: p - 3 * of(g), lambda p, g, of=of: p - of(g) - 2 * of(g), text)
        for name, of, text in (
            ("logarithm", jnp.log, "is more than 0"),
            ("root", jnp.sqrt, "is not negative"),
            ("power", lambda g: g**0.123, "is not negative"),
            ("quotient", jnp.reciprocal, "is not 0"),
        )
    },
}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16])
def test_numbers_that_a_dtype_makes_one_are_one(dtype: Any):
    rounded = float(np.asarray(0.01, dtype))
    sides = leafwise(lambda p, g: p - 0.01 * g), leafwise(lambda p, g: p - rounded * g)
    proof = prove_equivalence(*sides, {"k": jnp.ones((2, 3), dtype)})
    assert proof.verdict in (IDENTICAL, REALS)
    above = float(np.nextafter(np.asarray(0.01, dtype), dtype(1)))
    other = leafwise(lambda p, g: p - above * g)
    assert prove_equivalence(sides[0], other, {"k": jnp.ones(2, dtype)}).verdict == DIFFERENT


@pytest.mark.parametrize(("dtype", "most"), [(jnp.bfloat16, 256), (jnp.float32, 16777216)])
def test_where_a_count_stands_still_is_said(dtype: Any, most: int):
    left = counting(dtype, lambda p, g, n: p - g / (1 + n.astype(jnp.float32)))
    proof = prove_equivalence(left, steps(lambda p, g, n: p - g / (1 + n)), PARAMS)
    assert proof.verdict == REALS
    assert f"the first {most - 1} steps" in str(proof) and proof.scope.steps == most - 1


def test_a_count_whose_start_is_not_known_is_assumed_to_move():
    def side(step: Any) -> Any:
        return lambda params: params["k"].sum(), lambda grads, n, params: (
            jax.tree.map(lambda p, g: step(p, g, n), params, grads),
            n + 1,
        )

    both = side(lambda p, g, n: p - 3 * g * n), side(lambda p, g, n: p - g * n - 2 * g * n)
    proof = prove_equivalence(*both, PARAMS)
    assert "is below 16777216, where it stands still" in str(proof)


def test_of_several_cases_the_fewest_steps_are_said():
    def left(hp: Any) -> Any:
        dtype = jnp.bfloat16 if hp["decay"] == 0 else jnp.float32
        return counting(dtype, lambda p, g, n: p - g / (1 + n.astype(jnp.float32)))

    right = steps(lambda p, g, n: p - g / (1 + n))
    proof = prove_equivalence(left, lambda hp: right, PARAMS, hyper_params={"decay": 0.1})
    assert (len(proof.cases), proof.verdict, proof.scope.steps) == (2, REALS, 255)


def test_that_no_whole_number_overflows_is_assumed_and_said():
    def doubled(grads: Any, number: Any, params: Any) -> Any:
        new = jax.tree.map(lambda p, g: p - (1 + (number < 0)) * g, params, grads)
        return new, number * 2  # less than 0 after 31 steps

    pair = (lambda params: jnp.int32(1), doubled), leafwise(lambda p, g: p - g)
    proof = prove_equivalence(*pair, PARAMS)
    assert proof.verdict == UNDECIDED or NO_OVERFLOW in proof.assumptions, proof


def test_a_product_of_counts_is_not_assumed_to_fit():
    squared = steps(lambda p, g, n: p - (1 + (n * n < 0)) * g)  # less than 0 at 46341
    proof = prove_equivalence(squared, steps(lambda p, g, n: p - g), PARAMS)
    assert proof.verdict not in (IDENTICAL, REALS), proof


@pytest.mark.parametrize("name", ASSUMED)
def test_what_is_assumed_is_said(name: str):
    left, right, text = ASSUMED[name]
    proof = prove_equivalence(leafwise(left), leafwise(right), PARAMS)
    assert proof.verdict == REALS
    assert any(text in each for each in proof.assumptions)


def test_what_is_assumed_is_said_of_inputs_and_of_the_relation_that_is_proved():
    """Of 218 or of a count in place of a moment, from a relation that was dropped, says nothing."""

    def yogi(grads: Any, state: Any, params: Any) -> Any:
        count = state["t"] + 1
        square = grads["k"] ** 2
        v = state["v"] - 0.001 * jnp.sign(state["v"] - square) * square
        m = 0.9 * state["m"] + 0.1 * grads["k"]
        root = jnp.sqrt(v / (1 - 0.999**count)) + 1e-3
        new = params["k"] - 0.01 * m / (1 - 0.9**count) / root
        return {"k": new}, {"m": m, "v": v, "t": count}

    start = jnp.float32(1e-6)
    pair = (lambda p: {"m": start, "v": start, "t": jnp.int32(0)}, yogi), optax.yogi(1e-2)
    proof = prove_equivalence(*pair, {"k": jnp.ones(())})
    assert proof.verdict == REALS
    assert any("state['v']" in text for text in proof.assumptions)
    assert not any("node" in text or "state['m']" in text for text in proof.assumptions)
