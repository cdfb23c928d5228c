from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from equivalence_tests import prove_equivalence
from equivalence_tests.proof.result import DIFFERENT, REALS
from equivalence_tests.proof.symbols import unwrapped
from equivalence_tests.proof.testing import NUMBERS, PARAMS, proved, train_state


def _of_moments(init: Any, update: Any) -> optax.GradientTransformation:
    """A transformation whose state are moments of the shapes of the parameters."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(lambda param: init * jnp.ones_like(param), params),
        lambda updates, state, params=None: jax.tree.transpose(
            jax.tree.structure(updates), None, jax.tree.map(update, updates, state)
        ),
    )


def _running_powers(rate: float) -> optax.GradientTransformation:
    """Adam that keeps powers of its decays, as some do in place of a count."""

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"a": jnp.ones(()), "b": jnp.ones(()), "m": zeros, "v": zeros}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        a, b = state["a"] * 0.9, state["b"] * 0.999
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], updates)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], updates)
        step = jax.tree.map(
            lambda m, v: -rate * (m / (1 - a)) / (jnp.sqrt(v / (1 - b)) + 1e-8), m, v
        )
        return step, {"a": a, "b": b, "m": m, "v": v}

    return optax.GradientTransformation(init, update)


RELATED: dict[str, tuple[Any, Any, str]] = {
    "a sign": (
        optax.sgd(0.1, momentum=0.5),
        _of_moments(0.0, lambda g, m: (0.1 * (0.5 * m - g), 0.5 * m - g)),
        "state['b'] = -state[0].trace['b']",
    ),
    "the rate": (
        optax.sgd(0.1, momentum=0.5),
        _of_moments(0.0, lambda g, m: 2 * (0.5 * m - 0.1 * g,)),
        "= -1/10 * ",
    ),
    "an average": (
        optax.sgd(0.1, momentum=0.9),
        _of_moments(0.0, lambda g, m: (-(m * 0.9 + 0.1 * g), m * 0.9 + 0.1 * g)),
        "= 1/10 * ",
    ),
    "powers": (_running_powers(1e-3), optax.adam(1e-3), "state['a'] = (9/10) ** state"),
}


@pytest.mark.parametrize("name", RELATED)
def test_relations_are_found_by_trying(name: str):
    left, right, expected = RELATED[name]
    proof = proved(left, right, REALS)
    assert any(expected in text for text in proof.cases[0].induction.relation), proof.cases[
        0
    ].induction.relation


def test_a_relation_may_have_hyper_params():
    def plain(hp: Any) -> Any:
        return optax.sgd(hp["rate"], momentum=hp["decay"])

    def inside(hp: Any) -> Any:
        rate, decay = unwrapped(hp["rate"]), unwrapped(hp["decay"])
        return _of_moments(0.0, lambda g, m: 2 * (decay * m - rate * g,))

    proof = proved(plain, inside, REALS, hyper_params=NUMBERS)
    assert "= -rate * " in str(proof.cases[0].induction.relation)


def test_a_relation_of_ones_own():
    minus = _of_moments(0.0, lambda g, m: 2 * (0.5 * m - 0.1 * g,))

    def relation(carry: Any) -> Any:
        count, params, state = carry
        return count, params, jax.tree.map(lambda trace: -0.1 * trace, state[0].trace)

    proved(optax.sgd(0.1, momentum=0.5), minus, REALS, relation=relation)


@pytest.mark.parametrize("every", [2, 3])
def test_accumulated_gradients(every: int):
    ours = train_state(optax.adam(0.1), accumulate_every=every)
    proof = proved(ours, optax.MultiSteps(optax.adam(0.1), every), REALS)
    assert f"{every} states, one after the other" in proof.cases[0].induction.relation[-1]
    other = optax.MultiSteps(optax.adam(0.1), every + 1)
    assert prove_equivalence(ours, other, PARAMS).verdict == DIFFERENT
