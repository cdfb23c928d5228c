# pyright: strict
"""Options that several commands of this package have, and the arguments of users' programs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

_HELD = """
| exit code | means |
|---|---|
| 0 | the same, or rounding only; every claim held |
| 1 | different; a claim did not hold |
| 2 | misuse: what was asked for could not be done |
"""
_NOT_RUN = "| 3 | not run: the platform of --platform is not there |\n"
_INTERRUPTED = "| 130 | interrupted |\n"
EXIT_CODES = _HELD + _INTERRUPTED
EXIT_CODES_ON_PLATFORM = _HELD + _NOT_RUN + _INTERRUPTED

Json = Annotated[Path | None, typer.Option(help="Write the results to this file as well.")]
Junit = Annotated[
    Path | None, typer.Option(help="Write the results as JUnit's XML as well, for CI.")
]
ReportFolder = Annotated[
    Path | None, typer.Option(help="Write `index.html` into this folder, with every plot.")
]
Platform = Annotated[
    str | None, typer.Option(help="`cpu`, `gpu` or `tpu`; nothing is run if it is not there.")
]
Gradients = Annotated[
    str,
    typer.Option(
        help="Which gradients: `all`, `normal`, `hostile`, `poisoned`, or your own, "
        "`module:gradients`."
    ),
]

_PROGRAM_ARGUMENTS = "program arguments"


class WithProgramArguments(TyperCommand):
    """A command whose arguments after `--` are for the programs that it loads."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keeps what follows `--` apart from the command's own arguments."""
        options = args
        if "--" in args:
            options = args[: args.index("--")]
            ctx.meta[_PROGRAM_ARGUMENTS] = tuple(args[len(options) + 1 :])
        return super().parse_args(ctx, options)


def program_arguments(ctx: typer.Context) -> tuple[str, ...]:
    """Returns the arguments that follow `--`."""
    return ctx.meta.get(_PROGRAM_ARGUMENTS, ())
