# pyright: strict
"""What pages have from the code: a mark in a page is replaced by what a function here writes.

A mark is a line `<!-- generated: NAME ARGUMENT -->`, with or without an argument.
"""

import re
from collections.abc import Callable, Mapping

from migration_guide.api_reference import api_markdown
from migration_guide.cells import SOURCE
from migration_guide.command_reference import commands_markdown
from migration_guide.differences import differences_markdown
from migration_guide.rules_page import rules_markdown
from migration_guide.tables import optimizers_markdown, overview_markdown


def pages_markdown(start: str) -> str:
    """A part of the menu: the pages whose names start so, if there are any."""
    names = sorted(page.stem for page in SOURCE.glob(f"{start}*.md"))
    options = [":hidden:", f":caption: {start.capitalize()}", ""]
    return "\n".join(["```{toctree}", *options, *names, "```"]) if names else ""


PARTS: Mapping[str, Callable[..., str]] = {
    "api": api_markdown,
    "commands": commands_markdown,
    "differences": differences_markdown,
    "optimizers": optimizers_markdown,
    "overview": overview_markdown,
    "pages": pages_markdown,
    "rules": rules_markdown,
}
_MARK = re.compile(r"^<!-- generated: (\w+)(?: (\S+))? -->$", re.MULTILINE)


def filled_in(page: str) -> str:
    """A page's source with what its marks stand for.

    Raises:
      KeyError: a mark names nothing of `PARTS`.
    """
    return _MARK.sub(lambda mark: PARTS[mark[1]](*filter(None, [mark[2]])), page)


def marks(page: str) -> list[tuple[str, str | None]]:
    """The marks of a page: what is generated, and from what."""
    return [(mark[1], mark[2]) for mark in _MARK.finditer(page)]
