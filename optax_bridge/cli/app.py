# pyright: strict
"""The command `optax-bridge`, which finds its subcommands among the entry points.

A package adds one by a line in its `pyproject.toml`, in brackets the extra that it needs, if any:

    [project.entry-points."optax_bridge.commands"]
    check = "equivalence_tests.cli.check:app [prove]"

A name is of a function with Typer's annotations, or of a `typer.Typer` with one command. Its
module is imported when the subcommand is called or its help is printed, so it leaves what is slow
to import to the function.
"""

import errno
import functools
import re
import signal
import sys
from importlib import metadata
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup

from optax_bridge._text import did_you_mean
from optax_bridge.cli.installed import MissingExtraError, require, versions
from optax_bridge.cli.signals import end

GROUP = "optax_bridge.commands"

# How every subcommand is shown; completion belongs to the command as a whole.
STYLE: Any = dict(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


_CHOICE = re.compile(r"(?P<value>'.*') is not one of (?P<choices>.*?)\.?", re.DOTALL)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Subcommands(TyperGroup):
    """A group whose commands are the entry points of `GROUP`, loaded when asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all subcommands, sorted."""
        del ctx
        return sorted(_entry_points())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The subcommand of that name, or None."""
        del ctx
        return _load(cmd_name) if cmd_name in _entry_points() else None

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Finds the subcommand of the arguments; an unknown name is answered with similar ones."""
        if args and not args[0].startswith("-") and args[0] not in _entry_points():
            names = self.list_commands(ctx)
            near = did_you_mean(args[0], names) or f"; there are {', '.join(names)}"
            ctx.fail(f"No such command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> object:
        """Runs the subcommand; an interrupt ends it with one line."""
        if signal.getsignal(signal.SIGINT) is end:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
        except typer.BadParameter as error:
            _explain(error)
            raise
        except KeyboardInterrupt:
            sys.stdout.flush()
            end()
        return value


def _explain(error: typer.BadParameter) -> None:
    """Rewrites the message of a refused value: in plain words, with the nearest of the values."""
    message = error.message.removeprefix("Value error, ")
    choice = _CHOICE.fullmatch(message)
    if choice is not None:
        choices = re.findall(r"'([^']*)'", choice["choices"])
        message = message.removesuffix(".") + did_you_mean(choice["value"].strip("'"), choices)
    elif message.startswith("Input should be "):
        expected, _, _ = message.removeprefix("Input should be ").partition(",")
        expected = expected.replace("valid integer", "whole number").replace("valid ", "")
        article = "" if expected.startswith("a ") else "a number "
        message = f"expected {article}{expected}{_input(error)}"
    error.message = message


def _input(error: typer.BadParameter) -> str:
    """Returns "; found VALUE", as Pydantic's error has it, or ""."""
    errors: Any = getattr(error.__cause__, "errors", None)
    details = cast(list[dict[str, Any]], errors()) if callable(errors) else []
    return f"; found {details[0]['input']!r}" if details else ""


@functools.cache
def _entry_points() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


@functools.cache
def _load(name: str) -> Any:
    point = _entry_points()[name]
    try:
        for extra in point.extras:
            require(extra, f"optax-bridge {name}")
    except MissingExtraError as error:
        return _unusable(name, str(error))
    value = point.load()
    if not isinstance(value, typer.Typer):
        function, value = value, typer.Typer(**STYLE)
        value.command()(function)
    command = typer.main.get_command(value)
    command.name = name
    return command


def _unusable(name: str, why: str) -> Any:
    """A command that says why it cannot run, for any arguments."""

    def say() -> None:
        typer.echo(why, err=True)
        raise typer.Exit(2)

    anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    return TyperCommand(
        name, callback=say, help=why, add_help_option=False, context_settings=anything
    )


app = typer.Typer(
    name="optax-bridge",
    cls=Subcommands,
    help="From flax.optim to today's Optax, with the training unchanged.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        for name, version in versions().items():
            typer.echo(f"{name} {version}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_versions,
            is_eager=True,
            help="Print the versions of everything that decides the bits of a result.",
        ),
    ] = False,
) -> None:
    del version


def main() -> None:
    """Runs the command with the arguments of the process; `optax_bridge.cli.start` is its entry."""
    if reconfigure := getattr(sys.stdout, "reconfigure", None):
        reconfigure(errors="backslashreplace")  # a name in a file may have any character
    try:
        app()
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        sys.stdout = None  # else Python tries once more when it ends
        typer.echo(f"the output could not be written: {error.strerror}", err=True)
        sys.exit(1)
