"""The command `optax-bridge`; each subcommand imports the package that owns it when called."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="optax-bridge",
    help="From flax.optim to today's Optax, with the training unchanged.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_versions(wanted: bool) -> None:
    if wanted:
        from equivalence_tests.check import versions

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
            help="Print the versions of everything that decides bits.",
        ),
    ] = False,
) -> None:
    del version


@app.command()
def check(
    only: Annotated[
        list[str] | None,
        typer.Option(help="An optimizer or a problem, e.g. `adam` or `mlp`; may be repeated."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the results to this file as well.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the table into this file as well.")] = None,
    platform: Annotated[
        str | None, typer.Option(help="`cpu`, `gpu` or `tpu`; one that is not there is not run.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and run nothing.")
    ] = False,
) -> None:
    """Train with the old API and with Optax, side by side, and compare at every step.

    Exit code 0 if every claim of the correspondence held, 1 if one did not, 2 for misuse.

    Examples:
    - `optax-bridge check`

    - `optax-bridge check --only adam --only lamb --json result.json`

    - `optax-bridge check --platform gpu --steps 500`
    """
    from equivalence_tests import check as suite

    if list_checks:
        raise typer.Exit(suite.print_list(only or ()))
    suite.use_compilation_cache()
    raise typer.Exit(
        suite.check(only or (), json_file=json, svg_file=svg, platform=platform, steps=steps)
    )


@app.command()
def recipe(
    expression: Annotated[
        str, typer.Argument(help="A legacy constructor call; it is parsed, never evaluated.")
    ],
) -> None:
    """Print the Optax source for a legacy optimizer, what it is worth, and what to know.

    Examples:
    - `optax-bridge recipe "Adam(learning_rate=1e-3, weight_decay=0.01)"`

    - `optax-bridge recipe "optim.WeightNorm(Momentum(0.1, nesterov=True))"`
    """
    from optax_bridge import recipe_command

    raise typer.Exit(recipe_command.print_recipe(expression))


def main() -> None:
    """Entry point of the `optax-bridge` command."""
    app()
