"""`optax-bridge bench`: the options; what it does is imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer


def bench(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="`step`, `growth`, `memory`, `start`, `tools`, `cpu` or `gpu`; may be repeated."
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Tiny problems, to see that everything runs; held to no bar."),
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    compare: Annotated[
        Path | None, typer.Option(help="Say what changed since a run with --json.")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Write the page of this run, and its picture beside it.")
    ] = None,
) -> None:
    """Measure what this package costs, as ratios of things that take turns.

    Exit code 0 if everything ran, whatever the figures are; 2 for misuse.

    Examples:
    - `optax-bridge bench --quick`

    - `optax-bridge bench --only step --json today.json --compare yesterday.json`

    - `optax-bridge bench --results benchmarks/RESULTS.md`
    """
    from benchmarks.run import run  # JAX, which no help needs

    raise typer.Exit(run(only or (), quick, json, compare, results))
