"""Pairs of optimizers that are equal are proved so: those of `testdata`."""

from typing import Any

import pytest

from equivalence_tests.proof.pairs.testdata import equal_1, equal_2, equal_3, equal_4
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.testing import EQUAL_PAIRS, PARAMS, text_of

__all__ = ["equal_1", "equal_2", "equal_3", "equal_4"]  # which fill the table


@pytest.mark.parametrize("name", EQUAL_PAIRS)
def test_a_pair_that_people_write_is_proved(name: str, recorded: Any):
    left, right = EQUAL_PAIRS[name]()
    proof = prove_equivalence(left, right, PARAMS)
    recorded("equal.txt", {name: text_of(proof)}, some=True)
