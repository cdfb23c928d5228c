"""The report as one self-contained page: the matrix as a picture, and every case with its plot."""

import datetime
import html
import math
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from equivalence_tests.output_files import write_text
from equivalence_tests.plot import RULES
from equivalence_tests.report.item import Item

NAME = "index.html"


def page(
    title: str, items: Sequence[Item], environment: Mapping[str, object], headline: str = ""
) -> str:
    """Returns the page as HTML; nothing in it comes from the network."""
    template = (
        resources.files("equivalence_tests.report").joinpath("report.html").read_text("utf-8")
    )
    summary, state = _summary(items)
    alone = items[0] if len(items) == 1 else None
    claims = any(item.claims for item in items)
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
        "cases": "\n".join(_case(item, is_open=len(items) == 1) for item in items),
    }
    for name, value in parts.items():
        template = template.replace(f"<!--{name}-->", value)
    return template


def write(
    file: Path,
    title: str,
    items: Sequence[Item],
    environment: Mapping[str, object],
    headline: str = "",
) -> None:
    """Writes the page, with the arguments of `page`, and when and by which command it was."""
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    write_text(file, page(title, items, about | dict(environment), headline))


def _summary(items: Sequence[Item]) -> tuple[str, str]:
    """Returns the page's headline, and its colour's class."""
    bad = sum(not item.is_as_claimed for item in items)
    if len(items) == 1 and not items[0].claims:
        return items[0].headline, f"as-{_class(items[0])}"
    if any(item.claims for item in items):
        claims = "every claim held" if not bad else f"{bad} claims did NOT hold"
        return f"{len(items)} cases; {claims}", "bad" if bad else "good"
    counts = Counter(item.outcome for item in items)
    shown = ", ".join(f"{number} {outcome}" for outcome, number in counts.items())
    return f"{len(items)} comparisons: {shown}", ""


def _picture(items: Sequence[Item]) -> str:
    rows = list(dict.fromkeys(item.row for item in items))
    columns = list(dict.fromkeys(item.column for item in items))
    cells: dict[tuple[str, str], list[str]] = {}
    for item in items:
        cells.setdefault((item.row, item.column), []).append(
            f'<a href="#{_anchor(item)}" class="{_class(item)}" title="{html.escape(item.title)}: '
            f'{item.outcome}"></a>'
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


def _case(item: Item, *, is_open: bool) -> str:
    sources = "".join(
        f"<h4>{html.escape(name)}</h4><pre>{html.escape(code)}</pre>"
        for name, code in item.sources.items()
    )
    mark = "" if item.is_as_claimed or not item.claims else '<b class="no">not as claimed</b>'
    about = "".join(f"<small>{html.escape(word)}</small>" for word in item.about)
    return (
        f'<details id="{_anchor(item)}" data-outcome="{item.outcome}"'
        f' data-held="{int(item.is_as_claimed)}"{" open" if is_open else ""}>'
        f'<summary><i class="{_class(item)}"></i>'
        f'<span class="what"><code>{html.escape(item.title)}</code>{about}</span>'
        f'<span class="told">{html.escape(item.headline)}{mark}{_more(item)}</span></summary>'
        f"{''.join(item.pictures)}{_definitions(item.facts)}{sources}</details>"
    )


def _more(item: Item) -> str:
    return "".join(
        f'<span class="{kind}">{html.escape(text)}</span>'
        for kind, text in (("why", item.why), ("apart", item.after_poison))
        if text
    )


def _definitions(pairs: Mapping[str, object]) -> str:
    rows = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>"
        for name, value in pairs.items()
    )
    return f"<dl>{rows}</dl>"


def _flat(tree: Mapping[str, object]) -> dict[str, object]:
    flat = {}
    for name, value in tree.items():
        flat.update(value if isinstance(value, Mapping) else {name: value})
    return flat


def _class(item: Item) -> str:
    return item.outcome.split()[0] + ("" if item.is_as_claimed or not item.claims else " broken")


def _anchor(item: Item) -> str:
    return html.escape(item.id.replace(" ", "_"))
