"""Traversals: what each selects, what update and set make of it, and that none of them warns."""

import collections
import copy
import dataclasses
import pickle
from typing import Any, NamedTuple

import pytest
from flax import struct
from flax.core import FrozenDict

import legacy_optim as optim
from legacy_optim import traverse_util

T = traverse_util.t_identity


class Point(NamedTuple):
    x: Any
    y: Any


@struct.dataclass
class Flax:
    x: Any
    y: Any


@dataclasses.dataclass
class Plain:
    x: Any


class Thing:
    def __init__(self, x: Any):
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Thing) and self.x == other.x


ROWS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
ORDERED = collections.OrderedDict
# traversal, input, what it selects, the input with all that times ten
TABLE = {
    "identity": (T, 1, [1], 10),
    "item of a dict": (T["a"], {"a": 1, "b": 2}, [1], {"a": 10, "b": 2}),
    "item of a FrozenDict": (T["a"], FrozenDict({"a": 1}), [1], FrozenDict({"a": 10})),
    "item of a list": (T[1], [1, 2, 3], [2], [1, 20, 3]),
    "item of a tuple": (T[1], (1, 2, 3), [2], (1, 20, 3)),
    "last item": (T[-1], (1, 2, 3), [3], (1, 2, 30)),
    "slice of a tuple": (T[1:3], (1, 2, 3), [2, 3], (1, 20, 30)),
    "slice of a list": (T[::2], [1, 2, 3], [1, 3], [10, 2, 30]),
    "item of a NamedTuple": (T[1], Point(1, 2), [2], Point(1, 20)),
    "slice of a NamedTuple": (T[:], Point(1, 2), [1, 2], Point(10, 20)),
    "attribute of a NamedTuple": (T.x, Point(1, 2), [1], Point(10, 2)),
    "attribute of a Flax dataclass": (T.y, Flax(1, 2), [2], Flax(1, 20)),
    "attribute of a dataclass": (T.x, Plain(1), [1], Plain(10)),
    "attribute of an object": (T.x, Thing(1), [1], Thing(10)),
    "each of a list": (T.each(), [1, 2], [1, 2], [10, 20]),
    "each of a tuple": (T.each(), (1, 2), [1, 2], (10, 20)),
    "each of a NamedTuple": (T.each(), Point(1, 2), [1, 2], Point(10, 20)),
    "each of a dict": (T.each(), {"b": 1, "a": 2}, [1, 2], {"b": 10, "a": 20}),
    "each of an OrderedDict": (T.each(), ORDERED(b=1, a=2), [1, 2], ORDERED(b=10, a=20)),
    "each of a FrozenDict": (T.each(), FrozenDict({"b": 1}), [1], FrozenDict({"b": 10})),
    "each of nothing": (T.each(), [], [], []),
    "chain": (T.each()["a"], ROWS, [1, 3], [{"a": 10, "b": 2}, {"a": 30, "b": 4}]),
    "chain of an attribute": (T["p"].x[0], {"p": Flax([1], 2)}, [1], {"p": Flax([10], 2)}),
    "tree": (T.tree(), {"b": [1, (2,)], "a": {}}, [1, 2], {"b": [10, (20,)], "a": {}}),
    "filter": (T.each().filter(lambda x: x > 1), [1, 2, 3], [2, 3], [1, 20, 30]),
    "merge": (
        T.each().merge(T["b"], T["a"]),
        ROWS,
        [2, 1, 4, 3],
        [{"a": 10, "b": 20}, {"a": 30, "b": 40}],
    ),
    "compose": (T["a"].compose(T.each()), {"a": [1, 2]}, [1, 2], {"a": [10, 20]}),
}


def test_a_traversal_selects_updates_and_sets(subtests: pytest.Subtests) -> None:
    for traversal, inputs, selected, expected in TABLE.values():
        with subtests.test(str(traversal)):
            before = copy.deepcopy(inputs)
            assert list(traversal.iterate(inputs)) == selected
            result = traversal.update(lambda x: x * 10, inputs)
            assert result == expected
            assert type(result) is type(expected)
            assert inputs == before
            # update visits parts inside out for merge too, so values go where iterate finds them
            # only if the traversal selects each part in one pass; merge over rows does.
            assert traversal.set([value * 10 for value in selected], inputs) == expected
            if selected:
                with pytest.raises(ValueError, match="Not enough values provided"):
                    traversal.set(list(selected)[1:], inputs)
            with pytest.raises(ValueError, match="Too many values provided"):
                traversal.set([*selected, 0], inputs)


def pickled(traversal: Any) -> Any:
    return pickle.loads(pickle.dumps(traversal))


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_traversals_can_be_copied_and_pickled(again: Any) -> None:
    traversal = again(T["a"].x.each())
    assert list(traversal.iterate({"a": Flax([1, 2], 3)})) == [1, 2]


def test_traversals_can_be_subclassed() -> None:
    class Doubled(optim.Traversal):
        def update(self, fn: Any, inputs: Any) -> Any:
            return fn(inputs * 2)

        def iterate(self, inputs: Any) -> Any:
            yield inputs * 2

    assert list(T["a"].compose(Doubled()).iterate({"a": 3})) == [6]
    with pytest.raises(TypeError, match="abstract"):
        optim.Traversal()  # pyright: ignore[reportAbstractUsage]


PARAMS = {"x": {"kernel": 1, "bias": 2, "y": {"kernel": 3, "bias": 4}, "z": {}}}


class TestModelParamTraversal:
    @pytest.mark.parametrize("wrap", [dict, FrozenDict])
    def test_selects_by_path(self, wrap: Any) -> None:
        seen = []

        def is_kernel(path: str, value: Any) -> bool:
            seen.append((path, value))
            return "kernel" in path

        traversal = optim.ModelParamTraversal(is_kernel)
        assert list(traversal.iterate(wrap(PARAMS))) == [1, 3]
        in_order = [("/x/bias", 2), ("/x/kernel", 1), ("/x/y/bias", 4), ("/x/y/kernel", 3)]
        assert seen == in_order
        updated = traversal.update(lambda x: x * 10, wrap(PARAMS))
        expected = {"x": {"kernel": 10, "bias": 2, "y": {"kernel": 30, "bias": 4}, "z": {}}}
        assert updated == wrap(expected)
        assert type(updated) is type(wrap(PARAMS))

    def test_set_follows_the_sorted_paths(self) -> None:
        traversal = optim.ModelParamTraversal(lambda *_: True)
        assert traversal.set([1, 2], {"b": 0, "a": 0}) == {"a": 1, "b": 2}
