"""The suite itself: every claim of the correspondence, held on this machine."""

import pytest

from equivalence_tests.suite.case import SYNTHETIC, largest_ulp_by_claim
from equivalence_tests.suite.checks import checks, groups, run
from optax_bridge.correspondence import seen

QUICK = 100  # steps; the claims are for as many


def those(odd: bool) -> list:
    chosen = [check for check in checks() if (check.problem == SYNTHETIC) is odd]
    return [pytest.param(group, id=str(group[0])) for group in groups(chosen)]


@pytest.mark.sample(24)
@pytest.mark.parametrize("group", those(odd=True))
def test_claim_on_odd_shapes(group, request: pytest.FixtureRequest):
    if group[0].setting > 0 and not request.config.getoption("--equivalence-full"):
        pytest.skip("`optax-bridge check` runs every setting; --equivalence-full does so here")
    for result in run(group, QUICK):
        assert result.held, (str(result.case), result.note, result.comparison)
        for key, ulp in largest_ulp_by_claim([result]).items():
            again = "run python -m tools.record_seen"
            assert ulp <= 1 + seen.MARGIN * seen.recorded().get(key, 0.0), (
                f"{key}: {ulp} ULP; {again}"
            )


@pytest.mark.parametrize("group", those(odd=False))
def test_claim_in_real_training(group):
    (result,) = run(group, 60)
    assert result.held, (result.note, result.comparison)
    first, last = result.extra["loss"]
    assert last < first  # it trained: two loops that stand still would agree as well
