# pyright: strict
"""Parts of pages that come from the code: a function here writes what replaces a mark.

A mark is a line `<!-- generated: NAME ARGUMENT... -->`, with or without arguments.
"""

import re
from collections.abc import Callable, Mapping
from importlib import metadata

from migration_guide.api_reference import api_markdown
from migration_guide.cells import SOURCE
from migration_guide.command_reference import commands_markdown
from migration_guide.differences import differences_markdown
from migration_guide.rules_page import rules_markdown
from migration_guide.tables import optimizers_markdown, overview_markdown


def pages_markdown(start: str, *caption: str) -> str:
    """A part of the menu: the pages whose paths start so, if there are any.

    Args:
      start: how their paths begin, from the guide's folder on.
      *caption: words above them; by default the start itself.
    """
    paths = (page.relative_to(SOURCE).with_suffix("").as_posix() for page in SOURCE.rglob("*.md"))
    names = sorted(path for path in paths if path.startswith(start))
    options = [":hidden:", f":caption: {' '.join(caption) or start.capitalize()}", ""]
    return "\n".join(["```{toctree}", *options, *names, "```"]) if names else ""


def install_markdown(where: str = "shell") -> str:
    """Says how to install, from the repository that the package names as its own.

    Args:
      where: `shell`, or `notebook` for a cell.
    """
    urls = metadata.metadata("optax-bridge").get_all("Project-URL") or ()
    repository = dict(url.split(", ") for url in urls)["Repository"]
    if where == "notebook":
        return f'    %pip install "optax-bridge[all] @ git+{repository}"'
    commands = [
        f"$ git clone {repository} && cd optax-bridge",
        "$ python3 -m venv .venv && . .venv/bin/activate",
        '$ pip install ".[all]"',
    ]
    start = f"From a clone of [the repository]({repository}), with Python 3.11 or later:"
    return "\n".join([start, "", "```console", *commands, "```"])


PARTS: Mapping[str, Callable[..., str]] = {
    "api": api_markdown,
    "commands": commands_markdown,
    "differences": differences_markdown,
    "install": install_markdown,
    "optimizers": optimizers_markdown,
    "overview": overview_markdown,
    "pages": pages_markdown,
    "rules": rules_markdown,
}
_MARK = re.compile(r"^<!-- generated: (\w+)((?: \S+)*) -->$", re.MULTILINE)


def filled_in(page: str) -> str:
    """Returns a page's source with its marks filled in.

    Raises:
      KeyError: a mark names nothing of `PARTS`.
    """
    return _MARK.sub(lambda mark: PARTS[mark[1]](*mark[2].split()), page)


def marks(page: str) -> list[tuple[str, ...]]:
    """Returns the marks of a page: what is generated, and from what."""
    return [(mark[1], *mark[2].split()) for mark in _MARK.finditer(page)]
