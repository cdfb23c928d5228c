"""A step that changes something in Python is refused, not frozen in silence."""

import collections
import itertools
import random
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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


class _Seen:
    number = 0


class _Slots:
    __slots__ = ("number",)

    def __init__(self):
        self.number = 0


def _draw() -> float:
    return random.random()


def _at_hand(held: Any, move: Callable[[Any], Any]) -> Callable[..., Any]:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        return _scaled(grads, 1 if (move(held) or 0) < 9 else 2), state

    return update


def _of_function() -> Callable[..., Any]:
    def update(grads: Any, state: Any, params: Any = None) -> Any:
        vars(update)["number"] = vars(update).get("number", 0) + 1
        return _scaled(grads, 1 if vars(update)["number"] < 9 else 2), state

    return update


def _count(held: Any) -> None:
    held.number += 1


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield (number := number + 1)


STEPS: list[tuple[str, Callable[[], Callable[..., Any]]]] = [
    ("self.number", lambda: _Counting().attribute),
    ("number[0]", _in_closure),
    ("the global _calls", lambda: _global),
    ("len(held)", lambda: _at_hand([], lambda held: held.append(1) or len(held))),
    (
        "len(held.queue)",
        lambda: _at_hand(
            types.SimpleNamespace(queue=collections.deque()), lambda held: held.queue.append(1)
        ),
    ),
    ("held", lambda: _at_hand(np.zeros(2), lambda held: held.__iadd__(1)[0])),
    ("held", lambda: _at_hand(itertools.count(), next)),
    ("held.number", lambda: _at_hand(_numbers(), next)),
    ("held.number", lambda: _at_hand(_Slots(), _count)),
    ("_Seen.number", lambda: _at_hand(_Seen, _count)),
    ("update.number", _of_function),
    ("the state of random", lambda: _at_hand(None, lambda held: _draw())),
]


def _side(update: Any) -> optax.GradientTransformation:
    return optax.chain(optax.identity(), optax.GradientTransformation(_Counting().init, update))


@pytest.mark.parametrize(("name", "make"), STEPS)
@pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])
def test_a_counter_in_python_is_refused(
    compare: Callable[..., Any], name: str, make: Callable[[], Callable[..., Any]]
):
    with pytest.raises(EquivalenceError, match="changes a value in Python") as error:
        compare(optax.sgd(0.1), _side(make()), PARAMS)
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
