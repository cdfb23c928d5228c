"""The closing line: counts of each recipe, and whether every claim held."""

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from equivalence_tests.compare.comparison import compare
from equivalence_tests.report.html_test import results as all_kinds
from equivalence_tests.report.item import broken_lines
from equivalence_tests.report.table import (
    closing_line,
    print_broken,
    print_reasons,
    print_table,
    result_line,
    rows,
    table,
)
from equivalence_tests.suite.case import Result
from equivalence_tests.suite.checks import Check
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.correspondence.claim import Claim, different, identical, rounding

ONE = np.ones((2, 1), np.float32)
RIGHT = {"same": ONE, "near": ONE * np.float32(1 + 2e-7), "far": 2 * ONE}
CLAIMS = {"same": identical(), "near": rounding(8, "order"), "far": different("another formula")}


def result(recipe: RecipeKind, found: str, claim: Claim | None = None) -> Result:
    comparison = compare({"w": ONE}, {"w": RIGHT[found]})
    check = Check("adam", 0, recipe=recipe)
    return Result(check, "", claim=claim or CLAIMS[found], comparison=comparison)


STOPPED = Result(Check("adam", 0, recipe="optax"), "", note="out of luck", failed=True)


@pytest.mark.parametrize(
    ("results", "line"),
    [
        ([result("exact", "same")] * 2, "exact: 2 of 2 identical; every claim held"),
        (
            [result("exact", "same"), *(result("optax", found) for found in RIGHT)],
            "exact: 1 of 1 identical; public Optax alone: 1 identical, 1 rounding only, 1 "
            "different as said; every claim held",
        ),
        (
            [result("exact", "near", identical())],
            "exact: 1 rounding only; 1 claims did NOT hold",
        ),
        (
            [result("optax", "far", rounding(8, "order"))],
            "public Optax alone: 1 different; 1 claims did NOT hold",
        ),
        (
            [result("optax", "far"), result("optax", "far", rounding(8, "order"))],
            "public Optax alone: 2 different; 1 claims did NOT hold",
        ),
        (
            [result("optax", "same"), STOPPED],
            "public Optax alone: 1 identical, 1 stopped by an error; 1 claims did NOT hold",
        ),
    ],
)
def test_the_counts_are_those_of_the_results(results: list[Result], line: str):
    assert closing_line(results) == line


def test_all_that_is_printed_and_written_is_as_recorded(recorded: Any):
    console, some = Console(width=200, file=io.StringIO()), all_kinds()
    for width in (80, 200):
        print_table(console, table(some, "it", width))
    print_reasons(console, some)
    print_broken(console, some)
    lines = [*map(result_line, some), *map(json.dumps, rows(some))]
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    recorded("table.txt", {"printed": printed, "lines": "\n".join(lines)})


def test_a_row_tells_the_farthest_the_first_step_and_a_claim_that_is_broken():
    late, early = ONE.repeat(2, 0), ONE.repeat(2, 0)
    late[2:], early[1:] = 4, 1.5
    results = [
        Result(Check("adam", 0, recipe="optax"), "", claim,
               compare({"w": ONE.repeat(2, 0)}, {"w": right}))
        for right, claim in ((late, different("")), (early, rounding(8, "order")))
    ]  # fmt: skip
    cells = [list(column.cells) for column in table(results, "it").columns]
    assert cells[2] == ["2"] and cells[5] == ["[bold red]NO[/]"]
    poisoned = early.copy()
    poisoned[1:] = np.nextafter(ONE[0], 2), [np.nan], [np.nan]
    found = compare({"w": ONE.repeat(2, 0)}, {"w": poisoned}, poisoned={"": 2})
    unproved = Result(Check("adam", 0), "", proof_held=False, proved="not decided")
    assert broken_lines(unproved) == ["proved: not decided"]
    (cell,) = table([Result(Check("adam", 0), "", different(""), found)], "it").columns[3].cells
    assert str(cell).endswith("different[/], but not before a gradient that is not finite")
    assert str(cells[3][0]).endswith(" by 75 % of its scale (6.29e+06 ULP), from step 2")
