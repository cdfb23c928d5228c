"""The suite itself: every claim of the correspondence, held on this machine."""

import pytest

from equivalence_tests.suite.checks import SYNTHETIC, checks, run

QUICK = 100  # steps; the claims are for as many


@pytest.mark.parametrize("check", [c for c in checks() if c.problem == SYNTHETIC], ids=str)
def test_claim_on_odd_shapes(check):
    for result in run(check, QUICK):
        assert result.held, (result.recipe, result.note, result.comparison)


@pytest.mark.parametrize("check", [c for c in checks() if c.problem != SYNTHETIC], ids=str)
def test_claim_in_real_training(check):
    (result,) = run(check, 60)
    assert result.held, (result.note, result.comparison)
    first, last = result.extra["loss"]
    assert last < first  # it trained: two loops that stand still would agree as well
