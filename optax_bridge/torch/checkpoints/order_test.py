"""Which state is whose is told by shapes where one way fits, and by a person elsewhere."""

import pytest

from optax_bridge.checkpoints import CheckpointError
from optax_bridge.recorded_test import refused
from optax_bridge.torch.checkpoints.order import parameter_order

NAMES = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4, 2), "b.bias": (4,)}
WEIGHTS, BIASES = ["a.weight", "b.weight"], ["a.bias", "b.bias"]
BY_NAME = {"b": (2,), "a": (2,), "c": (3,)}


def order(groups, shapes, names=NAMES, listed_order=None):
    return parameter_order(groups, shapes, names, listed_order, "file")


@pytest.mark.parametrize(
    ("groups", "shapes", "expected"),
    [
        ([[0, 1, 2, 3]], {}, [*NAMES]),  # the model's order
        ([[0, 1], [2, 3]], {0: (2, 3), 1: (4, 2), 2: (2,), 3: (4,)}, [*WEIGHTS, *BIASES]),
        ([[0, 1]], {0: (4, 2), 1: (4,)}, ["b.weight", "b.bias"]),  # `a` is frozen: nothing fits it
    ],
)
def test_shapes_that_fit_one_order_decide(groups, shapes, expected):
    found = order(groups, shapes)
    assert [found.names[index] for index in range(len(expected))] == expected
    assert not found.doubt


@pytest.mark.parametrize(
    ("groups", "shapes", "names", "doubt"),
    [
        ([[0]], {0: (2,)}, {"a": (2,), "a_buffer": (2,)}, "fit several"),
        ([[0, 1]], {0: (3,), 1: (2,)}, {"a": (2,), "b": (3,)}, "fit no order"),
        ([[0, 1, 2]], {0: (2,)}, {"a": (2,), "b": (3,)}, "fit no order"),
        ([[0, 1], [2]], {0: (2,), 1: (2,), 2: (3,)}, BY_NAME, "two orders"),
    ],
)
def test_what_shapes_do_not_settle_is_doubted(groups, shapes, names, doubt):
    assert doubt in order(groups, shapes, names).doubt


def test_listed_names_decide_and_are_checked():
    shapes = {0: (4, 2), 1: (2, 3)}
    assert order([[0, 1]], shapes, listed_order=["b.weight", "a.weight"]).names[1] == "a.weight"
    for listed_order, problem in (
        (["a.weight", "b.weight"], "a state of shape"),
        (["b.weight", "c"], "no c in the model"),
        (["b.weight", "b.weight"], "each once, found 2 names"),
        (["b.weight", "a.weight", "b.bias"], "3 names"),
    ):
        with refused(CheckpointError, problem):
            order([[0, 1]], shapes, listed_order=listed_order)
