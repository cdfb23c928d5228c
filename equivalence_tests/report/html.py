"""The report as one self-contained page: the matrix as a picture, and every case with its plot."""

import datetime
import html
import math
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from equivalence_tests.compare.comparison import Comparison
from equivalence_tests.compare.headline import headline, poisoned_line
from equivalence_tests.compare.nature import explained
from equivalence_tests.output_files import write_text
from equivalence_tests.report.plot import RULES, divergence, key, losses
from equivalence_tests.suite.case import Result


@dataclass(frozen=True)
class Item:
    """One case on the page, as plain data.

    Attributes:
      id: of the case, its anchor.
      row: its row in the picture, the optimizer.
      column: its column, what it is about.
      outcome: `identical`, `rounding only`, `different`, `error` or `no such recipe`.
      held: whether what was claimed held.
      title: what is compared: the legacy constructor, or the names of two sides.
      headline: what differs, from which step, by how much.
      claims: whether anything was claimed.
      about: how it was compared, in a word each.
      why: the reason for the outcome, where one is known.
      apart: what a NaN or an infinity among the gradients does, where that is another matter.
      pictures: HTML.
      facts: label -> text.
      sources: label -> code.
    """

    id: str
    row: str
    column: str
    outcome: str
    held: bool
    title: str
    headline: str
    claims: bool = True
    about: Sequence[str] = ()
    why: str = ""
    apart: str = ""
    pictures: Sequence[str] = ()
    facts: Mapping[str, str] | None = None
    sources: Mapping[str, str] | None = None


def item(result: Result) -> Item:
    """A result of the suite as a case on the page."""
    found, claim, case = result.comparison, result.claim, result.case
    facts, line, pictures = {}, result.note, []
    outcome = "no such recipe" if result.verdict is None else result.verdict.value
    if result.failed:
        outcome = "error"
    if claim is not None:
        bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP in 100 steps"
        if claim.seen is not None:
            bound += f"; in the suite's own runs {claim.seen:g} at most"
        facts["claimed"] = f"{claim.verdict.value}{bound}"
    if result.losses is not None:
        pictures += loss_figure(*result.losses, str(case))
    if found is not None and result.verdict is not None:
        limit = None if claim is None else claim.ulp
        line = headline(found, result.verdict, limit, result.wide)
        facts |= measured(found)
        if not found.identical:
            facts["nature"] = explained(found, result.wide, result.about_wide)
        pictures += figure(found, str(case), result.wide, limit)
    if result.proved:
        facts["proved for all inputs"] = result.proved
    if result.note and found is not None:
        facts["note"] = result.note
    facts |= {"id": str(case), "seconds": f"{result.seconds:.2f}"}
    about = [case.recipe, case.problem]
    if not case.column.startswith(case.recipe):
        about.append(case.column)
    if case.rate != "constant":
        about.append(f"rate {case.rate}")
    return Item(
        id=str(case),
        row=case.entry,
        column=case.column,
        outcome=outcome,
        held=result.held,
        title=result.settings,
        headline=line if found is not None or result.failed else f"{outcome}: {line}",
        about=tuple(dict.fromkeys(about)),
        why="" if claim is None or outcome == "identical" else claim.why,
        apart="" if found is None else poisoned_line(found, line),
        pictures=pictures,
        facts=facts,
        sources={
            "legacy": result.settings,
            case.recipe: result.source or "(no source form)",
        },
    )


def measured(found: Comparison) -> dict[str, str]:
    """The facts of a comparison; none where all is identical."""
    if found.first is None:
        return {"compared": f"{found.leaves} tensors, the same to the bit"}
    return {"first difference": str(found.first), "distances (ULP)": found.counts}


def figure(found: Comparison, name: str, wide: Comparison | None, bound: float | None) -> list[str]:
    """The plot of a comparison with its key, as HTML; none where nothing differs."""
    plot = divergence(found, f"divergence of {name}", wide=wide, bound=bound, style=False)
    if not plot:
        return []
    title = "Largest difference in each tensor over the tensor's scale; at the right in ULP"
    return [f"<h4>{title}</h4>{plot}{key(found, wide=wide, bound=bound)}"]


def loss_figure(old: Sequence[float], new: Sequence[float], name: str) -> list[str]:
    """The two loss curves and their difference, as HTML."""
    curves = losses(old, new, f"loss curves of {name}", style=False)
    apart = [abs(a - b) for a, b in zip(old, new, strict=True)]
    line = "the two are the same to the bit at every step"
    if any(apart):
        step = next(step for step, value in enumerate(apart, 1) if value)
        line = f"new less old: at most {max(apart):.2g}, first at step {step}"
    words = '<span><i class="old"></i>old</span><span><i class="new"></i>new, drawn over it</span>'
    shown = [f'<h4>Loss</h4>{curves}<p class="key">{words}<span>{line}</span></p>']
    if any(apart):
        signed = [b - a for a, b in zip(old, new, strict=True)]
        zero = [0.0] * len(signed)
        plot = losses(zero, signed, f"difference of the losses of {name}", style=False)
        shown.append(f"<h4>Loss, new less old</h4>{plot}")
    return shown


def page(
    title: str, items: Sequence[Item], environment: Mapping[str, Any], headline: str = ""
) -> str:
    """Returns the page as HTML; nothing in it comes from the network.

    Args:
      title: of the page.
      items: the cases.
      environment: what ran, and where.
      headline: what the page says first; the items' outcomes unless given.
    """
    template = (
        resources.files("equivalence_tests.report").joinpath("report.html").read_text("utf-8")
    )
    summary, state = _summary(items)
    alone = items[0] if len(items) == 1 else None
    claims = any(one.claims for one in items)
    parts = {
        "title": html.escape(title),
        "rules": RULES,
        "summary": html.escape(headline or summary),
        "state": state,
        "more": "" if alone is None else _more(alone),
        "kind": " ".join(["" if claims else "unclaimed", "" if len(items) > 1 else "single"]),
        "environment": _definitions(_flat(environment)),
        "picture": _picture(items),
        "options": "".join(
            f"<option>{html.escape(name)}</option>" for name in sorted({i.outcome for i in items})
        ),
        "cases": "\n".join(_case(one, is_open=len(items) == 1) for one in items),
    }
    for name, value in parts.items():
        template = template.replace(f"<!--{name}-->", value)
    return template


def write(
    folder: Path,
    title: str,
    items: Sequence[Item],
    environment: Mapping[str, Any],
    headline: str = "",
) -> Path:
    """Writes `index.html` into a folder and returns its path; with the arguments of `page`."""
    file = folder / "index.html"
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    write_text(file, page(title, items, about | dict(environment), headline))
    return file


def _summary(items: Sequence[Item]) -> tuple[str, str]:
    """Returns the page's headline, and its colour's class."""
    bad = sum(not one.held for one in items)
    if len(items) == 1 and not items[0].claims:
        return items[0].headline, f"as-{_class(items[0])}"
    if any(one.claims for one in items):
        held = "every claim held" if not bad else f"{bad} claims did NOT hold"
        return f"{len(items)} cases; {held}", "bad" if bad else "good"
    counts = Counter(one.outcome for one in items)
    shown = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    return f"{len(items)} comparisons: {shown}", ""


def _picture(items: Sequence[Item]) -> str:
    rows = list(dict.fromkeys(one.row for one in items))
    columns = list(dict.fromkeys(one.column for one in items))
    cells: dict[tuple[str, str], list[str]] = {}
    for one in items:
        cells.setdefault((one.row, one.column), []).append(
            f'<a href="#{_anchor(one)}" class="{_class(one)}" title="{html.escape(one.title)}: '
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
    across = math.ceil(math.sqrt(1.6 * len(squares)))  # of the picture's squares, 13 pixels each
    return f'<td><div style="width:{13 * across}px">{"".join(squares)}</div></td>'


def _case(one: Item, *, is_open: bool) -> str:
    sources = "".join(
        f"<h4>{html.escape(name)}</h4><pre>{html.escape(code)}</pre>"
        for name, code in (one.sources or {}).items()
    )
    mark = "" if one.held or not one.claims else '<b class="no">not as claimed</b>'
    about = "".join(f"<small>{html.escape(word)}</small>" for word in one.about)
    return (
        f'<details id="{_anchor(one)}" data-outcome="{one.outcome}" data-held="{int(one.held)}"'
        f'{" open" if is_open else ""}><summary><i class="{_class(one)}"></i>'
        f'<span class="what"><code>{html.escape(one.title)}</code>{about}</span>'
        f'<span class="told">{html.escape(one.headline)}{mark}{_more(one)}</span></summary>'
        f"{''.join(one.pictures)}{_definitions(one.facts or {})}{sources}</details>"
    )


def _more(one: Item) -> str:
    return "".join(
        f'<span class="{kind}">{html.escape(text)}</span>'
        for kind, text in (("why", one.why), ("apart", one.apart))
        if text
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
    return one.outcome.split()[0] + ("" if one.held or not one.claims else " broken")


def _anchor(one: Item) -> str:
    return html.escape(one.id.replace(" ", "_"))
