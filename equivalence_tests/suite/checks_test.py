"""The suite itself: every claim of the correspondence, held on this machine.

Each optimizer on odd shapes; rates per call and real models with two. `optax-bridge check` runs all
of it.
"""

import numpy as np
import pytest

from equivalence_tests.compare.comparison import compare
from equivalence_tests.suite.case import SYNTHETIC, Result, groups, largest_ulp_by_claim
from equivalence_tests.suite.checks import TRAINED, Check, checks, run
from optax_bridge.correspondence import Verdict
from optax_bridge.correspondence.claim import MARGIN, identical, measurements, rounding

QUICK = 100  # steps; the claims are for as many
FRAME = ("adam", "multi_optimizer")
# They treat each element by itself, as Adam does: in place of every shape their second setting.
ELEMENTWISE = ("adabelief", "adadelta", "adagrad", "momentum", "rmsprop")


def _is_quick(check: Check) -> bool:
    if check.problem == SYNTHETIC:
        if check.rate == "constant":
            return check.setting == int(check.entry in ELEMENTWISE)
        return check.entry in FRAME
    is_mlp = check.problem == "mlp" and check.entry in FRAME
    return is_mlp or (check.entry, check.problem) == TRAINED[0]


def those(odd: bool) -> list:
    chosen = [c for c in checks() if (c.problem == SYNTHETIC) is odd and _is_quick(c)]
    return [pytest.param(group, id=str(group[0])) for group in groups(chosen)]


@pytest.mark.parametrize("group", those(odd=True))
def test_claim_on_odd_shapes(group: list[Check], monkeypatch: pytest.MonkeyPatch):
    if group[0].setting == 0 and group[0].entry not in FRAME:  # proved by `proof/table_test.py`
        monkeypatch.setattr("equivalence_tests.suite.checks.prove", lambda result, setting: None)
    for result in run(group, QUICK):
        assert result.held, (str(result.case), result.note, result.comparison)
        if result.verdict is Verdict.DIFFERENT:  # as claimed: float64 tells that it is no rounding
            assert result.wide is not None or result.about_wide
        for key, ulp in largest_ulp_by_claim([result]).items():
            again = "run python -m tools.record_seen"
            most = 1 + MARGIN * measurements().get(key, 0.0)
            assert ulp <= most, f"{key}: {ulp} ULP; {again}"


def test_the_proof_is_of_the_setting_that_ran(monkeypatch: pytest.MonkeyPatch):
    settings: list[int] = []
    prove = lambda result, setting: settings.append(setting)  # noqa: E731
    monkeypatch.setattr("equivalence_tests.suite.checks.prove", prove)
    second = ("momentum", 1, SYNTHETIC, "constant")
    run([next(c for c in checks() if (c.entry, c.setting, c.problem, c.rate) == second)], 1)
    assert settings == [1]


@pytest.mark.parametrize("group", those(odd=False))
def test_claim_in_real_training(group: list[Check]):
    (result,) = run(group, 60)
    assert result.held, (result.note, result.comparison)
    first, last = result.extra["loss"]
    assert last < first  # it trained: two loops that stand still would agree as well


def test_a_claim_holds_by_its_verdict_and_its_proof():
    one = np.ones((1, 1), np.float32)
    rounded, same = compare(one, np.nextafter(one, np.float32(2))), compare(one, one)
    check = next(checks())
    bounded = rounding(2.0, "")
    assert Result(check, "", identical(), same).held
    assert Result(check, "", bounded, same).held and Result(check, "", bounded, rounded).held
    assert not Result(check, "", identical(), rounded).held
    broken = Result(check, "", identical(), same, proof_held=False, proved="not decided")
    assert not broken.held and broken.proved == "not decided"
    assert not Result(check, "", bounded, compare(one, 2 * one)).held
    pairs = [Result(check, "", bounded, compare(one, one + n * 2.0**-23)) for n in (1, 2, 1)]
    assert largest_ulp_by_claim(pairs) == {bounded.key: 2.0}
