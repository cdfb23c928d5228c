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
| 2 | misuse: the command could not run |
"""
_NOT_RUN = "| 3 | not run: this machine has no such --platform |\n"
_INTERRUPTED = "| 130 | interrupted |\n"
EXIT_CODES = _HELD + _INTERRUPTED
EXIT_CODES_ON_PLATFORM = _HELD + _NOT_RUN + _INTERRUPTED

WHICH_COMMAND = """
Six commands answer whether something is the same:

| is it the same? | command | evidence |
|---|---|---|
| the old optimizers and this package, on this machine | `optax-bridge check` | hostile \
gradients (zero, tiny, huge, infinite, NaN), and the training of real models |
| your program's optimizer, resumed from an old checkpoint | `optax-bridge check-resume \
run/checkpoint_100 --program new.py:make --old old.py:make` | that checkpoint, hostile gradients |
| two optimizers | `optax-bridge compare mine:old mine:new` | hostile gradients, and a proof |
| the claims of this package, for all inputs | `optax-bridge prove --only adam` | a proof alone |
| an old optimizer and Optax's of the same name | `optax-bridge recipe "Adam(1e-3)"` | nothing on \
this machine: the verdicts of check and prove |
| a run of yours and the old one | `optax-bridge replay run.rec --optimizer new.py:make_tx` | the \
recorded batches, gradients and steps |

| verdict | means |
|---|---|
| identical | every bit is the same |
| equal over the reals | proved the same in exact numbers; they may round differently |
| rounding only | the runs differ by rounding alone, and by less in float64 |
| different | another algorithm: a step of the runs, or an input of the proof, shows it |
| not decided | the proof neither succeeded nor found such an input; only the runs remain |
"""
# The pointer of the other commands to this table.
SEE_WHICH_COMMAND = (
    "`optax-bridge compare --help` says which command answers which question, and explains the "
    "verdicts."
)

Json = Annotated[Path | None, typer.Option(help="Also write the results to this file.")]
Junit = Annotated[Path | None, typer.Option(help="Also write the results as JUnit XML, for CI.")]
ReportFolder = Annotated[
    Path | None, typer.Option(help="Write `index.html` into this folder, with every plot.")
]
Platform = Annotated[
    str | None, typer.Option(help="`cpu`, `gpu` or `tpu`; without such a device nothing runs.")
]
Gradients = Annotated[
    str,
    typer.Option(
        help="The gradients to use: `all`, `normal`, `hostile`, `poisoned`, or your own, "
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
