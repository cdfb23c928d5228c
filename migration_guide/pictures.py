# pyright: strict
"""Output of cells that is not text: pictures in the colours of the page, tables, code."""

import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from migration_guide.cells import shell_output
from migration_guide.tables import table


class Html(str):
    """HTML that a notebook shows unchanged."""

    def _repr_html_(self) -> str:
        return str(self)


class Markdown(str):
    """Markdown that a notebook shows unchanged."""

    def _repr_markdown_(self) -> str:
        return str(self)


def figures(pictures: Mapping[str, str]) -> Html:
    """SVG pictures side by side, as many as fit."""
    parts = (
        f"<figure><figcaption>{html.escape(caption)}</figcaption>{svg}</figure>"
        for caption, svg in pictures.items()
    )
    return Html(f'<div class="plots">{"".join(parts)}</div>')


def rows(head: Sequence[str], lines: Iterable[Sequence[str]]) -> Markdown:
    """A table that a cell has made."""
    return Markdown(table(head, lines))


def program(file: str, text: str) -> Markdown:
    """Writes a program into a file, and shows it as code."""
    Path(file).write_text(text, encoding="utf-8")
    return listing(file)


def listing(file: str) -> Markdown:
    """The program that its file holds now."""
    return _code("python", Path(file).read_text(encoding="utf-8"))


def diff(command: str) -> Markdown:
    """Runs a command that prints a diff, and shows both, the diff in colours."""
    return Markdown(
        _code("console", f"$ {command}\n") + "\n" + _code("diff", shell_output(command))
    )


def _code(language: str, text: str) -> Markdown:
    return Markdown(f"```{language}\n{text.rstrip()}\n```\n")
