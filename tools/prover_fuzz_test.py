"""A sample; `python -m tools.prover_fuzz` runs as many as wanted."""

import pytest

from equivalence_tests.proof.result import IDENTICAL, REALS
from tools import prover_fuzz


def test_no_fault_that_runs_tell_apart_is_proved():
    found = list(prover_fuzz.faults(8, seed=3))
    assert any(apart for _, _, apart, _ in found)
    proved = [row for row in found if row[2] and row[3] in (IDENTICAL, REALS)]
    assert not proved


@pytest.mark.parametrize("seed", range(3))
def test_rewrites_are_proved(seed: int):
    for trees, others, verdict in prover_fuzz.rewrites(6, seed, depth=3):
        assert verdict in (IDENTICAL, REALS), (trees, others)
