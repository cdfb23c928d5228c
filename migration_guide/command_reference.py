# pyright: strict
"""The reference of the command line, from the subcommands themselves: what `--help` says."""

import inspect
import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import typer

GROUP = "optax_bridge.commands"
_OPTION = re.compile(r"(?<![`\w-])(--[a-z][a-z-]*)(?!`)")


def commands_markdown() -> str:
    """A section for each subcommand: usage, what it does, its arguments and options."""
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
    parameters = [one for one in command.params if not getattr(one, "hidden", False)]
    for kind, title in (("argument", "Argument"), ("option", "Option")):
        rows = [_row(one) for one in parameters if one.param_type_name == kind]
        if rows:
            head = [f"| {title} | Meaning |", "| --- | --- |"]
            parts.append("\n".join([*head, *rows]))
    return "\n\n".join(parts)


def _row(parameter: Any) -> str:
    words = [_OPTION.sub(r"`\1`", " ".join(str(parameter.help or "").split()))]
    if parameter.required:
        words.append("Required.")
    if parameter.multiple or parameter.nargs == -1:
        words += [] if "repeated" in words[0] else ["May be repeated."]
    default = parameter.default
    if not callable(default) and default not in (None, False, True, (), [], ...):
        words.append(f"Default: `{default}`.")
    return f"| {_names(parameter)} | {' '.join(words).replace('|', chr(92) + '|')} |"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names: Iterable[str] = (*parameter.opts, *parameter.secondary_opts)
    value = "" if parameter.is_flag else f" {parameter.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in names)
