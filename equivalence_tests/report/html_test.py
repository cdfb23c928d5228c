"""The page: self-contained and complete."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest

from equivalence_tests.compare.comparison import compare
from equivalence_tests.compare.judgement import Judgement
from equivalence_tests.plot import figure
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


def test_every_case_has_a_cell_a_verdict_and_both_sources():
    text = made()
    for result in results():
        anchor = str(result.case).replace(" ", "_")
        assert text.count(f'id="{anchor}"') == 1
        assert text.count(f'href="#{anchor}"') == 1
    assert "Adam(beta1=0 &lt; 1)" in text
    assert "a &amp; b" in text
    assert "2 claims did NOT hold" in text
    assert "A &amp; B" in text
    assert "not as claimed" in text
    assert 'class="different broken"' in row("adam-0-odd_shapes-constant-optax")
    assert 'class="different"' in row("lamb-0-odd_shapes-constant-optax")
    assert not re.search(r"<!--\w+-->", text)
    assert not re.search(r'd="[^"]*(inf|nan)', text)  # what is infinitely far has a place as well


def test_the_farthest_tensor_has_the_first_colour():
    one = {name: np.ones((3, 2), np.float32) for name in "abc"}
    other = {name: one[name] * np.float32(by) for name, by in (("a", 1.1), ("b", 1.5), ("c", 1.2))}
    (text,) = figure(Judgement(compare(one, other), Verdict.DIFFERENT), "it")
    assert [text.index(f"<code>{name}</code>") for name in "bca"] == sorted(
        text.index(f"<code>{name}</code>") for name in "abc"
    )


def test_junit_has_what_failed_stopped_and_was_skipped(tmp_path: Path):
    assert Outputs(junit=tmp_path / "a.xml").write({}, list(map(of_result, results())))
    text = (tmp_path / "a.xml").read_text()
    assert 'tests="7" time="0.000" failures="1" errors="1" skipped="1"' in text
    assert '<failure message="claimed: identical; found: different: ' in text
    with pytest.raises(ValueError, match=r"--record .*does not exist"):
        Outputs(record=tmp_path / "none" / "a.zip").check()


def row(anchor: str) -> str:
    """A case's own part of the page."""
    (found,) = re.findall(rf'<details id="{anchor}".*?</details>', made(), re.DOTALL)
    return found


def summary(anchor: str) -> str:
    """What is seen of it at a glance, as text."""
    shown = re.search(r"<summary>.*</summary>", row(anchor), re.DOTALL)
    assert shown is not None
    return re.sub(r"<[^>]+>", " ", shown.group())


def test_a_row_says_what_differs_since_when_by_how_much_and_why_and_poison_apart():
    text = summary("lamb-0-odd_shapes-constant-optax")
    assert "LAMB()" in text and "optax" in text  # the constructor, not the id
    assert "lamb-0" not in text
    line = "params[&#x27;w&#x27;] by 33.3 % of its scale (4.19e+06 ULP), from step 1"
    assert f"different: {line}" in text
    assert "it never moves" in text
    assert "after a gradient that is not finite: params[&#x27;w&#x27;] by NaN or infinity" in text


@pytest.mark.parametrize(
    ("anchor", "lines"),
    [("sgd-0-odd_shapes-constant-exact", 0), ("adam-0-odd_shapes-constant-optax", 1)],
    ids=["identical", "different"],
)
def test_there_is_a_line_for_each_tensor_that_differs_and_no_plot_where_none_does(anchor, lines):
    text = row(anchor)
    assert text.count('<svg class="plot"') == min(lines, 1)
    assert text.count("<title>params") == lines
    assert ("1 identical, not drawn" in text) is bool(lines)


def test_the_plot_has_the_bound_and_the_float64_run():
    rounded, other = row("adam-0-mlp-constant-exact"), row("lamb-0-odd_shapes-constant-optax")
    assert '<path class="bound"' in rounded and "bound, 8 ULP in 100 steps" in rounded
    assert '<path class="bound"' not in other  # nothing was promised
    assert '<g class="wide">' in other and "the largest in float64" in other


def test_a_training_shows_both_losses_and_their_difference():
    text = row("adam-0-mlp-constant-exact")
    assert text.count('<path class="old"') == text.count('<path class="new"') == 2
    assert "new less old: at most 0.25, first at step 3" in text


def test_a_pair_s_page_is_about_that_pair_and_claims_nothing():
    one = Item("a / b", "a", "b", "different", False, "a / b", "different: w by 3 %", claims=False)
    text = page("a / b", [one], {})
    assert "<h1>a / b</h1>" in text
    assert '<p id="summary" class="as-different">different: w by 3 %</p>' in text
    assert 'class="unclaimed single"' in text  # no matrix, no search
    assert "claim held" not in text and "claims did" not in text and "NOT" not in text


def test_several_comparisons_are_counted():
    one = Item("a", "a", "b", "identical", True, "a", "identical at every step", claims=False)
    other = dataclasses.replace(one, id="c", outcome="different", is_as_claimed=False)
    assert "3 comparisons: 2 identical, 1 different" in page("All", [one, one, other], {})
