"""A proof lists the assumptions that it needs, and no others."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from equivalence_tests import prove_equivalence
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS
from equivalence_tests.proof.testing import counting, leafwise, steps, text_of

PARAMS = {"k": jnp.ones((2, 3))}
ASSUMED: dict[str, tuple[Any, Any]] = {
    "NaN": (lambda p, g: p - jnp.where(jnp.isnan(g), 0, g), lambda p, g: p - g),
    "infinity": (lambda p, g: p - jnp.where(jnp.isinf(g), 0, g), lambda p, g: p - g),
    "finite": (lambda p, g: p - jnp.where(jnp.isfinite(g), g, 0), lambda p, g: p - g),
    "below": (lambda p, g: p - jnp.where(g < jnp.inf, g, 0), lambda p, g: p - g),
    "precision": (lambda p, g: p - lax.reduce_precision(g, 4, 1), lambda p, g: p - g),
    **{
        name: (lambda p, g, of=of: p - 3 * of(g), lambda p, g, of=of: p - of(g) - 2 * of(g))
        for name, of in (
            ("logarithm", jnp.log),
            ("root", jnp.sqrt),
            ("power", lambda g: g**0.123),
            ("quotient", jnp.reciprocal),
            # What the case that is looked at implies is not assumed.
            ("logarithm of a size", lambda g: jnp.log(abs(g))),
            ("logarithm of a size and 1", lambda g: jnp.log1p(abs(g))),
            ("logarithm of the greater", lambda g: jnp.log(jnp.maximum(g, -2) + 3)),
            ("logarithm of what may be negative", lambda g: jnp.log(jnp.maximum(g, -4) + 3)),
            ("quotient by a size", lambda g: g * g / abs(g)),
            ("quotient by what is not 0", lambda g: 1 / jnp.where(g > 2, g, g - 3)),
            ("quotient by what may be 0", lambda g: 1 / jnp.where(g > 2, g - 3, -1)),
            ("logarithm of 0", lambda g: jnp.log(jnp.maximum(g, 0))),
            ("logarithm of -1", lambda g: jnp.log(jnp.where(g > 2, g, jnp.where(g < -2, -g, -1)))),
            ("root of -1", lambda g: jnp.sqrt(jnp.where(g < 2, -1, g))),
            ("root of what is above", lambda g: jnp.sqrt(jnp.where(g > 2, g - 1, 5))),
            ("root of what may be below", lambda g: jnp.sqrt(jnp.where(g > 2, g - 3, 5))),
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


def test_a_count_whose_start_is_not_known_is_assumed_to_move(recorded: Any):
    def side(step: Any) -> Any:
        return lambda params: params["k"].sum(), lambda grads, n, params: (
            jax.tree.map(lambda p, g: step(p, g, n), params, grads),
            n + 1,
        )

    both = side(lambda p, g, n: p - 3 * g * n), side(lambda p, g, n: p - g * n - 2 * g * n)
    proof = prove_equivalence(*both, PARAMS)
    recorded("assumptions.txt", {"an unknown start": text_of(proof)}, some=True)


def test_of_several_cases_the_fewest_steps_are_said():
    def left(hp: Any) -> Any:
        dtype = jnp.bfloat16 if hp["decay"] == 0 else jnp.float32
        return counting(dtype, lambda p, g, n: p - g / (1 + n.astype(jnp.float32)))

    right = steps(lambda p, g, n: p - g / (1 + n))
    proof = prove_equivalence(left, lambda hp: right, PARAMS, hyper_params={"decay": 0.1})
    assert (len(proof.cases), proof.verdict, proof.scope.steps) == (2, REALS, 255)


def test_that_no_whole_number_overflows_is_assumed_and_said(recorded: Any):
    def doubled(grads: Any, number: Any, params: Any) -> Any:
        new = jax.tree.map(lambda p, g: p - (1 + (number < 0)) * g, params, grads)
        return new, number * 2  # less than 0 after 31 steps

    pair = (lambda params: jnp.int32(1), doubled), leafwise(lambda p, g: p - g)
    proof = prove_equivalence(*pair, PARAMS)
    recorded("assumptions.txt", {"no overflow": text_of(proof)}, some=True)


def test_a_product_of_counts_is_not_assumed_to_fit(recorded: Any):
    squared = steps(lambda p, g, n: p - (1 + (n * n < 0)) * g)  # less than 0 at 46341
    proof = prove_equivalence(squared, steps(lambda p, g, n: p - g), PARAMS)
    recorded("assumptions.txt", {"a product of counts": text_of(proof)}, some=True)


@pytest.mark.parametrize("name", ASSUMED)
def test_what_is_assumed_is_said(name: str, recorded: Any):
    left, right = map(leafwise, ASSUMED[name])
    proof = prove_equivalence(left, right, PARAMS)
    recorded("assumptions.txt", {name: text_of(proof)}, some=True)


def test_what_is_assumed_is_said_of_inputs_and_of_the_relation_that_is_proved(recorded: Any):
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
    recorded("assumptions.txt", {"yogi": text_of(proof)}, some=True)
