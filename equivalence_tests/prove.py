"""What `optax-bridge prove` does: the table with its progress, and a pair."""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rich.progress import Progress
from rich.table import Table

from equivalence_tests.loading import loaded, old_names, side
from equivalence_tests.output_files import Written, checked
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.table import DTYPES, Row, prove_task, tasks
from equivalence_tests.report.table import wide_console
from equivalence_tests.sides.adapt import EquivalenceError
from equivalence_tests.warned import silence_deprecations
from optax_bridge._terminal import plain_terminal

HELD, BROKEN, MISUSE = 0, 1, 2

_COLOURS = {"identical": "green", "equal over the reals": "cyan", "different": "yellow"}
_DEFAULT_PARAMS = "kernel=4x3,bias=3,scalar="


def prove_table(only: Sequence[str] = (), json_file: Path | None = None) -> int:
    """Proves what the correspondence claims and prints the table.

    Args:
      only: names of optimizers, recipes and dtypes; empty for all.
      json_file: where to write the certificates.

    Returns:
      The exit code: 0 if every claim is proved, 1 if one is not, 2 for misuse.
    """
    silence_deprecations()
    problems = plain_terminal(stderr=True)
    try:
        asked = tasks(only)
        if not asked:
            raise ValueError(f"{', '.join(only)}: nothing is all of these")
        checked({"--json": json_file}, None)
    except ValueError as error:
        text = str(error)
        problems.print(text if text.startswith("--") else f"--only: {text}", markup=False)
        return MISUSE
    started, rows = time.perf_counter(), []
    with Progress(console=problems, transient=True) as progress:
        bar = progress.add_task("", total=len(asked))
        for task in asked:
            progress.update(bar, description=str(task))
            rows.append(prove_task(task))
            progress.advance(bar)
    console = wide_console()
    console.print(table(rows))
    for row in rows:
        if not row.held:
            console.print(f"not as claimed: {row.task}", markup=False)
            console.print(row.note or "\n".join(map(str, row.proofs)), markup=False)
    console.print(closing_line(rows, time.perf_counter() - started))
    with Written() as files:
        if json_file is not None:
            files.text(json_file, _lines(rows))
    if files.failed:
        return MISUSE
    return HELD if all(row.held for row in rows) else BROKEN


def _lines(rows: Sequence[Row]) -> str:
    """The rows as JSON, one a line."""
    lines = [json.dumps(as_dict(row), separators=(",", ":")) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def as_dict(row: Row) -> dict[str, Any]:
    """A row as plain data, with the certificates of its proofs."""
    return {
        "id": str(row.task),
        "optimizer": row.task.entry,
        "case": row.task.case,
        "recipe": row.task.recipe,
        "dtype": row.task.dtype,
        "claim": None if row.claim is None else row.claim.verdict.value,
        "proved": row.verdict,
        "held": row.held,
        "note": row.note,
        "seconds": round(row.seconds, 3),
        "proofs": [proof.as_dict() for proof in row.proofs],
    }


def closing_line(rows: Sequence[Row], seconds: float) -> str:
    """The table in a sentence."""
    claims = [row for row in rows if row.claim is not None]
    counts = {
        verdict: sum(row.verdict == verdict for row in claims)
        for verdict in (IDENTICAL, REALS, "different", "not decided")
    }
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    proved = sum(row.held for row in claims)
    return f"{proved} of {len(claims)} claims proved in {seconds:.0f} s: {listed}"


def table(rows: Sequence[Row]) -> Table:
    """The proofs as a table: a line for each case and recipe, a column for each dtype."""
    shown = Table(title="for all inputs")
    dtypes = [dtype for dtype in DTYPES if any(row.task.dtype == dtype for row in rows)]
    for column in ("optimizer", "case", "recipe", "claim", *dtypes):
        shown.add_column(column)
    lines: dict[tuple[str, int, str], dict[str, Row]] = {}
    for row in rows:
        key = (row.task.entry, row.task.case, row.task.recipe)
        lines.setdefault(key, {})[row.task.dtype] = row
    for (entry, case, recipe), by_dtype in lines.items():
        claim = next(iter(by_dtype.values())).claim
        cells = [_cell(by_dtype.get(dtype)) for dtype in dtypes]
        claimed = "[dim]no such recipe[/]" if claim is None else claim.verdict.value
        shown.add_row(entry, str(case), recipe, claimed, *cells)
    return shown


def _cell(row: Row | None) -> str:
    if row is None or row.claim is None:
        return ""
    text = row.verdict or "no proof"
    return f"[{_COLOURS.get(text, 'red')}]{text}[/]" + ("" if row.held else " [red]not held[/]")


@old_names()
def prove_pair(
    left: str,
    right: str,
    params: str | None = None,
    hyper_params: str | None = None,
    json_file: Path | None = None,
) -> int:
    """Proves a pair by its names and prints the proof.

    Args:
      left: `module:name` of a side, or of a function that makes it: of nothing, or of the
        hyper-parameters where there are any.
      right: the other side.
      params: `module:name` of parameters, or shapes as `name=4x3,other=3`.
      hyper_params: `name=number,...`, or `module:name` of a dict of numbers.
      json_file: where to write the certificate.

    Returns:
      The exit code: 0 if the two are proved identical or equal over the reals, 1 if not, 2 for
      misuse.
    """
    silence_deprecations()
    try:
        checked({"--json": json_file}, None)
        numbers = None if hyper_params is None else _numbers(hyper_params)
        load = side if numbers is None else loaded
        proof = prove_equivalence(
            load(left),
            load(right),
            _params(params or _DEFAULT_PARAMS),
            hyper_params=numbers,
            names=(left, right),
        )
    except (EquivalenceError, ValueError) as error:
        print(error, file=sys.stderr)
        return MISUSE
    print(proof)
    with Written() as files:
        files.text(json_file, proof.to_json() + "\n")
    if files.failed:
        return MISUSE
    return HELD if proof.verdict in (IDENTICAL, REALS) else BROKEN


_SHAPE = re.compile(r"(?P<name>[^=]+)=(?P<sizes>(?:\d{1,9}(?:x\d{1,9})*)?)", re.ASCII)


def _params(text: str) -> Any:
    """Parameters by name, or their shapes as they are written on the command line."""
    if ":" in text:
        return loaded(text, make=True)
    shapes = {}
    for part in text.split(","):
        match = _SHAPE.fullmatch(part)
        if match is None or match["name"] in shapes:
            raise ProofError(
                f"--params {text}: expected shapes as w=4x3,b=3 (nothing behind = for a number), "
                f"each name once, or module:name; found {part!r}"
            )
        sizes = map(int, filter(None, match["sizes"].split("x")))
        shapes[match["name"]] = jax.ShapeDtypeStruct(tuple(sizes), jnp.float32)
    return shapes


def _numbers(text: str) -> dict[str, float]:
    if ":" in text:
        return dict(loaded(text, make=True))
    found = {}
    for part in text.split(","):
        name, _, number = part.partition("=")
        try:
            found[name.strip()] = float(number)
        except ValueError:
            raise ProofError(
                f"--hyper-params {text}: expected name=number,..., or module:name; found {part!r}"
            ) from None
    return found
