"""The report as one self-contained page: the matrix as a picture, and every case with its plot."""

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from equivalence_tests.compare.comparison import ulp_text
from equivalence_tests.compare.nature import explained
from equivalence_tests.output_files import write_text
from equivalence_tests.report.plot import divergence
from equivalence_tests.suite.case import Result


@dataclass(frozen=True)
class Item:
    """One case on the page.

    Attributes:
      id: of the case, its anchor.
      row: its row in the picture, the optimizer.
      column: its column, what it is about.
      outcome: `identical`, `rounding only`, `different`, `error` or `no such recipe`.
      held: whether what was claimed held.
      ulp: largest distance, None if nothing was compared.
      ulp_by_step: the distance at each step.
      facts: label -> text.
      sources: label -> code.
    """

    id: str
    row: str
    column: str
    outcome: str
    held: bool
    ulp: float | None
    ulp_by_step: Sequence[float]
    facts: Mapping[str, str]
    sources: Mapping[str, str]


def item(result: Result) -> Item:
    """A result of the suite as a case on the page."""
    found, claim, case = result.comparison, result.claim, result.case
    facts = {}
    if claim is not None:
        bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP"
        facts["claimed"] = f"{claim.verdict.value}{bound}" + (claim.why and f": {claim.why}")
    if found is not None and found.first is not None:
        facts["first difference"] = str(found.first)
        facts["largest distance"] = f"{ulp_text(found.ulp)} at {found.worst_leaf}"
        facts["nature"] = explained(found, result.wide, result.about_wide)
        facts["distances (ULP)"] = ", ".join(f"{k}: {n}" for k, n in found.histogram.items())
    if result.proved:
        facts["proved for all inputs"] = result.proved
    if result.note:
        facts["note"] = result.note
    facts["seconds"] = f"{result.seconds:.2f}"
    outcome = "no such recipe" if result.verdict is None else result.verdict.value
    if result.failed:
        outcome = "error"
    return Item(
        id=str(result.case),
        row=case.entry,
        column=case.column,
        outcome=outcome,
        held=result.held,
        ulp=None if found is None else found.ulp,
        ulp_by_step=[] if found is None else list(map(float, found.ulp_by_step)),
        facts=facts,
        sources={
            "legacy": result.settings,
            result.case.recipe: result.source or "(no source form)",
        },
    )


def page(title: str, items: Sequence[Item], environment: Mapping[str, Any]) -> str:
    """The page as HTML; nothing in it comes from the network."""
    template = (
        resources.files("equivalence_tests.report").joinpath("report.html").read_text("utf-8")
    )
    broken = sum(not one.held for one in items)
    summary = f"{len(items)} cases; " + (
        "every claim held" if not broken else f"{broken} claims did NOT hold"
    )
    parts = {
        "title": html.escape(title),
        "summary": html.escape(summary),
        "state": "bad" if broken else "good",
        "environment": _definitions(_flat(environment)),
        "picture": _picture(items),
        "options": "".join(
            f"<option>{html.escape(name)}</option>" for name in sorted({i.outcome for i in items})
        ),
        "cases": "\n".join(map(_case, items)),
    }
    for name, value in parts.items():
        template = template.replace(f"<!--{name}-->", value)
    return template


def write(folder: Path, title: str, items: Sequence[Item], environment: Mapping[str, Any]) -> Path:
    """Writes `index.html` into a folder and returns its path."""
    file = folder / "index.html"
    write_text(file, page(title, items, environment))
    return file


def _picture(items: Sequence[Item]) -> str:
    rows = list(dict.fromkeys(one.row for one in items))
    columns = list(dict.fromkeys(one.column for one in items))
    cells: dict[tuple[str, str], list[str]] = {}
    for one in items:
        cells.setdefault((one.row, one.column), []).append(
            f'<a href="#{_anchor(one)}" class="{_class(one)}" title="{html.escape(one.id)}: '
            f'{one.outcome}"></a>'
        )
    head = "".join(f"<th><span>{html.escape(name)}</span></th>" for name in columns)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row)}</th>'
        + "".join(_cell(cells.get((row, column), [])) for column in columns)
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(squares: Sequence[str]) -> str:
    across = math.ceil(math.sqrt(1.6 * len(squares)))  # of the picture's squares, 11 pixels each
    return f'<td><div style="width:{11 * across}px">{"".join(squares)}</div></td>'


def _case(one: Item) -> str:
    distance = "" if not one.ulp else ulp_text(one.ulp)
    plot = divergence(one.ulp_by_step, f"divergence of {one.id}", style=False)
    sources = "".join(
        f"<h4>{html.escape(name)}</h4><pre>{html.escape(code)}</pre>"
        for name, code in one.sources.items()
    )
    mark = "" if one.held else '<b class="no">not as claimed</b>'
    return (
        f'<details id="{_anchor(one)}" data-outcome="{one.outcome}" data-held="{int(one.held)}">'
        f'<summary><i class="{_class(one)}"></i><code>{html.escape(one.id)}</code>'
        f"<span>{one.outcome} {distance}</span>{mark}</summary>"
        f"{plot if one.ulp_by_step else ''}{_definitions(one.facts)}{sources}</details>"
    )


def _definitions(pairs: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>"
        for name, value in pairs.items()
    )
    return f"<dl>{rows}</dl>"


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    flat = {}
    for name, value in tree.items():
        flat.update(value if isinstance(value, Mapping) else {name: value})
    return flat


def _class(one: Item) -> str:
    return one.outcome.split()[0] + ("" if one.held else " broken")


def _anchor(one: Item) -> str:
    return html.escape(one.id.replace(" ", "_"))
