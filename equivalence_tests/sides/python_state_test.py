"""A step that changes something in Python is refused, not frozen in silence."""

import array
import collections
import ctypes
import enum
import functools
import io
import itertools
import random
import tracemalloc
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from absl import logging
from absl.logging import log_every_n

from equivalence_tests import EquivalenceError, Verdict, check_equivalence, prove_equivalence
from equivalence_tests.sides.python_state import plain_values, python_changes

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


def _loop(numbers: list[float]) -> Iterator[float]:
    for number in numbers:  # noqa: UP028
        yield number


def _yield_from(numbers: list[float]) -> Iterator[float]:
    yield from numbers


class _Mangled:
    __slots__ = ("__number",)

    def __init__(self):
        self.__number = 0

    def count(self) -> None:
        self.__number += 1


class _Dict(dict[str, int]):
    number = 0


class _Rate(float):
    number = 0


class _Mode(enum.Enum):
    FAST = 1


vars(_Mode.FAST)["number"] = 0
_ENTRIES = {"a": 0}
_PROXY = types.MappingProxyType(_ENTRIES)
_NAMESPACE = types.SimpleNamespace(number=0)
_USER_DICT = collections.UserDict({"number": 0})
_CODES = array.array("i", [0])
_BOUND = _Counting().attribute
_PARTIAL = functools.partial(_Counting.attribute, _Counting())


def _namespace(grads: Any, state: Any, params: Any = None) -> Any:
    _NAMESPACE.number += 1
    return _scaled(grads, 1 if _NAMESPACE.number < 9 else 2), state


def _user_dict(grads: Any, state: Any, params: Any = None) -> Any:
    _USER_DICT["number"] += 1
    return _scaled(grads, 1 if _USER_DICT["number"] < 9 else 2), state


def _codes(grads: Any, state: Any, params: Any = None) -> Any:
    _CODES[0] += 1
    return _scaled(grads, 1 if _CODES[0] < 9 else 2), state


def _bound(grads: Any, state: Any, params: Any = None) -> Any:
    return _BOUND(grads, state, params)


def _partial(grads: Any, state: Any, params: Any = None) -> Any:
    return _PARTIAL(grads, state, params)


def _add_to(held: Any, key: Any) -> None:
    held[key] += 1


def _add_one(held: Any) -> None:
    _add_to(held, 99)


def _add_to_value(held: Any) -> None:
    held.value += 1


def _turn(held: Any) -> int:
    held.move_to_end(next(iter(held)))
    return held[next(iter(held))]


def _turn_plain(held: Any) -> int:
    first = next(iter(held))
    held[first] = held.pop(first)
    return held[next(iter(held))]


def _deep(depth: int) -> list[Any]:
    held: list[Any] = [0]
    for _ in range(depth - 1):
        held = [held]
    return held


def _innermost(held: Any) -> Any:
    return _innermost(held[0]) if isinstance(held[0], list) else held


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
    ("held", lambda: _at_hand(itertools.cycle([1.0, 1.0]), next)),
    ("held", lambda: _at_hand(enumerate(itertools.repeat(1)), lambda held: next(held)[1])),
    ("held", lambda: _at_hand(map(float, itertools.count()), next)),
    ("held", lambda: _at_hand(_loop([1.0] * 20), next)),
    ("held", lambda: _at_hand(_yield_from([1.0] * 20), next)),
    ("held._Mangled__number", lambda: _at_hand(_Mangled(), _Mangled.count)),
    ("held.number", lambda: _at_hand(_Dict(), _count)),
    ("held", lambda: _at_hand([0] * 100, _add_one)),
    ("held", lambda: _at_hand(dict.fromkeys(range(100), 0), _add_one)),
    ("held", lambda: _at_hand(np.array([0] * 100, object), _add_one)),
    ("the global _NAMESPACE.number", lambda: _namespace),
    ("the global _USER_DICT.data['number']", lambda: _user_dict),
    ("the global _CODES", lambda: _codes),
    ("self.number", lambda: _bound),
    ("its argument 0.number", lambda: _partial),
    ("the state of random", lambda: _at_hand(None, lambda held: _draw())),
    ("held", lambda: _at_hand(ctypes.c_int(0), _add_to_value)),
    ("held", lambda: _at_hand(memoryview(bytearray(9)), lambda held: _add_to(held, 3))),
    ("held", lambda: _at_hand(io.StringIO("1" * 8 + "9"), lambda held: int(held.read(1)))),
    ("held", lambda: _at_hand(_loop([1.0] * 20).__next__, lambda held: held())),
    ("held['a']", lambda: _at_hand(_PROXY, lambda held: _add_to(_ENTRIES, "a"))),
    ("the order of held", lambda: _at_hand(collections.OrderedDict(a=1, b=1, c=9), _turn)),
    ("the order of held", lambda: _at_hand(dict(a=1, b=1, c=9), _turn_plain)),
    ("held.number", lambda: _at_hand(_Rate(1.0), _count)),
    ("held.number", lambda: _at_hand(_Mode.FAST, _count)),
    ("held[0][0]", lambda: _at_hand(ValueError([0]), lambda held: _add_to(held.args[0], 0))),
    ("held" + "[0]" * 40, lambda: _at_hand(_deep(40), lambda held: _add_to(_innermost(held), 0))),
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


class _First:
    """Another step at its first call than at all later ones."""

    def __init__(self, *factors: Any):
        self.factors, self.is_first = factors, True

    def update(self, grads: Any, state: Any, params: Any = None) -> Any:
        factor, self.is_first = self.factors[not self.is_first], False
        return jax.tree.map(lambda g: -0.1 * factor * g, grads), state


@pytest.mark.parametrize("factors", [(1.0, 2.0), (np.ones(2), np.array([1.0, 2.0]))])
@pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])
def test_a_first_call_unlike_the_next_is_refused(compare: Callable[..., Any], factors: Any):
    with pytest.raises(EquivalenceError, match=r"right side .*its first call changes"):
        compare(optax.sgd(0.1), _side(_First(*factors).update), PARAMS)


def _sum_in(box: list[Any], grads: Any) -> Any:
    box[0] = box[0] + 1
    return _scaled(grads, 1.0 + 0 * box[0])


@pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])
def test_an_array_that_the_next_call_reads_is_refused(compare: Callable[..., Any]):
    box = [jnp.zeros(())]
    update = _at_hand(box, lambda held: None)
    assert "identical" in str(compare(optax.sgd(0.1), _side(update), PARAMS))
    with pytest.raises(EquivalenceError, match=r"right side .*Keep it in the state"):
        compare(optax.sgd(0.1), _side(lambda g, s, p=None: (_sum_in(box, g), s)), PARAMS)


@pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])
def test_an_array_that_is_kept_and_not_read_is_no_state(compare: Callable[..., Any]):
    last: list[Any] = [None]

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        last[0] = grads
        return _scaled(grads, 1.0), state

    assert "identical" in str(compare(optax.sgd(0.1), _side(update), PARAMS))


def test_an_array_that_changes_in_place_is_refused_by_a_proof():
    total = jax.new_ref(jnp.zeros(()))

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        total[...] += 1
        return _scaled(grads, total[...]), state

    with pytest.raises(EquivalenceError, match="which changes in place; use the state"):
        prove_equivalence(optax.sgd(0.1), _side(update), PARAMS)


def test_a_side_of_hyper_params_is_made_anew_for_each_trace():
    def prove(side: Callable[[], Any]) -> Any:
        return prove_equivalence(
            lambda hp: optax.sgd(0.1), lambda hp: _side(side()), PARAMS, hyper_params={}
        )

    assert prove(lambda: _Counting().once).verdict == "identical"
    with pytest.raises(EquivalenceError, match="its first call changes"):
        prove(lambda: _First(1.0, 2.0).update)
    with pytest.raises(EquivalenceError, match="each call of its step changes"):
        prove(lambda: _Counting().attribute)


class _Attributes(dict[str, Any]):
    """A dictionary whose keys are attributes, as many programs have one."""

    __getattr__ = dict.__getitem__


class _Raising:
    __slots__ = ("rate",)

    def __init__(self):
        self.rate = 1.0

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __len__(self) -> int:
        raise RuntimeError("not known yet")

    __iter__ = __next__ = __repr__ = items = __length_hint__ = __len__  # pyright: ignore


class _RaisingList(list[Any]):
    __len__ = __iter__ = __repr__ = _Raising.__len__  # pyright: ignore


class _RaisingDict(dict[Any, Any]):
    __len__ = __iter__ = items = values = __repr__ = _Raising.__len__  # pyright: ignore


class _NoClass:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("no context")


class _Holding:
    settings, other = _Attributes(rate=1.0), _NoClass()


_SETTINGS = _Attributes(rate=1.0)
_NO_CONTEXT = _NoClass()


def _with_settings(grads: Any, state: Any, params: Any = None) -> Any:
    return _scaled(grads, _SETTINGS.rate if _NO_CONTEXT is not None else 2.0), state


ORDINARY: list[Callable[[], Any]] = [
    _Raising,
    _Holding,
    lambda: {_Raising()},
    lambda: {_Raising(): 1},
    lambda: _RaisingList([1]),
    lambda: _RaisingDict({1: 2}),
    lambda: np.array([{_Raising()}]),
    lambda: itertools.cycle([1.0]),
    lambda: np.zeros((), jnp.bfloat16),
    lambda: np.zeros(2, "datetime64[s]"),
    lambda: np.zeros(2, [("a", object)]),
]


@pytest.mark.parametrize("make", ORDINARY)
def test_what_cannot_be_inspected_is_left(make: Callable[[], Any]):
    update = _at_hand(make(), lambda held: None)
    values = plain_values(update)
    assert not python_changes(values, plain_values(update), new=True)


@pytest.mark.parametrize("compare", [check_equivalence, prove_equivalence])
def test_ordinary_settings_are_no_error(compare: Callable[..., Any]):
    assert "identical" in str(compare(optax.sgd(0.1), _side(_with_settings), PARAMS))


def test_a_counter_beside_what_cannot_be_inspected_is_seen():
    held = {_Raising(): 1, "number": 0}
    update = _at_hand(held, lambda held: held.update(number=held["number"] + 1))
    before = plain_values(update)
    update({}, None)
    assert list(python_changes(before, plain_values(update), new=True)) == ["held['number']"]


def test_nan_in_place_of_nan_is_no_change():
    held = [float("nan")]
    update = _at_hand(held, lambda held: held.__setitem__(0, float("nan")))
    before = plain_values(update)
    update({}, None)
    assert not python_changes(before, plain_values(update), new=True)


def _with_log(grads: Any, state: Any, params: Any = None) -> Any:
    logging.log_first_n(logging.DEBUG, "a step", 3)
    log_every_n(logging.DEBUG, "a step", 3)
    return grads, state


def test_the_state_of_an_installed_package_is_its_own():
    before = plain_values(_with_log)
    _with_log({}, None)
    assert not python_changes(before, plain_values(_with_log), new=True)


def test_a_large_array_is_not_copied():
    update = _at_hand(np.zeros(2**22, np.uint8), lambda held: None)
    tracemalloc.start()
    plain_values(update)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20


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
