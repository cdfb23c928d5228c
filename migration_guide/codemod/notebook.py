"""Notebooks: the code cells as one module, and back.

Magics and shell lines are no Python; they travel as comments. A cell in another language, as one
that starts with `%%bash`, stays out.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

_CELL = "# optax-bridge-cell "
MAGIC = "pass  # optax-bridge-magic "
_LINE = re.compile(r"^(\s*)([%!].*|[\w, ]+=\s*[%!].*|.*\?{1,2})$")
# Cell magics whose cell is Python, of IPython and of packages that people use with it.
_PYTHON_MAGICS = {"time", "timeit", "capture", "prun", "memit", "mprun", "lprun", "px", "skip"}


class NotANotebook(ValueError):
    """The file is no notebook of a known form; says why."""


@dataclass
class Notebook:
    """A notebook that was read.

    Attributes:
      code: its code cells as one module.
      others: cells in another language: their number, from 1, and what is in them.
    """

    code: str
    others: list[tuple[int, str]]
    _document: dict[str, Any]
    _cells: list[dict[str, Any]]
    _text: str

    def place(self, line: int) -> tuple[int, int]:
        """The cell, and the line in it, of a line of the code; all from 1."""
        before = self.code.split("\n")[:line]
        start = max(i for i, text in enumerate(before, start=1) if text.startswith(_CELL))
        cell = self._cells[int(before[start - 1].removeprefix(_CELL))]
        return next(i for i, c in enumerate(self._document["cells"], 1) if c is cell), line - start

    def with_code(self, code: str) -> str:
        """The notebook's file with other code in its cells; outputs and metadata stay."""
        parts = re.split(rf"^{_CELL}\d+ *\n", code, flags=re.MULTILINE)
        head, parts = parts[0], parts[1:]
        if head.strip() or len(parts) != len(self._cells):
            raise NotANotebook("the cells cannot be told apart any longer after the rewrite")
        for cell, part in zip(self._cells, parts, strict=True):
            source = _unmasked(part.removesuffix("\n"))
            if source != _joined(cell["source"]):
                as_list = isinstance(cell["source"], list)
                cell["source"] = source.splitlines(keepends=True) if as_list else source
        return _dumped(self._document, self._text)


def read(text: str) -> Notebook:
    """Reads a notebook.

    Raises:
      NotANotebook: it is not JSON, or has no cells.
    """
    try:
        document = json.loads(text)
        cells = [c for c in document["cells"] if c["cell_type"] == "code"]
        others = [
            (number, _joined(c["source"]))
            for number, c in enumerate(document["cells"], start=1)
            if c["cell_type"] == "code" and not _is_python(_joined(c["source"]))
        ]
        cells = [c for c in cells if _is_python(_joined(c["source"]))]
    except (ValueError, KeyError, TypeError) as error:
        raise NotANotebook(f"no notebook of format 4: {error}") from None
    code = "".join(
        f"{_CELL}{index}\n{_masked(_joined(cell['source']))}\n" for index, cell in enumerate(cells)
    )
    return Notebook(code, others, document, cells, text)


def _is_python(source: str) -> bool:
    magic = re.match(r"\s*%%(\w*)", source)
    return magic is None or magic[1] in _PYTHON_MAGICS


def _joined(source: str | list[str]) -> str:
    return source if isinstance(source, str) else "".join(source)


def _masked(source: str) -> str:
    lines = []
    continued = False
    for line in source.split("\n"):
        masked = f"{MAGIC}{line}" if continued else _LINE.sub(_mask, line)
        continued = masked != line and line.endswith("\\")
        lines.append(masked)
    return "\n".join(lines)


def _mask(match: re.Match[str]) -> str:
    if match.group(2).lstrip().startswith("#"):
        return match.group(0)
    return f"{match.group(1)}{MAGIC}{match.group(2)}"


def _unmasked(source: str) -> str:
    return source.replace(MAGIC, "")


def _dumped(document: dict[str, Any], like: str) -> str:
    """The document in the layout of the text that it came from."""
    match = re.match(r"\{\n( +|\t+)", like)
    indent = match.group(1) if match else None
    ascii_only = like.isascii() and "\\u" in like
    tight = (",", ":") if re.match(r'\{"\w+":\S', like) else None
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_only, separators=tight)
    return text + like[len(like.rstrip()) :]
