"""Pairs of optimizers that are equal are proved so: those of `testdata`."""

import pytest

from equivalence_tests.proof.pairs.testdata import equal_1, equal_2, equal_3, equal_4
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.testing import EQUAL_PAIRS, PARAMS

__all__ = ["equal_1", "equal_2", "equal_3", "equal_4"]  # which fill the table


@pytest.mark.parametrize("name", EQUAL_PAIRS)
def test_a_pair_that_people_write_is_proved(name: str):
    left, right = EQUAL_PAIRS[name]()
    proof = prove_equivalence(left, right, PARAMS)
    assert proof.verdict in (IDENTICAL, REALS), proof
