"""The table that `optax-bridge prove` prints, and its rows as JSON."""

import json
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from equivalence_tests.proof.claims import Outcome
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.table import DTYPES
from optax_bridge.correspondence.claim import PROVED_FOR

_COLOURS = {"identical": "green", "equal over the reals": "cyan", "different": "yellow"}


def print_rows(console: Console, rows: Sequence[Outcome], seconds: float) -> None:
    """Prints the table, the claims that do not hold, and the count."""
    console.print(table(rows))
    for row in rows:
        if not row.held:
            claim = f"claimed {row.claim}, found {row.verdict}"
            console.print(f"not as claimed: {row.task}: {claim}", markup=False)
            console.print(row.note or row.text, markup=False)
    console.print(closing_line(rows, seconds))


def to_json(rows: Sequence[Outcome]) -> str:
    """Returns the rows as JSON, one a line."""
    lines = [json.dumps(as_dict(row), separators=(",", ":")) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def as_dict(row: Outcome) -> dict[str, object]:
    """Returns a row as plain data: verdict, scope, assumptions and example of each proof."""
    return {
        "id": str(row.task),
        "optimizer": row.task.entry,
        "case": row.task.case,
        "recipe": row.task.recipe,
        "dtype": row.task.dtype,
        "claim": row.claim,
        "proved": row.verdict,
        "held": row.held,
        "note": row.note,
        "seconds": round(row.seconds, 3),
        "proofs": list(row.proofs),
    }


def closing_line(rows: Sequence[Outcome], seconds: float) -> str:
    """Returns the table in a sentence."""
    undecided = "not decided"
    claims = [row for row in rows if row.claim and not (row.held and row.verdict == undecided)]
    counts = {
        verdict: sum(row.verdict == verdict for row in rows)
        for verdict in (IDENTICAL, REALS, "different", undecided)
    }
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    proved = sum(row.held for row in claims)
    return f"{proved} of {len(claims)} claims proved in {seconds:.0f} s: {listed}"


def table(rows: Sequence[Outcome]) -> Table:
    """Returns the proofs as a table: a line for each case and recipe, a column for each dtype."""
    shown = Table(title=f"for {PROVED_FOR}")
    dtypes = [dtype for dtype in DTYPES if any(row.task.dtype == dtype for row in rows)]
    for column in ("optimizer", "case", "recipe", "claim", *dtypes):
        shown.add_column(column)
    lines: dict[tuple[str, int, str], dict[str, Outcome]] = {}
    for row in rows:
        key = (row.task.entry, row.task.case, row.task.recipe)
        lines.setdefault(key, {})[row.task.dtype] = row
    for (entry, case, recipe), by_dtype in lines.items():
        claim = next(iter(by_dtype.values())).claim
        cells = [_cell(by_dtype.get(dtype)) for dtype in dtypes]
        claimed = "[dim]no such recipe[/]" if claim is None else claim
        shown.add_row(entry, str(case), recipe, claimed, *cells)
    return shown


def _cell(row: Outcome | None) -> str:
    if row is None or row.claim is None:
        return ""
    text = row.verdict or "no proof"
    return f"[{_COLOURS.get(text, 'red')}]{text}[/]" + ("" if row.held else " [red]not held[/]")
