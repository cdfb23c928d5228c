"""What a comparison measures and says is wrong, what not, and what the page shows of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from migration_guide.examples import compare, page, pairs
from migration_guide.examples.compare import apart, faults
from migration_guide.examples.turns import Run, in_turn

CURVE = {"loss": {"steps": [1, 2], "values": [4.0, 1.0]}}
FINE = {"nudged": 1e-6, "from_recorded": 1e-7, "from_before": 0.0, "step_ratio": 1.0}


def test_apart_is_relative_to_the_largest_value_of_the_worst_metric():
    more = {"a": {"steps": [1], "values": [9.0]}}
    last = {"z": {"steps": [1], "values": [2.0]}}
    other = {"loss": {"steps": [1, 2], "values": [4.0, 0.5]}}
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
        ("mnist", {"step_ratio": 1.03}, "1.030 of before's time, bar 1.02"),
        ("mnist", {"from_before": 1e-9}, "1.0e-09 from before; expected the same bits"),
        (
            "mnist",
            {"from_recorded": 2e-5},
            "2.0e-05 of the largest value from what is recorded; expected at most 1.0e-05",
        ),
    ],
)
def test_what_is_wrong_is_said(name: str, row: dict, said: str):
    assert faults(name, FINE | row) == ([f"{name}: {said}"] if said else [])


def test_a_step_is_timed_between_two_steps_lines_behind_the_first_turns():
    rows = [{"loss": 1.0}] * 6 + [{"eval": 1.0}] + [{"loss": 1.0}] * 3
    text = "\n".join(map(json.dumps, rows))
    before = Run([9.0, *[1.0] * 9], text)
    after = Run([1.0, 1.0, 1.0, 1.0, 99.0, 3.0, 99.0, 99.0, 3.0, 5.0], text)
    assert compare._ratio(after, before) == 3.0


def test_after_is_measured_against_before_and_against_what_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
):
    recorded, modes = pairs.recorded("mnist"), []

    def run(factor: float, seconds: float, peak: float) -> Run:
        rows = [
            {"step": step, metric: factor * value}
            for metric, column in recorded.items()
            for step, value in zip(column["steps"], column["values"], strict=True)
        ]
        return Run([seconds] * len(rows), "\n".join(map(json.dumps, rows)), peak)

    def in_turn(jobs: Any) -> dict[str, Run]:
        modes.append({program: mode for program, (mode, _) in jobs.items()})
        after = run(1.5, 9.0 if len(modes) == 1 else 3.0, 5.0)
        return {"before": run(1.25, 2.0, 2.0), "after": after}

    monkeypatch.setattr(compare, "in_turn", in_turn)
    row = compare.measure("mnist")
    assert modes == [{"before": "shim", "after": "plain"}] * compare.ROUNDS
    assert (row["from_before"], row["from_recorded"]) == pytest.approx((0.2, 0.5))
    assert (row["step_ratio"], row["peak_ratio"]) == (1.5, 2.5)
    finals = [row[f"{run}final"] / row["recorded_final"] for run in ("before_", "")]
    assert finals == pytest.approx([1.25, 1.5])
    assert row["loss"] == pytest.approx([1.5 * x for x in recorded["loss"]["values"]], rel=1e-6)
    assert row["nudged"] == apart(pairs.nudged("mnist"), recorded)


def test_programs_take_turns(tmp_path: Path):
    """Each writes its name into one file; the second sleeps."""
    log = tmp_path / "log"
    line = f"for _ in range(3): open({str(log)!r}, 'a').write('{{0}}'); {{1}}; print('{{{{}}}}')"
    for name, work in (("a", "pass"), ("b", "time.sleep(0.3)")):
        (tmp_path / f"{name}.py").write_text(f"import time\n{line.format(name, work)}\n")
    runs = in_turn({name: ("plain", [str(tmp_path / f"{name}.py")]) for name in "ab"})
    assert log.read_text() == "abbaab"
    assert max(runs["a"].seconds[1:]) < 0.3 <= min(runs["b"].seconds)
    assert 20 < runs["a"].peak < 20_000  # megabytes
    (tmp_path / "b.py").write_text("1 / 0\n")
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        in_turn({"b": ("plain", [str(tmp_path / "b.py")])})


def test_figures_are_shown_beside_earlier_ones_and_a_fault_ends_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    row = page.results()["examples"]["mnist"] | {"before_final": 2.0, "final": 3.0}
    row |= {"recorded_final": 1.0, "peak_ratio": 0.5}
    file = tmp_path / "results.json"
    file.write_text('{"examples": {"vae": 1}}')
    for ratio, status in ((1.0, 0), (1.03, 1)):
        monkeypatch.setattr(compare, "measure", lambda *_: {**row, "step_ratio": ratio})  # noqa: B023
        assert compare.main(["--only", "mnist", "--json", str(file)]) == status
        said = capsys.readouterr().out
        assert f"| 1 | 2 | 3 | same bits | {ratio:.3f} | 0.500 |" in said
        assert ("of before's time" in said) == bool(status)
    written = json.loads(file.read_text())
    assert (written.keys(), list(written["examples"])) == (page.results().keys(), ["vae", "mnist"])
    assert "\n-from flax import optim\n" in page.diff("mnist")
    monkeypatch.setitem(pairs.EXAMPLES, "vae", pairs.Example("", needs=("no_such_package_here",)))
    assert compare.main(["--only", "vae"]) == 0
    assert "vae is left out: no_such_package_here is" in capsys.readouterr().out
    drawn = []
    monkeypatch.setattr(page, "stages_figure", lambda lines, *_: drawn.append(lines) or "")
    assert "<figcaption>mnist</figcaption>" in page.drift()
    for lines, measured in zip(drawn, page.results()["examples"].values(), strict=True):
        assert max(lines["after"]) <= measured["from_recorded"] + 1e-7  # seven digits are kept
        assert max(lines["other last bits"]) <= measured["nudged"] + 1e-7
    assert [page._burden(load)[:20] for load in (0, 1, 2)] == [
        "did nothing else",
        "had 1 other process ",
        "had 2 other processe",
    ]
    assert "| 1e-07 apart |" in page.table({"mnist": row | {"from_before": 1e-7}})
