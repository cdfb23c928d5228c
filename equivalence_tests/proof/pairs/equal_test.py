"""Pairs of optimizers that are equal are proved so: those of `testdata`."""

import pytest

from equivalence_tests.proof.pairs.testdata import equal_1, equal_2, equal_3, equal_4
from equivalence_tests.proof.testing import EQUAL_PAIRS

__all__ = ["equal_1", "equal_2", "equal_3", "equal_4"]  # which fill the table

# Equal, and not decided: for each the bar is to decide it.
UNDECIDED = (
    # Only while the step size is between its bounds, which no invariant says.
    "rprop by cases",
    # The sign of a sum of cases, which is written as one sum for each.
    "norm of third power",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames:
        metafunc.parametrize("name", EQUAL_PAIRS.some_or_all(metafunc.config, UNDECIDED))


def test_a_pair_that_people_write_is_proved(name: str):
    EQUAL_PAIRS.check_pair(name, UNDECIDED)


def test_nine_of_ten_are_decided():
    assert len(EQUAL_PAIRS) == 100
    assert len(UNDECIDED) <= 10 and {*UNDECIDED} < {*EQUAL_PAIRS}
