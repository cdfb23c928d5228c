# pyright: strict
"""Options that several commands of this package have, and the arguments of users' programs."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

EXIT_CODES = """
| exit code | means |
|---|---|
| 0 | the same, or rounding only; every claim held |
| 1 | different; a claim did not hold |
| 2 | misuse: what was asked for could not be done |
| 3 | not run: the platform of --platform is not there |
"""

Json = Annotated[Path | None, typer.Option(help="Write the results to this file as well.")]
Junit = Annotated[
    Path | None, typer.Option(help="Write the results as JUnit's XML as well, for CI.")
]
ReportFolder = Annotated[
    Path | None, typer.Option(help="Write `index.html` into this folder, with every plot.")
]
Platform = Annotated[
    str | None, typer.Option(help="`cpu`, `gpu` or `tpu`; one that is not there is not run.")
]
Gradients = Annotated[
    str,
    typer.Option(help="`all`, `normal`, `hostile`, `poisoned`, or `module:gradients`."),
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
