# pyright: strict
"""Comments between `migrate` and the people who read its results."""

import re

import libcst as cst

from migration_guide.codemod.reading.tree import comments

PREFIX = "# optax-bridge: "  # of what a person has to do
NOTE = "# optax-bridge (note): "  # of what is good to know
CELL = "# optax-bridge-cell "  # between the cells of a notebook, while it is rewritten
_SKIP = re.compile(r"# *optax-bridge: *skip\b")  # a person's word: leave this statement alone


def is_skip(comment: str) -> bool:
    """True if a comment says that its statement is to be left alone."""
    return _SKIP.match(comment) is not None


def is_skipped(statement: cst.CSTNode) -> bool:
    """True if a statement, or the header of a block, has a comment that leaves it alone."""
    if not isinstance(statement, cst.SimpleStatementLine):
        lines = [line.comment for line in getattr(statement, "leading_lines", ())]
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock):
            lines.append(body.header.comment)
        elif isinstance(body, cst.SimpleStatementSuite):
            lines.append(body.trailing_whitespace.comment)
        return any(line is not None and is_skip(line.value) for line in lines)
    return any(map(is_skip, comments(statement)))
