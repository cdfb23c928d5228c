"""What a comparison says is wrong, and what not."""

import pytest

from migration_guide.examples.compare import BAR, apart, faults

CURVE = {"loss": {"steps": [1, 2], "values": [4.0, 1.0]}}


def _measured(**row: float) -> dict:
    fine = {"nudged": 1e-6, "from_recorded": 1e-7, "from_before": 0.0, "step_ratio": 1.0}
    return {**fine, **row}


def test_apart_is_relative_to_the_largest_value():
    assert apart({"loss": {"steps": [1, 2], "values": [4.0, 1.5]}}, CURVE) == 0.125


@pytest.mark.parametrize("other", [{}, {"loss": {"steps": [1, 3], "values": [4.0, 1.0]}}])
def test_other_metrics_or_steps_are_an_error(other: dict):
    with pytest.raises(ValueError, match="at the same steps"):
        apart(other, CURVE)


def test_nothing_is_wrong():
    assert faults("mnist", _measured(), BAR) == []
    assert faults("vae", _measured(from_before=1e-7), BAR) == []


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"step_ratio": 1.03}, "1.030 of before's time"),
        ({"from_before": 1e-9}, "expected the same bits"),
        ({"from_recorded": 2e-5}, "from what is recorded"),
    ],
    ids=["slow", "other-bits", "trains-otherwise"],
)
def test_what_is_wrong_is_said(row: dict, said: str):
    (fault,) = faults("mnist", _measured(**row), BAR)
    assert said in fault
