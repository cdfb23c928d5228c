"""Docstrings as Sphinx reads them: ours are Markdown in Google style, autodoc wants reST."""

import re

# Every span, so that what stands between two is none.
_CODE = re.compile(r"(`[^`\n]+`)(\w?)")
_RETURNS = ("Returns:", "Yields:")


def as_rest(lines: list[str]) -> list[str]:
    r"""The lines of a docstring, in reST where the two differ.

    An indented block after an empty line is code, code in backticks may have letters behind it, and
    what a function returns has no type in front of a colon:

        >>> as_rest(["Two `Call`s:", "", "    x = f(1)"])
        ['Two `Call`\\ s:', '', '.. code-block:: python', '', '    x = f(1)']

    Args:
      lines: the docstring without its common indentation.
    """
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
