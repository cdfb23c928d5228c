"""`optax-bridge check`: the suite on this machine."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from equivalence_tests.cli.options import (
    EXIT_CODES_ON_PLATFORM,
    SEE_WHICH_COMMAND,
    Json,
    Junit,
    Platform,
    ReportFolder,
)
from optax_bridge.cli.app import STYLE
from optax_bridge.cli.options import Devices

app = typer.Typer(**STYLE)

_ABOUT = f"""Train with the old API and with Optax, side by side, and compare at every step.

*exact* is this project's transformation in legacy arithmetic, *optax* the nearest recipe of public
Optax alone. {SEE_WHICH_COMMAND}
{EXIT_CODES_ON_PLATFORM}
Examples:
- `optax-bridge check`

- `optax-bridge check --only adam --only lamb --json result.json`

- `optax-bridge check --full --report report`

- `optax-bridge check --platform gpu --against cpu.zip`

- `optax-bridge check --from torch --only adamw`
"""


@app.command(help=_ABOUT)
def check(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="An optimizer or a problem, e.g. `adam` or `mlp`; with --full any word of a "
            "case's id; may be repeated."
        ),
    ] = None,
    json: Json = None,
    junit: Junit = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the table into this file as well.")] = None,
    platform: Platform = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    full: Annotated[
        bool, typer.Option("--full", help="Run the whole matrix, on eight devices.")
    ] = False,
    devices: Devices = None,
    report: ReportFolder = None,
    record: Annotated[
        Path | None, typer.Option(help="Write every trajectory into this file.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with a file that --record wrote elsewhere.")
    ] = None,
    origin: Annotated[
        Literal["flax", "torch"],
        typer.Option(
            "--from",
            help="Check the optimizers of flax.optim, or of PyTorch: against its recorded "
            "numbers, and itself where it is installed.",
        ),
    ] = "flax",
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and run nothing.")
    ] = False,
) -> None:
    """See `_ABOUT`."""
    from equivalence_tests import check as suite  # JAX, which no help needs
    from equivalence_tests.report.outputs import Outputs
    from equivalence_tests.suite.jobs import prepare_process

    if list_checks:
        raise typer.Exit(suite.print_list(only or (), full, origin))
    prepare_process(devices or (8 if full else None))
    outputs = Outputs(json, junit, report, svg, record)
    raise typer.Exit(
        suite.check(
            only or (),
            outputs,
            platform=platform,
            steps=steps,
            full=full,
            against=against,
            origin=origin,
        )
    )
