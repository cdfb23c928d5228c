"""Pairs of optimizers that are equal are proved so: those of `testdata`."""

import pytest

from equivalence_tests.proof.pairs.testdata import equal_1, equal_2, equal_3, equal_4
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.result import UNDECIDED as UNKNOWN
from equivalence_tests.proof.testing import EQUAL_PAIRS, PARAMS, assert_runs_agree

__all__ = ["equal_1", "equal_2", "equal_3", "equal_4"]  # which fill the table

# Equal, and not decided: for each the bar is to decide it.
UNDECIDED = (
    # Only while the step size is between its bounds, which no invariant says.
    "rprop by cases",
    # The sign of a sum of cases, which is written as one sum for each.
    "norm of third power",
)


@pytest.mark.parametrize("name", EQUAL_PAIRS)
def test_a_pair_that_people_write_is_proved(name: str):
    left, right = EQUAL_PAIRS[name]()
    proof = prove_equivalence(left, right, PARAMS)
    if name in UNDECIDED:
        assert proof.verdict == UNKNOWN, f"{name} is decided now: take it off the list"
        assert all(each.equality.stopped for case in proof.cases for each in case.open)
        return
    assert proof.verdict in (IDENTICAL, REALS), proof
    assert_runs_agree(left, right)


def test_nine_of_ten_are_decided():
    assert len(EQUAL_PAIRS) == 100
    assert len(UNDECIDED) <= 10 and {*UNDECIDED} < {*EQUAL_PAIRS}
