"""The page: self-contained and complete."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equivalence_tests.compare.comparison import compare
from equivalence_tests.compare.judgement import Judgement
from equivalence_tests.plot import STYLE, figure, loss_figure, stages_figure
from equivalence_tests.report.html import page
from equivalence_tests.report.item import Item, of_result
from equivalence_tests.report.outputs import Outputs
from equivalence_tests.suite.case import Result
from equivalence_tests.suite.checks import Check
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.correspondence import Verdict
from optax_bridge.correspondence.claim import different, identical, rounding


def results() -> list[Result]:
    one = {"params": {"w": np.ones((5, 2), np.float32), "b": np.ones((5, 3), np.float32)}}
    far = {"params": {"w": np.full((5, 2), 1.5, np.float32), "b": one["params"]["b"]}}
    near = {"params": {"w": np.float32(1 + 2.0**-22) * one["params"]["w"], "b": far["params"]["b"]}}
    poison = {"params": {"w": far["params"]["w"].copy(), "b": one["params"]["b"]}}
    poison["params"]["w"][3:] = np.nan
    same, apart = compare(one, one), compare(one, far)
    return [
        Result(Check("sgd", 0), "GradientDescent()", identical(), same, source="sgd()"),
        Result(
            Check("adam", 0, recipe="optax"), "Adam(beta1=0 < 1)", identical(), apart,
            source="a & b",
        ),
        Result(Check("adam", 1, recipe="optax"), "Adam()", note="no such thing"),
        Result(
            Check("lamb", 0, recipe="optax"), "LAMB()", different("it never moves"),
            compare(one, poison, poisoned={"": 3}), wide=apart,
        ),
        Result(
            Check("lars", 0), "LARS()", identical(), None, note="ValueError: out of luck",
            failed=True,
        ),
        Result(MatrixCase("adam", dtype="bfloat16"), "Adam()", identical(), same),
        Result(
            Check("adam", 0, "mlp"), "Adam(0.5)", rounding(8, "order of sums"),
            compare(one, near), losses=([2.0, 1.5, 1.0], [2.0, 1.5, 1.25]),
        ),
    ]  # fmt: skip


def made() -> str:
    return page(
        "A & B", list(map(of_result, results())), {"versions": {"jax": "1"}, "device": "cpu"}
    )


def test_nothing_comes_from_the_network():
    text = made()
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address to fetch
    assert not re.search(r"<(link|img|iframe)|@import|url\(", text)


def test_the_page_is_as_recorded(recorded: Any):
    """The matrix and each case: what differs, since when, by how much and why, and its plot."""
    text = made()
    for name, own in (("A &amp; B", "title"), ("2 claims did NOT hold", "summary")):
        assert name in text, own
    assert not re.search(r"<!--\w+-->", text)
    assert not re.search(r'd="[^"]*(inf|nan)', text)  # what is infinitely far has a place as well
    found = re.finditer(r'<details id="([^"]*)".*?</details>|<table>.*?</table>', text, re.S)
    recorded("page.txt", {each[1] or "picture": _lines(each[0]) for each in found})


def _lines(html: str) -> str:
    """HTML, a tag a line."""
    return re.sub(r">\s*<(?!/)", ">\n<", html)


def test_pictures_are_as_recorded(recorded: Any):
    """Of more tensors than have a colour, the farthest first, of those drawn, and of stages."""
    factors = {f"w{n:02}": 1 + (n * 7 % 33) / 64 for n in range(33)} | {"count": 2}
    one = {name: np.ones((400, 1), np.float32) for name in factors}
    one["count"] = np.ones((400, 1), int)
    other = {name: one[name] * one[name].dtype.type(by) for name, by in factors.items()}
    judgement = Judgement(compare(one, other), Verdict.DIFFERENT, bound=8.0)
    series = {"rate": [0.0, 0.5, 0.25], "optimizer": [0.0, 0.0, np.inf], "none": [0.0] * 3}
    recorded(
        "pictures.txt",
        {
            "many tensors": _lines("".join(figure(judgement, "it"))),
            "stages": _lines(stages_figure(series, "rate", "a < b").replace(STYLE, "")),
            "equal losses": _lines("".join(loss_figure([2.0, 1.0], [2.0, 1.0], "it"))),
            "a loss of NaN": _lines("".join(loss_figure([2.0, np.nan], [2.0, 1.0], "it"))),
        },
    )


def test_junit_has_what_failed_stopped_and_was_skipped(tmp_path: Path):
    assert Outputs(junit=tmp_path / "a.xml").write({}, list(map(of_result, results())))
    text = (tmp_path / "a.xml").read_text()
    assert 'tests="7" time="0.000" failures="1" errors="1" skipped="1"' in text
    assert '<failure message="claimed: identical; found: different: ' in text
    with pytest.raises(ValueError, match=r"--record .*does not exist"):
        Outputs(record=tmp_path / "none" / "a.zip").check()


def test_a_pair_s_page_is_about_that_pair_and_claims_nothing():
    one = Item("a / b", "a", "b", "different", False, "a / b", "different: w by 3 %", claims=False)
    text = page("a / b", [one], {})
    assert "<h1>a / b</h1>" in text
    assert '<p id="summary" class="as-different">different: w by 3 %</p>' in text
    assert 'class="unclaimed single"' in text  # no matrix, no search
    assert not any(words in text for words in ("claim held", "claims did", "NOT", '<b class="no">'))


def test_several_comparisons_are_counted():
    one = Item("a", "a", "b", "identical", True, "a", "identical at every step", claims=False)
    other = dataclasses.replace(one, id="c", outcome="different", is_as_claimed=False)
    assert "3 comparisons: 2 identical, 1 different" in page("All", [one, one, other], {})
