"""The page: self-contained, complete, and working in a browser."""

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from equivalence_tests.compare.comparison import compare
from equivalence_tests.report.html import item, page, write
from equivalence_tests.suite.case import Result
from equivalence_tests.suite.checks import Check
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.correspondence.entry import identical

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")


def results() -> list[Result]:
    one, other = np.ones((5, 2), np.float32), np.linspace(1, 2, 10, dtype=np.float32).reshape(5, 2)
    same, far = compare({"a": one}, {"a": one}), compare({"a": one}, {"a": other})
    poisoned = compare({"a": one}, {"a": one * np.nan})
    return [
        Result(
            Check("sgd", 0, recipe="exact"), "GradientDescent()", identical(), same, source="sgd()"
        ),
        Result(
            Check("adam", 0, recipe="stock"), "Adam(beta1=0 < 1)", identical(), far, source="a & b"
        ),
        Result(Check("adam", 1, recipe="stock"), "Adam()", note="no such thing"),
        Result(Check("lamb", 0, recipe="exact"), "LAMB()", identical(), poisoned),
        Result(
            Check("lars", 0, recipe="exact"),
            "LARS()",
            identical(),
            None,
            note="ValueError",
            failed=True,
        ),
        Result(MatrixCase("adam", dtype="bfloat16"), "Adam()", identical(), same),
    ]


def made() -> str:
    return page("A & B", list(map(item, results())), {"versions": {"jax": "1"}, "device": "cpu"})


def test_nothing_comes_from_the_network():
    text = made()
    addresses = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not an address to fetch
    assert not re.search(r"<(link|img|iframe)|@import|url\(", text)


def test_every_case_has_a_cell_a_plot_a_verdict_and_both_sources():
    text = made()
    for result in results():
        anchor = str(result.case).replace(" ", "_")
        assert text.count(f'id="{anchor}"') == 1
        assert text.count(f'href="#{anchor}"') == 1
    assert text.count('<svg class="divergence"') == 4
    assert "Adam(beta1=0 &lt; 1)" in text
    assert "a &amp; b" in text
    assert "3 claims did NOT hold" in text
    assert "A &amp; B" in text
    assert "not as claimed" in text
    assert not re.search(r"<!--\w+-->", text)


def chromium(tmp_path: Path, page: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    return subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            f"--user-data-dir={tmp_path / 'profile'}",
            *arguments,
            page,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )


@needs_chromium
def test_the_search_filters_in_a_browser(tmp_path: Path):
    file = write(tmp_path, "Report", list(map(item, results())), {})
    done = chromium(tmp_path, f"{file.as_uri()}?q=adam+bfloat16", "--dump-dom")
    assert done.returncode == 0, done.stderr
    shown = [tag for tag in re.findall(r"<details[^>]*>", done.stdout) if "hidden" not in tag]
    assert len(shown) == 1
    assert "bfloat16" in shown[0]
    assert 'class="identical off"' in done.stdout


@needs_chromium
def test_a_link_opens_its_case(tmp_path: Path):
    file = write(tmp_path, "Report", list(map(item, results())), {})
    anchor = str(results()[1].case).replace(" ", "_")
    done = chromium(tmp_path, f"{file.as_uri()}#{anchor}", "--dump-dom")
    (opened,) = [tag for tag in re.findall(r"<details[^>]*>", done.stdout) if " open" in tag]
    assert anchor in opened


@needs_chromium
@pytest.mark.parametrize("size", ["390,800", "1280,900"], ids=["phone", "desk"])
def test_it_can_be_drawn(size: str, tmp_path: Path):
    file = write(tmp_path, "Report", list(map(item, results())), {})
    picture = tmp_path / "page.png"
    done = chromium(tmp_path, file.as_uri(), f"--window-size={size}", f"--screenshot={picture}")
    assert done.returncode == 0, done.stderr
    assert picture.stat().st_size > 5000


@needs_chromium
def test_the_search_stays_above_the_cases_that_scroll_under_it(tmp_path: Path):
    items = [
        dataclasses.replace(one, id=f"{one.id}-{n}")
        for n in range(20)
        for one in map(item, results())
    ]
    text = page("Report", items, {})
    asked = """<script>addEventListener("load", () => setTimeout(() => {
      const box = words.getBoundingClientRect(), at = box.top + box.height - 2;
      const above = document.elementsFromPoint(box.left + 40, at).map(one => one.tagName);
      document.title = [scrollY > 0, above[0], above.includes("DETAILS")].join(" "); }, 300));
    </script>"""
    (tmp_path / "index.html").write_text(text.replace("</html>", asked + "</html>"))
    anchor = f"{(tmp_path / 'index.html').as_uri()}#{items[60].id.replace(' ', '_')}"
    done = chromium(tmp_path, anchor, "--dump-dom", "--virtual-time-budget=3000")
    assert "<title>true INPUT true</title>" in done.stdout
