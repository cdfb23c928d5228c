# pyright: strict
"""Docstrings for Sphinx's autodoc: ours are Markdown, autodoc reads reST."""

import re

# Every span of code, so that what stands between two spans is not one.
_CODE = re.compile(r"(`[^`\n]+`)(\w?)")
_RETURNS = ("Returns:", "Yields:")


def as_rest(lines: list[str]) -> list[str]:
    r"""Returns the lines of a docstring as Sphinx reads them."""
    result: list[str] = []
    above = 0  # indentation of the last line of prose
    code: int | None = None
    for index, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            result.append(line)
            continue
        if code is not None and indent < code:
            code = None
        if code is None and indent >= above + 4 and index and not lines[index - 1].strip():
            code = indent
            kind = "pycon" if line.lstrip().startswith(">>>") else "python"
            result += [f"{' ' * above}.. code-block:: {kind}", ""]
        if code is None:
            above = indent
            line = _CODE.sub(lambda m: f"{m[1]}\\ {m[2]}" if m[2] else m[1], line)
            if index and lines[index - 1].strip() in _RETURNS:
                line = f"{line[:indent]}: {line[indent:]}"
        result.append(line)
    return result
