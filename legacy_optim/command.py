# pyright: strict
"""`optax-bridge run`: the options; what it does is imported when it is called."""

from importlib.metadata import entry_points
from typing import Annotated

import typer

from legacy_optim import runner

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


# What follows the program's name is the program's own.
@app.command(context_settings={"allow_interspersed_args": False})
def run(
    program: Annotated[
        str,
        typer.Argument(
            help="A script, a folder with `__main__.py`, `-` for the standard input, or with -m "
            "a module.",
            metavar="PROGRAM",
        ),
    ],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The program's own arguments.")
    ] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module's name.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Leave out the list of old names at the end.")
    ] = False,
    todays_defaults: Annotated[
        bool,
        typer.Option(
            "--todays-defaults",
            help="Keep all of today's JAX defaults, even those that decide numbers.",
        ),
    ] = False,
) -> None:
    """Run an unmodified program of flax.optim's time on today's JAX.

    The program runs as under `python`, and its exit code is the command's. JAX defaults that decide
    numbers are those of the program's time. At the end the command lists the old names that were
    used and where, the defaults that were restored, and what `migrate` would do.

    Examples:
    - `optax-bridge run train.py --steps 100`

    - `optax-bridge run --quiet -m mypackage.train`
    """
    code = runner.run(
        program,
        args or (),
        as_module=module,
        quiet=quiet,
        todays_defaults=todays_defaults,
        advice=_advice(),
    )
    raise typer.Exit(code)


def _advice() -> str:
    """Returns the entry point that says what a migration would do, or the empty text."""
    return next((point.value for point in entry_points(group="legacy_optim.advice")), "")
