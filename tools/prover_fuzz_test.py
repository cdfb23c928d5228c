"""A sample; `python -m tools.prover_fuzz` runs as many as wanted."""

import sys

import pytest

from equivalence_tests.proof.result import IDENTICAL, REALS, UNDECIDED
from tools import prover_fuzz


def test_rewrites_are_proved_and_no_fault_that_runs_tell_apart():
    found = list(prover_fuzz.faults(8, seed=3))
    assert any(apart for _, _, apart, _ in found)
    assert not [row for row in found if row[2] and row[3] in (IDENTICAL, REALS)]
    for trees, others, verdict in (r for s in range(3) for r in prover_fuzz.rewrites(6, s, 3)):
        assert verdict in (IDENTICAL, REALS), (trees, others)


@pytest.mark.parametrize(
    ("differs", "proof", "verdict", "status"),
    [
        (True, UNDECIDED, REALS, 0),
        (False, REALS, IDENTICAL, 0),
        (True, REALS, REALS, 1),
        (True, IDENTICAL, REALS, 1),
        (True, UNDECIDED, UNDECIDED, 1),
    ],
)
def test_a_proved_fault_or_an_unproved_rewrite_ends_with_1(
    differs: bool, proof: str, verdict: str, status: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(prover_fuzz, "faults", lambda *_: [("adam", "add", differs, proof)])
    monkeypatch.setattr(prover_fuzz, "rewrites", lambda *_: [("p", "g", verdict)])
    monkeypatch.setattr(sys, "argv", ["prover_fuzz"])
    assert prover_fuzz.main() == status
