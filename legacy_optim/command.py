"""`optax-bridge run`: the options; what it does is imported when it is called."""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    program: Annotated[
        str, typer.Argument(help="A script, a folder with `__main__.py`, or with -m a module.")
    ],
    args: Annotated[list[str] | None, typer.Argument(help="The program's own arguments.")] = None,
    module: Annotated[bool, typer.Option("-m", help="PROGRAM is a module's name.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not say at the end what was used.")
    ] = False,
) -> None:
    """Run an unmodified program of flax.optim's time on today's JAX.

    At the end it says which old names were used and where, and what `migrate` would do. The
    exit code is the program's own.

    Examples:
    - `optax-bridge run train.py --steps 100`

    - `optax-bridge run --quiet -m mypackage.train`
    """
    from legacy_optim import runner

    raise typer.Exit(
        runner.run(program, args or (), as_module=module, quiet=quiet, advice=_advice())
    )


def _advice() -> Callable[[Sequence[str]], str] | None:
    """What says at the end what a migration would do, where a package that can is installed."""
    return next((point.load() for point in entry_points(group="legacy_optim.advice")), None)
