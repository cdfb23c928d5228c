"""What a comparison measures and says is wrong, what not, and what the page shows of it."""

import json
import math
from pathlib import Path

import pytest

from migration_guide.examples import compare, curves, page
from migration_guide.examples.compare import BAR, apart, faults
from migration_guide.examples.turns import Run, in_turn

CURVE = {"loss": {"steps": [1, 2], "values": [4.0, 1.0]}}


FINE = {"nudged": 1e-6, "from_recorded": 1e-7, "from_before": 0.0, "step_ratio": 1.0}


def test_apart_is_relative_to_the_largest_value_of_the_worst_metric():
    more = {"a": {"steps": [1], "values": [9.0]}}
    last = {"z": {"steps": [1], "values": [2.0]}}
    other = {"loss": {"steps": [1, 2], "values": [4.0, 1.5]}}
    assert apart({**more, **other, **last}, {**more, **CURVE, **last}) == 0.125
    for other in ({}, {"loss": {"steps": [1, 3], "values": [4.0, 1.0]}}):
        with pytest.raises(ValueError, match="at the same steps"):
            apart(other, CURVE)


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("mnist", {}, ""),
        ("vae", {"from_before": 1e-7}, ""),
        ("mnist", {"nudged": 1e-4, "from_recorded": 2e-4}, ""),
        ("mnist", {"step_ratio": 1.03}, "1.030 of before's time"),
        ("mnist", {"from_before": 1e-9}, "expected the same bits"),
        ("mnist", {"from_recorded": 2e-5}, "from what is recorded"),
    ],
)
def test_what_is_wrong_is_said(name: str, row: dict, said: str):
    problems = faults(name, FINE | row, BAR)
    assert (len(problems), said in "".join(problems)) == (bool(said), True)


def test_a_step_is_timed_between_two_steps_lines_behind_the_first_turns():
    rows = [{"loss": 1.0}] * 6 + [{"eval": 1.0}] + [{"loss": 1.0}] * 3
    text = "\n".join(map(json.dumps, rows))
    before = Run([9.0, *[1.0] * 9], [], text)
    after = Run([1.0, 1.0, 1.0, 1.0, 99.0, 3.0, 99.0, 99.0, 3.0, 5.0], [], text)
    assert compare._ratio(after, before, "seconds") == 3.0


def test_programs_take_turns_and_waiting_is_not_their_time(tmp_path: Path):
    """Each writes its name into one file; the second sleeps, and computes nothing."""
    log = tmp_path / "log"
    line = f"for _ in range(3): open({str(log)!r}, 'a').write('{{0}}'); {{1}}; print('{{{{}}}}')"
    for name, work in (("a", "pass"), ("b", "time.sleep(0.3)")):
        (tmp_path / f"{name}.py").write_text(f"import time\n{line.format(name, work)}\n")
    runs = in_turn({name: ("plain", [str(tmp_path / f"{name}.py")]) for name in "ab"})
    assert log.read_text() == "abbaab"
    assert max(runs["a"].seconds[1:]) < 0.3 <= min(runs["b"].seconds)
    assert max(runs["b"].cpu_seconds[1:]) < 0.3
    (tmp_path / "b.py").write_text("1 / 0\n")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_turn({"b": ("plain", [str(tmp_path / "b.py")])})


def test_what_was_measured_before_stays_and_a_fault_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    row = page.results()["examples"]["mnist"]
    file = tmp_path / "results.json"
    file.write_text('{"examples": {"vae": 1}}')
    for ratio, status in ((1.0, 0), (1.03, 1)):
        monkeypatch.setattr(compare, "measure", lambda *_: {**row, "step_ratio": ratio})  # noqa: B023
        assert compare.main(["--only", "mnist", "--json", str(file)]) == status
    assert list(json.loads(file.read_text())["examples"]) == ["vae", "mnist"]


def test_the_page_has_columns_and_curves_of_what_was_measured():
    row = dict(recorded_final=1.0, before_final=2.0, final=3.0, from_before=1e-9)
    row |= dict(step_ratio=4.0, cpu_ratio=5.0, peak_ratio=6.0)
    (cells,) = page._rows({"mnist": row})
    assert cells[2:] == ("1", "2", "3", "1e-09 apart", "4.000", "5.000", "6.000")
    drawn = curves.curves({"a": [1.0, 2.0], "b": [0.0, 0.01]}, logarithmic=True)
    left, right, bottom, top = 40.0, 314.0, 118.0, 8.0
    at = bottom - (bottom - top) * math.log10(2.0 / 0.01) / 3
    assert f'points="{left},{bottom - (bottom - top) * 2 / 3:.1f} {right},{at:.1f}"' in drawn
    assert f'points="{left},{bottom} {right},{bottom}"' in drawn
