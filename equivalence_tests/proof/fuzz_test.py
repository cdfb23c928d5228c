"""A sample; `python -m equivalence_tests.proof.fuzz` runs as many as wanted."""

import pytest

from equivalence_tests.proof import fuzz
from equivalence_tests.proof.result import IDENTICAL, REALS


def test_no_fault_that_runs_tell_apart_is_proved():
    found = list(fuzz.faults(8, seed=3))
    assert any(apart for _, _, apart, _ in found)
    proved = [row for row in found if row[2] and row[3] in (IDENTICAL, REALS)]
    assert not proved


@pytest.mark.parametrize("seed", range(3))
def test_rewrites_are_proved(seed: int):
    for trees, others, verdict in fuzz.rewrites(6, seed, depth=3):
        assert verdict in (IDENTICAL, REALS), (trees, others)
