# pyright: strict
"""Parts of pages that come from the code: a function here writes what replaces a mark.

A mark is a line `<!-- generated: NAME ARGUMENT... -->`, with or without arguments.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any

import typer

from migration_guide.cells import SOURCE
from migration_guide.rules_page import rules_markdown
from migration_guide.tables import (
    differences_markdown,
    optimizers_markdown,
    overview_markdown,
    table,
)

GROUP = "optax_bridge.commands"
_OPTION = re.compile(r"(?<![`\w-])(--[a-z][a-z-]*)(?![`\w-])")


def pages_markdown(start: str, *caption: str) -> str:
    """A part of the menu: the pages whose paths start so, if there are any."""
    paths = (page.relative_to(SOURCE).with_suffix("").as_posix() for page in SOURCE.rglob("*.md"))
    names = sorted(path for path in paths if path.startswith(start))
    options = [":hidden:", f":caption: {' '.join(caption) or start.capitalize()}", ""]
    return "\n".join(["```{toctree}", *options, *names, "```"]) if names else ""


def install_markdown(where: str = "shell") -> str:
    """Says how to install, from the repository that the package names as its own."""
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


def commands_markdown() -> str:
    """A section for each subcommand, from what `--help` says: usage, arguments and options."""
    points = sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name)
    return "\n\n".join(_section(point.name, _command(point.load())) for point in points)


def _command(loaded: Any) -> Any:
    """The command of an entry point: a function with Typer's annotations, or an app of one."""
    if not isinstance(loaded, typer.Typer):
        function, loaded = loaded, typer.Typer(add_completion=False)
        loaded.command()(function)
    return typer.main.get_command(loaded)


def _section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=f"optax-bridge {name}")
    parts = [f"## optax-bridge {name}", f"```text\n{command.get_usage(context)}\n```"]
    parts.append(inspect.cleandoc(command.help or ""))
    parameters = [
        parameter for parameter in command.params if not getattr(parameter, "hidden", False)
    ]
    for kind, title in (("argument", "Argument"), ("option", "Option")):
        rows = [_row(param) for param in parameters if param.param_type_name == kind]
        if rows:
            parts.append(table((title, "Meaning"), rows))
    return "\n\n".join(parts)


def _row(parameter: Any) -> tuple[str, str]:
    words = [_OPTION.sub(r"`\1`", " ".join(str(parameter.help or "").split()))]
    if parameter.required:
        words.append("Required.")
    if parameter.multiple or parameter.nargs == -1:
        words += [] if "repeated" in words[0] else ["May be repeated."]
    default = parameter.default
    if not callable(default) and default not in (None, False, True, (), [], ...):
        words.append(f"Default: `{default}`.")
    return _names(parameter), " ".join(words).replace("|", r"\|")


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names: Iterable[str] = (*parameter.opts, *parameter.secondary_opts)
    value = "" if parameter.is_flag else f" {parameter.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in names)


PARTS: Mapping[str, Callable[..., str]] = {
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
    """Returns a page's source with its marks filled in."""
    return _MARK.sub(lambda mark: PARTS[mark[1]](*mark[2].split()), page)
