"""A step that changes something in Python is refused, not frozen in silence."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from equivalence_tests import EquivalenceError, Verdict, check_equivalence, prove_equivalence

PARAMS = {"w": jnp.ones(2)}
_calls = 0


def _scaled(grads: Any, factor: float) -> Any:
    return jax.tree.map(lambda g: -0.1 * factor * g, grads)


class _Counting:
    number, memo = 0, None

    def init(self, params: Any) -> Any:
        return optax.EmptyState()

    def attribute(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.number += 1
        return _scaled(grads, 1 if self.number < 9 else 2), state

    def once(self, grads: Any, state: Any, params: Any = None) -> Any:
        self.memo = 1.0 if self.memo is None else self.memo
        return _scaled(grads, self.memo), state


def _in_closure() -> Callable[..., Any]:
    number = [0]

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        number[0] += 1
        return _scaled(grads, 1 if number[0] < 9 else 2), state

    return update


def _global(grads: Any, state: Any, params: Any = None) -> Any:
    global _calls
    _calls += 1
    return _scaled(grads, 1 if _calls < 9 else 2), state


STEPS = {
    "self.number": lambda: _Counting().attribute,
    "number[0]": _in_closure,
    "the global _calls": lambda: _global,
}


def _side(update: Any) -> optax.GradientTransformation:
    return optax.chain(optax.identity(), optax.GradientTransformation(_Counting().init, update))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])
def test_a_counter_in_python_is_refused(compare: Callable[..., Any], name: str):
    with pytest.raises(EquivalenceError, match="changes a value in Python") as error:
        compare(optax.sgd(0.1), _side(STEPS[name]()), PARAMS)
    assert "right side (GradientTransformation)" in str(error.value)
    assert f"`{name}` (" in str(error.value)
    assert "Keep it in the state" in str(error.value)


def test_what_is_made_once_and_kept_is_no_counter():
    other = _side(_Counting().once)
    assert check_equivalence(optax.sgd(0.1), other, PARAMS).verdict is Verdict.IDENTICAL
    assert prove_equivalence(optax.sgd(0.1), other, PARAMS).verdict == "identical"


def test_a_pair_of_functions_runs_as_it_is():
    update = _in_closure()

    def step(grads: Any, state: Any, params: Any) -> Any:
        updates, state = update(grads, state)
        return optax.apply_updates(params, updates), state

    found = check_equivalence(
        optax.sgd(0.1), (_Counting().init, step), PARAMS, gradients="normal", steps=12
    )
    assert found.verdict is Verdict.DIFFERENT
    assert found.comparison.first is not None
    assert found.comparison.ulp_by_step[8] > 1e4 > found.comparison.ulp_by_step[:8].max()
