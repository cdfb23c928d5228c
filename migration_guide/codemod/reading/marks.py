# pyright: strict
"""Comments between `migrate` and the people who read its results, and the lines around them."""

import difflib
import re
from collections.abc import Callable

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


def line_map(old: str, new: str) -> Callable[[int], int]:
    """Maps the lines of one source to those of another."""
    if old == new:
        return lambda line: line
    old_lines, new_lines = _without_comments(old), _without_comments(new)
    pairs = difflib.SequenceMatcher(
        None, [text for _, text in old_lines], [text for _, text in new_lines], autojunk=False
    ).get_opcodes()

    def line_in_new(line: int) -> int:
        at = sum(number < line for number, _ in old_lines)
        for _, start, end, new_start, new_end in pairs:
            if start <= at < end:
                place = min(new_start + at - start, max(new_end - 1, new_start))
                if end - start != new_end - new_start:
                    place = _most_alike(old_lines[at][1], new_lines, new_start, new_end, place)
                return new_lines[min(place, len(new_lines) - 1)][0] if new_lines else 1
        return new_lines[-1][0] if new_lines else 1

    return line_in_new


def _most_alike(
    text: str, lines: list[tuple[int, str]], start: int, end: int, otherwise: int
) -> int:
    """Returns which of some lines has most of a text, where lines were taken out or put in."""

    def similarity(index: int) -> tuple[int, float]:
        matcher = difflib.SequenceMatcher(None, text, lines[index][1], autojunk=False)
        sizes = (block.size for block in matcher.get_matching_blocks())
        return sum(size for size in sizes if size > 2), matcher.ratio()

    return max(range(start, end), key=similarity, default=otherwise)


def _without_comments(source: str) -> list[tuple[int, str]]:
    """The lines with their numbers, but blank ones and those that `migrate` writes above others."""
    lines = enumerate((text.strip() for text in source.split("\n")), start=1)
    marks = (PREFIX.strip(), NOTE.strip())
    return [(number, text) for number, text in lines if text and not text.startswith(marks)]
