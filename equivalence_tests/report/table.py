"""Results as a table, as JSON rows, and as a closing line."""

import io
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from equivalence_tests.compare.comparison import NOTICEABLE, as_data
from equivalence_tests.compare.extent import extent_before_poison
from equivalence_tests.recordings.format import Recording
from equivalence_tests.recordings.stages import Stage
from equivalence_tests.report.item import broken_lines
from equivalence_tests.report.recording import NOT_RUN
from equivalence_tests.sides.inputs.problems import STREAMS
from equivalence_tests.suite.case import SYNTHETIC, Result
from optax_bridge.cli.terminal import Terminal
from optax_bridge.correspondence import Verdict

_STYLE = {Verdict.IDENTICAL: "green", Verdict.ROUNDING: "yellow", Verdict.DIFFERENT: "magenta"}


def wide_console() -> Console:
    """Standard output; where it is no terminal, nothing is wrapped."""
    width = None if sys.stdout.isatty() else 1000
    return Terminal(width=width, emoji=False, highlight=False)  # a module:name is no :emoji:


def print_table(console: Console, shown: Table) -> None:
    """Prints a table; where that is no terminal, without the spaces at the ends of its lines."""
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as capture:
        console.print(shown)
    for line in capture.get().splitlines():
        console.print(line.rstrip(), markup=False)


def result_line(result: Result) -> str:
    """One result in a line."""
    if result.judgement is not None:
        text = result.judgement.headline
    else:
        text = ("error: " if result.failed else "no such recipe: ") + result.note
    prefix = "" if result.held else "NOT as claimed: "
    return f"{result.case}: {prefix}{text} ({result.seconds:.1f} s)"


_NARROW = 100  # columns of a terminal, below which seconds are left out


def table(
    results: Sequence[Result], title: str, width: int = _NARROW, library: str = "flax.optim"
) -> Table:
    """One row for each optimizer, recipe and outcome."""
    is_wide = width >= _NARROW
    shown = Table(
        title=f"{library} against Optax: {title}", title_justify="left", box=box.SIMPLE_HEAD
    )
    shown.add_column("optimizer", no_wrap=True)
    shown.add_column("recipe", no_wrap=True)
    shown.add_column("runs", justify="right")
    shown.add_column("outcome", overflow="fold", min_width=24)
    shown.add_column("proved", overflow="fold")
    shown.add_column("as claimed", no_wrap=True)
    if is_wide:
        shown.add_column("seconds", justify="right")
    previous = ("", "")
    for key, group in _groups(results):
        if previous[0] and previous[0] != key[0]:
            shown.add_section()
        seconds = sum(result.seconds for result in group)
        for outcome, some in _by_outcome(group):
            new = key != previous
            cells = (
                key[0] if key[0] != previous[0] else "",
                key[1] if new else "",
                str(len(some)) if any(r.comparison is not None or r.failed for r in some) else "",
                outcome,
                ", ".join(dict.fromkeys(escape(r.proved) for r in some if r.proved)),
                "[green]yes[/]" if all(r.held for r in some) else "[bold red]NO[/]",
                f"{seconds:.1f}" if new and seconds else "",
            )
            shown.add_row(*(cells if is_wide else cells[:-1]))
            previous = key
    return shown


def _groups(results: Sequence[Result]) -> list[tuple[tuple[str, str], list[Result]]]:
    def key(result: Result) -> tuple[str, str]:
        return result.case.entry, result.case.recipe

    return [(name, list(group)) for name, group in groupby(sorted(results, key=key), key)]


def _by_outcome(group: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    """The results of a row's group by outcome, each with its text, the best outcome first."""
    rows: list[tuple[str, list[Result]]] = []
    for verdict in Verdict:
        some = [result for result in group if result.verdict is verdict]
        if some:
            rows.append((f"[{_STYLE[verdict]}]{verdict.value}[/]{_detail(verdict, some)}", some))
    for note in dict.fromkeys(result.note for result in group if result.failed):
        same_note = [result for result in group if result.failed and result.note == note]
        rows.append((f"[bold red]error[/] {escape(note)}", same_note))
    for result in group:
        if result.comparison is None and not result.failed:
            note = result.note.split(": ", 1)[-1].split(". ", 1)[0]
            rows.append((f"[dim]no such recipe: {escape(note)}[/]", [result]))
    return rows


def _detail(verdict: Verdict, results: Sequence[Result]) -> str:
    if verdict is Verdict.IDENTICAL:
        digits = [r for r in results if r.case.problem != SYNTHETIC]
        models = ", ".join(sorted({r.case.problem for r in digits}))
        is_dtype = "float32" in models  # of the checks against PyTorch
        return f"  [dim]{'in' if is_dtype else 'digits:'} {models}[/]" if digits else ""
    comparisons = [result.comparison for result in results if result.comparison is not None]
    if verdict is Verdict.ROUNDING:
        return f", at most {max(comparison.ulp for comparison in comparisons):.3g} ULP"
    usual = [
        extent
        for comparison in comparisons
        if (extent := extent_before_poison(comparison, NOTICEABLE))
    ]
    usual = [extent for extent in usual if extent.ulp > NOTICEABLE]
    if not usual:
        return ", but not before a gradient that is not finite"
    far = max(usual, key=lambda extent: extent.relative)
    at = min(extent.step for extent in usual)
    stream = next((name for name in STREAMS if f"['{name}']" in far.leaf), "")
    where = f" on {stream} gradients" if stream else ""
    return escape(f" by {far}{where}, from step {at}")


def print_reasons(console: Console, results: Sequence[Result]) -> None:
    """Prints why recipes differ, where the correspondence has a reason."""
    reasons = [
        (result.case.entry, result.case.recipe, result.claim.why)
        for result in results
        if result.verdict is Verdict.DIFFERENT and result.claim and result.claim.why
    ]
    for entry, recipe, why in dict.fromkeys(reasons):
        console.print(f"{entry}, {recipe}, differs: {escape(why)}")


def drawn(shown: RenderableType, closing: str, title: str = "optax-bridge check") -> str:
    """Returns the output of a command, and its last line, as an SVG picture."""
    canvas = Console(width=110, record=True, file=io.StringIO(), force_terminal=True)
    canvas.print(shown)
    canvas.print(closing, highlight=False)
    picture = canvas.export_svg(title=title, unique_id="picture")
    return re.sub(
        r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL
    )  # they load from the network


def print_broken(console: Console, results: Sequence[Result]) -> None:
    """Prints each claim that did not hold, with the difference and its nature."""
    for result in results:
        if not result.held:
            text = f"{result.case} ({result.case.recipe}): {escape(result.settings)}"
            console.print(f"[bold red]NO[/] {text}")
            for line in broken_lines(result):
                console.print(f"   {line}", markup=False)


def print_against(
    console: Console, outcomes: Sequence[Stage], recorded: Mapping[str, Recording]
) -> None:
    """Prints how this machine's runs compare with the recorded ones."""
    about = next(iter(recorded.values())).index
    missing = sum(outcome.text == NOT_RUN for outcome in outcomes)
    if missing:
        console.print(f"[dim]{missing} recorded runs: {NOT_RUN}[/]")
    for outcome in outcomes:
        if outcome.text not in ("", NOT_RUN):
            style = "bold red" if outcome.parts else "dim"
            console.print(f"[{style}]{escape(outcome.name)}[/]: {escape(outcome.text)}")
    counts = [
        f"{sum(o.outcome.value == verdict.value for o in outcomes)} {verdict.value}"
        for verdict in Verdict
    ]
    where = f"{about.get('platform', '')} ({about.get('device', '')})"
    console.print(f"against the recording from {where}: {', '.join(counts)}")


RECIPES = {
    "exact": "this project's transformation in legacy arithmetic, compared bit by bit",
    "optax": "the nearest recipe of public Optax alone, and what it is claimed to be",
}
_CALLED = {"exact": "exact", "optax": "public Optax alone"}


def closing_line(results: Sequence[Result]) -> str:
    """Returns the counts of each recipe, and whether every claim held, on one line."""
    parts = [_counts(results, recipe) for recipe in RECIPES]
    broken = sum(not result.held for result in results)
    summary = "every claim held" if not broken else f"{broken} claims did NOT hold"
    return "; ".join([*filter(None, parts), summary])


def _counts(results: Sequence[Result], recipe: str) -> str:
    ran = [
        result
        for result in results
        if result.case.recipe == recipe and (result.comparison is not None or result.failed)
    ]
    if not ran:
        return ""
    numbers = {verdict: sum(result.verdict is verdict for result in ran) for verdict in Verdict}
    if numbers[Verdict.IDENTICAL] == len(ran):
        return f"{_CALLED[recipe]}: {len(ran)} of {len(ran)} identical"
    as_said = all(result.held for result in ran if result.verdict is Verdict.DIFFERENT)
    counts = [f"{number} {verdict.value}" for verdict, number in numbers.items() if number]
    if numbers[Verdict.DIFFERENT] and as_said:
        counts[-1] += " as said"
    if failed := sum(result.failed for result in ran):
        counts.append(f"{failed} stopped by an error")
    return f"{_CALLED[recipe]}: {', '.join(counts)}"


def rows(results: Sequence[Result]) -> list[dict[str, object]]:
    """The results as plain data for JSON; an infinite distance is the string "inf"."""
    return [_row(result) for result in results]


def _row(result: Result) -> dict[str, object]:
    comparison, claim, judgement = result.comparison, result.claim, result.judgement
    row: dict[str, object] = {
        "id": str(result.case),
        "optimizer": result.case.entry,
        "recipe": result.case.recipe,
        "problem": result.case.problem,
        "rate": result.case.rate,
        "settings": result.settings,
        "source": result.source,
        "claim": None if claim is None else claim.verdict.value,
        "claimed_ulp": None if claim is None else claim.ulp,
        "verdict": None if result.verdict is None else result.verdict.value,
        "held": result.held,
        "proved": result.proved,
        "note": result.note,
        "seconds": round(result.seconds, 3),
        **result.extra,
    }
    if comparison is not None and judgement is not None:
        row |= as_data(comparison, result.wide)
        row["first_difference"] = None if comparison.first is None else str(comparison.first)
        row["nature"] = judgement.nature.value
    return row
