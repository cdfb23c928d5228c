"""Results as a table, as JSON rows, and as a closing line."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equivalence_tests.suite import SYNTHETIC, Result
from optax_bridge.correspondence import Verdict

_STYLE = {Verdict.IDENTICAL: "green", Verdict.ROUNDING: "yellow", Verdict.DIFFERENT: "magenta"}


def table(results: Sequence[Result], title: str) -> Table:
    """One row for each optimizer, recipe and kind of problem: the weakest of its outcomes stands for it."""
    shown = Table(title=f"legacy flax.optim against Optax ({title})", title_justify="left")
    for heading in ("optimizer", "recipe", "runs on"):
        shown.add_column(heading, no_wrap=True)
    shown.add_column("cases", justify="right")
    shown.add_column("outcome")
    shown.add_column("as claimed")
    shown.add_column("seconds", justify="right")
    previous = ""
    for (entry, recipe, problem), group in _grouped(results):
        if previous and previous != entry:
            shown.add_section()
        seconds = sum(result.seconds for result in group)
        shown.add_row(
            "" if entry == previous else entry,
            recipe,
            problem,
            str(sum(result.comparison is not None for result in group)),
            _outcome(group),
            "[green]yes[/]" if all(r.held for r in group) else "[bold red]NO[/]",
            f"{seconds:.1f}" if seconds else "",
        )
        previous = entry
    return shown


def _grouped(results: Sequence[Result]) -> list[tuple[tuple[str, str, str], list[Result]]]:
    def key(result: Result) -> tuple[str, str, str]:
        problem = SYNTHETIC if result.check.problem == SYNTHETIC else "digits"
        return result.check.entry, result.recipe, problem

    order = {SYNTHETIC: 0}
    ordered = sorted(results, key=lambda r: (key(r)[0], order.get(key(r)[2], 1), key(r)[1]))
    return [(name, list(group)) for name, group in groupby(ordered, key)]


def _outcome(group: Sequence[Result]) -> str:
    if failed := [result for result in group if result.failed]:
        return f"[bold red]error:[/] {escape(failed[0].note)}"
    ran = [result for result in group if result.comparison is not None]
    if not ran:
        return f"[dim]{escape(_short(group[0].note))}[/]"
    parts = []
    for verdict in Verdict:
        some = [result for result in ran if result.verdict is verdict]
        if some:
            parts.append(f"[{_STYLE[verdict]}]{verdict.value}[/]{_detail(verdict, some)}")
    return "\n".join(parts)


def _short(note: str) -> str:
    return note.split(": ", 1)[-1].split(". ", 1)[0]


def _detail(verdict: Verdict, results: Sequence[Result]) -> str:
    comparisons = [result.comparison for result in results if result.comparison is not None]
    if verdict is Verdict.IDENTICAL:
        return ""
    worst = max(comparisons, key=lambda comparison: comparison.ulp)
    if verdict is Verdict.ROUNDING:
        return f" (at most {worst.ulp:.3g} ULP)"
    return escape(f": by {_ulp(worst.ulp)}; first at {worst.first}")


def _ulp(ulp: float) -> str:
    return f"{ulp:.3g} ULP" if math.isfinite(ulp) else "NaN or infinity"


def print_broken(console: Console, results: Sequence[Result]) -> None:
    """Says of every claim that did not hold what was claimed and what was found."""
    for result in results:
        if result.held:
            continue
        console.print(f"[bold red]NO[/] {result.check} ({result.recipe}): {escape(result.settings)}")
        if result.failed:
            console.print(f"   {escape(result.note)}", highlight=False)
        elif result.comparison is not None and result.claim is not None:
            claim, found = result.claim, result.comparison
            bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP"
            console.print(f"   claimed: {claim.verdict.value}{bound}")
            console.print(
                f"   found: {_ulp(found.ulp)} at {escape(found.worst_leaf)}; first {escape(str(found.first))}",
                highlight=False,
            )


def closing_line(results: Sequence[Result]) -> str:
    """The count, on one line."""
    ran = [result for result in results if result.comparison is not None or result.failed]
    counts = [
        f"{sum(result.verdict is verdict for result in ran)} {verdict.value}" for verdict in Verdict
    ]
    broken = sum(not result.held for result in results)
    held = "every claim held" if not broken else f"{broken} claims did NOT hold"
    return f"{len(ran)} comparisons: {', '.join(counts)}; {held}"


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The results as plain data for JSON; an infinite distance is the string "inf"."""
    return [_row(result) for result in results]


def _row(result: Result) -> dict[str, Any]:
    found, claim = result.comparison, result.claim
    row: dict[str, Any] = {
        "id": f"{result.check}-{result.recipe}",
        "optimizer": result.check.entry,
        "recipe": result.recipe,
        "problem": result.check.problem,
        "rate": result.check.rate,
        "settings": result.settings,
        "source": result.source,
        "claim": None if claim is None else claim.verdict.value,
        "claimed_ulp": None if claim is None else claim.ulp,
        "verdict": None if result.verdict is None else result.verdict.value,
        "held": result.held,
        "note": result.note,
        "seconds": round(result.seconds, 3),
        **result.extra,
    }
    if found is not None:
        row["ulp"] = found.ulp if math.isfinite(found.ulp) else "inf"
        row["worst_leaf"] = found.worst_leaf
        row["first_difference"] = None if found.first is None else str(found.first)
        row["leaves"] = found.leaves
    return row
