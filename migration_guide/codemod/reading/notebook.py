"""Notebooks: the code cells as one module, and back.

Magics and shell lines are no Python; they travel as comments, but for the statement of `%time`. A
cell in another language, as one that starts with `%%bash`, stays out.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from migration_guide.codemod.reading.marks import CELL

MAGIC = "pass  # optax-bridge-magic "
_LINE = re.compile(r"^(\s*)([%!?].*|[\w, ]+=\s*[%!].*|[\w.*%!]+\?{1,2})$")
# A magic that runs a statement, with its options; the magic follows the statement as a comment.
_RUN = re.compile(r"^(\s*)(%(?:time|timeit|prun|memit)\s+(?:-\w+\s+(?:\d+\s+)?)*)(.*[^\\])$")
_RUNS = "  # optax-bridge-run-by "
_MASKED_RUN = re.compile(rf"^(\s*)(.*){_RUNS}(.*)\|$", re.MULTILINE)
# Cell magics whose cell is Python, of IPython and of packages that people use with it.
_PYTHON_MAGICS = {"time", "timeit", "capture", "prun", "memit", "mprun", "lprun", "px", "skip"}


class NotANotebook(ValueError):
    """The file is no notebook of a known form; says why."""


@dataclass
class Notebook:
    """A notebook that was read."""

    code: str
    others: list[tuple[int, str]]
    _document: dict[str, Any]
    _cells: list[dict[str, Any]]
    _text: str

    def location(self, line: int) -> tuple[int, int]:
        """The cell, and the line in it, of a line of the code; all from 1."""
        lines = self.code.split("\n")[:line]
        start = max(i for i, text in enumerate(lines, start=1) if text.startswith(CELL))
        cell = self._cells[int(lines[start - 1].removeprefix(CELL))]
        return next(i for i, c in enumerate(self._document["cells"], 1) if c is cell), line - start

    def with_code(self, code: str) -> str:
        """The notebook's file with other code in its cells; outputs and metadata stay."""
        sources = re.split(rf"^{CELL}\d+ *\n", code, flags=re.MULTILINE)
        head, sources = sources[0], sources[1:]
        if head.strip() or len(sources) != len(self._cells):
            raise NotANotebook("the cells cannot be told apart any longer after the rewrite")
        changed: dict[int, str] = {}
        numbers = {id(cell): number for number, cell in enumerate(self._document["cells"])}
        for cell, cell_code in zip(self._cells, sources, strict=True):
            source = _unmask(cell_code.removesuffix("\n"))
            if source != _join_lines(cell["source"]):
                changed[numbers[id(cell)]] = source
        return _with_sources(self._text, changed)


def read(text: str) -> Notebook:
    """Reads a notebook."""
    try:
        document = json.loads(text)
        cells = [c for c in document["cells"] if c["cell_type"] == "code"]
        others = [
            (number, _join_lines(c["source"]))
            for number, c in enumerate(document["cells"], start=1)
            if c["cell_type"] == "code" and not _is_python(_join_lines(c["source"]))
        ]
        cells = [c for c in cells if _is_python(_join_lines(c["source"]))]
    except (ValueError, KeyError, TypeError) as error:
        raise NotANotebook(f"no notebook of format 4: {error}") from None
    except RecursionError:
        raise NotANotebook("nested too deeply to be a notebook") from None
    code = "".join(
        f"{CELL}{index}\n{_mask_magics(_join_lines(cell['source']))}\n"
        for index, cell in enumerate(cells)
    )
    return Notebook(code, others, document, cells, text)


def _is_python(source: str) -> bool:
    magic = re.match(r"\s*%%(\w*)", source)
    return magic is None or magic[1] in _PYTHON_MAGICS


def _join_lines(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _mask_magics(source: str) -> str:
    lines = []
    continued = False
    for line in source.split("\n"):
        run = None if continued else _RUN.match(line)
        if run is not None and _parses(run[3]):
            masked = f"{run[1]}{run[3]}{_RUNS}{run[2]}|"
        else:
            masked = f"{MAGIC}{line}" if continued else _LINE.sub(rf"\1{MAGIC}\2", line)
        continued = masked != line and line.endswith("\\")
        lines.append(masked)
    return "\n".join(lines)


def _parses(statement: str) -> bool:
    try:
        ast.parse(statement)
    except (SyntaxError, ValueError):
        return False
    return True


def _unmask(source: str) -> str:
    for run in _MASKED_RUN.finditer(source):
        if not _parses(run[2]):
            raise NotANotebook(f"{run[3].strip()}: its statement takes several lines now")
    return _MASKED_RUN.sub(r"\1\3\2", source).replace(MAGIC, "")


def _with_sources(text: str, changed: dict[int, str]) -> str:
    """A notebook's text with other sources of some cells; every other byte stays."""
    spans = source_spans(text)
    ascii_only = text.isascii() and "\\u" in text
    for number, source in sorted(changed.items(), reverse=True):
        start, end = spans[number]
        text = text[:start] + _as_json(source, text[start:end], ascii_only) + text[end:]
    return text


def _as_json(source: str, old: str, ascii_only: bool) -> str:
    """A source as JSON, in the layout of the old one; lines that stay keep their spelling."""

    def dump_line(line: str) -> str:
        return json.dumps(line, ensure_ascii=ascii_only)

    if not old.startswith("["):
        return dump_line(source)
    written = {json.loads(string): string for string in _STRING.findall(old)}
    lines = [written.get(line) or dump_line(line) for line in source.splitlines(keepends=True)]
    head, tail = re.match(r"\[\s*", old), re.search(r"\s*\]$", old)
    assert head is not None and tail is not None
    between = re.search(r'"(\s*,\s*)"', _STRING.sub('""', old))
    if between is not None:
        comma = between[1]
    else:
        space = head.group()[1:]
        comma = f",{space}" if space else ", "
    return head.group() + comma.join(lines) + tail.group() if lines else "[]"


_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_SPACE = re.compile(r"\s*")


def source_spans(text: str) -> dict[str | int, tuple[int, int]]:
    """Returns where the source of each cell of a notebook begins and ends, by the cell's number."""
    cells = next(start for key, start, _ in _members(text, _begin(text, 0)) if key == "cells")
    return {
        number: (start, end)
        for number, cell, _ in _members(text, cells)
        for key, start, end in _members(text, cell)
        if key == "source"
    }


def _members(text: str, start: int) -> Iterator[tuple[str | int, int, int]]:
    """Yields key or index of each value of a container, and where the value begins and ends."""
    decoder, position, index = json.JSONDecoder(), _begin(text, start + 1), 0
    while text[position] not in "]}":
        key: str | int = index
        if text[start] == "{":
            key, position = decoder.raw_decode(text, position)
            position = _begin(text, _begin(text, position) + 1)  # behind the colon
        _, end = decoder.raw_decode(text, position)
        yield key, position, end
        position, index = _begin(text, end), index + 1
        position = _begin(text, position + 1) if text[position] == "," else position


def _begin(text: str, position: int) -> int:
    """Returns where the white space at a position ends."""
    space = _SPACE.match(text, position)
    return space.end() if space is not None else position
