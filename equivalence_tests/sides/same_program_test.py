"""A step that is another program at its second trace is refused, not frozen in silence."""

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equivalence_tests import EquivalenceError, Verdict, check_equivalence, prove_equivalence

PARAMS = {"w": jnp.ones(2)}
BOTH = pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])


def _scaled(grads: Any, factor: Any) -> Any:
    return jax.tree.map(lambda g: -0.1 * factor * g, grads)


class _Counting:
    number, total = 0, np.ones(2, np.float32)

    def init(self, params: Any) -> Any:
        return optax.EmptyState()

    def by_number(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.number += 1
        return _scaled(grads, self.number), state

    def by_array(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.total = self.total + 1
        return _scaled(grads, self.total), state

    def by_chance(self, grads: Any, state: Any, params: Any = None) -> Any:
        return _scaled(grads, random.random()), state

    def first_alone(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.number = min(self.number + 1, 2)
        return _scaled(grads, 1.0) if self.number < 2 else _scaled(_scaled(grads, 1.0), 1.0), state

    def swapped(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.number += 1
        results = _scaled(grads, 1.0), _scaled(grads, 2.0)
        return results[self.number % 2], state

    def unread(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.number, self.last = self.number + 1, grads
        return _scaled(grads, 1.0), state


def _side(update: Any) -> optax.GradientTransformation:
    return optax.chain(optax.identity(), optax.GradientTransformation(_Counting().init, update))


@pytest.mark.parametrize("name", ["by_number", "by_array", "by_chance", "first_alone", "swapped"])
@BOTH
def test_a_step_that_python_changes_is_refused(compare: Callable[..., Any], name: str):
    message = r"right side \(GradientTransformation\).*traced twice, gives two programs"
    with pytest.raises(EquivalenceError, match=message):
        compare(optax.sgd(0.1), _side(getattr(_Counting(), name)), PARAMS)


@BOTH
def test_a_count_in_python_that_a_start_sets_back_is_refused_too(compare: Callable[..., Any]):
    counting = _Counting()

    def init(params: Any) -> Any:
        counting.number = 0
        return optax.EmptyState()

    update: Any = counting.by_number
    tx = optax.GradientTransformation(init, update)
    with pytest.raises(EquivalenceError, match="traced twice, gives two programs"):
        compare(optax.sgd(0.1), tx, PARAMS)


@BOTH
def test_a_change_in_python_that_no_step_reads_is_none(compare: Callable[..., Any]):
    assert "identical" in str(compare(optax.sgd(0.1), _side(_Counting().unread), PARAMS))


def test_a_side_of_hyper_params_is_made_anew_for_each_trace():
    def prove(name: str) -> Any:
        left = lambda hp: optax.sgd(hp["learning_rate"])  # noqa: E731
        right = lambda hp: optax.chain(  # noqa: E731
            optax.sgd(hp["learning_rate"]), _side(getattr(_Counting(), name)), optax.scale(-10.0)
        )
        return prove_equivalence(left, right, PARAMS, hyper_params={"learning_rate": 0.1})

    assert prove("unread").verdict != "not decided"
    with pytest.raises(EquivalenceError, match="traced twice, gives two programs"):
        prove("by_number")


def test_a_side_made_anew_is_started_before_its_step_with_numbers_as_with_symbols():
    def right(hp: Any) -> optax.GradientTransformation:
        kept: dict[str, float] = {}

        def init(params: Any) -> Any:
            kept["factor"] = 0.0 if hp["rate"] == 0 else -1.0  # a case of its own, a number's
            return optax.EmptyState()

        def update(grads: Any, state: Any, params: Any = None) -> Any:
            return jax.tree.map(lambda g: hp["rate"] * (kept["factor"] * g), grads), state

        untyped: Any = update
        return optax.GradientTransformation(init, untyped)

    left = lambda hp: optax.sgd(hp["rate"])  # noqa: E731
    proof = prove_equivalence(left, right, PARAMS, hyper_params={"rate": 0.1})
    assert [dict(case.fixed) for case in proof.cases] == [{}, {"rate": 0.0}]
    assert proof.verdict == "equal over the reals"


@BOTH
def test_an_array_that_the_next_call_reads_is_refused(compare: Callable[..., Any]):
    box = [jnp.zeros(())]

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        box[0] = box[0] + 1
        return _scaled(grads, 1.0 + 0 * box[0]), state

    with pytest.raises(EquivalenceError, match=r"right side .*the state"):
        compare(optax.sgd(0.1), _side(update), PARAMS)


def test_an_array_that_changes_in_place_is_refused_by_a_proof():
    total = jax.new_ref(jnp.zeros(()))

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        total[...] += 1
        return _scaled(grads, total[...]), state

    with pytest.raises(EquivalenceError, match="which changes in place; use the state"):
        prove_equivalence(optax.sgd(0.1), _side(update), PARAMS)


def test_a_pair_of_functions_runs_as_it_is():
    counting = _Counting()

    def step(grads: Any, state: Any, params: Any) -> Any:
        factor = 2.0 if counting.number > 8 else 1.0
        counting.number += 1
        return optax.apply_updates(params, _scaled(grads, factor)), state

    report = check_equivalence(
        optax.sgd(0.1), (counting.init, step), PARAMS, gradients="normal", steps=12
    )
    assert report.verdict is Verdict.DIFFERENT
    assert report.comparison.first is not None
    assert report.comparison.ulp_by_step[9] > 1e4 > report.comparison.ulp_by_step[:9].max()
