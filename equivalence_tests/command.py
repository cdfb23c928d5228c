"""`optax-bridge check`: the options; what it does is imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer


def check(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="An optimizer, a problem, or a layout on devices, e.g. `adam`, `mlp` or `FSDP`; "
            "may be repeated."
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the results to this file as well.")
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(help="Write the results as JUnit's XML as well, for CI.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the table into this file as well.")] = None,
    platform: Annotated[
        str | None, typer.Option(help="`cpu`, `gpu` or `tpu`; one that is not there is not run.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    full: Annotated[
        bool, typer.Option("--full", help="Run the whole matrix as well, on eight devices.")
    ] = False,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Split the CPU into so many devices.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write `index.html` into this folder, with every plot.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Write every trajectory into this file.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with a file that --record wrote elsewhere.")
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Compare two of your own instead: `module:left` and `module:right`."),
    ] = None,
    params: Annotated[
        str | None, typer.Option(help="For --pair: `module:params`; odd shapes unless given.")
    ] = None,
    gradients: Annotated[
        str | None,
        typer.Option(
            help="For --pair: `all` (the default), `normal`, `hostile`, `poisoned`, "
            "or `module:gradients`."
        ),
    ] = None,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and run nothing.")
    ] = False,
) -> None:
    """Train with the old API and with Optax, side by side, and compare at every step.

    Exit code 0 if every claim of the correspondence held, 1 if one did not, 2 for misuse.

    Examples:
    - `optax-bridge check`

    - `optax-bridge check --only adam --only lamb --json result.json`

    - `optax-bridge check --full --report report`

    - `optax-bridge check --platform gpu --against cpu.zip`

    - `optax-bridge check --pair mine:old mine:new`
    """
    from equivalence_tests import check as suite

    no_pair = {"--only": only, "--svg": svg, "--full": full, "--list": list_checks}
    no_pair |= {"--record": record, "--against": against}
    for_pair = {"--params": params, "--gradients": gradients}
    for option, value in (for_pair if pair is None else no_pair).items():
        if value:
            raise typer.BadParameter(f"{option} is {'' if pair is None else 'not '}for --pair")
    if list_checks:
        raise typer.Exit(suite.print_list(only or (), full, devices or (8 if full else 1)))
    if devices or full:
        suite.use_host_devices(devices or 8)
    suite.use_compilation_cache()
    if pair is not None:
        from equivalence_tests import pair as pairs

        stream = gradients or "all"
        raise typer.Exit(
            pairs.check_pair(*pair, params, stream, steps, json, junit, report, platform)
        )
    raise typer.Exit(
        suite.check(
            only or (),
            json_file=json,
            svg_file=svg,
            junit_file=junit,
            platform=platform,
            steps=steps,
            full=full,
            record=record,
            against=against,
            report_folder=report,
        )
    )
