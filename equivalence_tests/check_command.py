"""`optax-bridge check`: the options; what it does is imported when it is called."""

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from legacy_optim.logs import without_note_on_tensorflow
from optax_bridge._options import Devices


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
    steps: Annotated[
        int | None,
        typer.Option(help="Steps of each run: 100, 160 of a pair, 48 from a checkpoint."),
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Run the whole matrix as well, on eight devices.")
    ] = False,
    devices: Devices = None,
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
        typer.Option(
            help="Compare these two instead: `module:name` or `file.py:name` each, of an "
            "optimizer, of a function that makes it (`optax:adamw`), or of a torch.optim class.",
        ),
    ] = None,
    kwargs: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="For --pair: the arguments of either side's function, as in a call: "
            '`"lr=1e-3" "1e-3, nesterov=True"`; `""` for none. Parsed, never evaluated.',
        ),
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
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Compare how an old checkpoint goes on instead; needs --program."),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            help="For --checkpoint: what the migrated program restores into, "
            "`migrated.py:make_state`."
        ),
    ] = None,
    old: Annotated[
        str | None,
        typer.Option(help="For --checkpoint: the same of the old program, `train.py:make_state`;"),
    ] = None,
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help='or the optimizer that it had, `"Adam(learning_rate=1e-3)"`; of several '
            '`"policy=Adam(1e-3)"` for each.'
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="For --checkpoint: the rate of each step, where it is given per call."),
    ] = None,
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and run nothing.")
    ] = False,
) -> None:
    """Train with the old API and with Optax, side by side, and compare at every step.

    Exit code 0 if every claim of the correspondence held, 1 if one did not, 2 for misuse, 3 if
    --platform is not there and nothing was run.

    Examples:
    - `optax-bridge check`

    - `optax-bridge check --only adam --only lamb --json result.json`

    - `optax-bridge check --full --report report`

    - `optax-bridge check --platform gpu --against cpu.zip`

    - `optax-bridge check --pair mine:old mine:new`

    - `optax-bridge check --pair torch.optim:AdamW optax:adamw --kwargs "lr=1e-3" "1e-3"`

    - `optax-bridge check --checkpoint run/checkpoint_100 --program new.py:make --old old.py:make`
    """
    from equivalence_tests import check as suite  # JAX, which no help needs
    from equivalence_tests import pair as pairs

    modes = {"--pair": pair, "--checkpoint": checkpoint}
    of_the_suite = {"--only": only, "--svg": svg, "--full": full, "--list": list_checks}
    of_the_suite |= {"--record": record, "--against": against}
    of_checkpoints = {"--program": program, "--old": old, "--optimizer": optimizer}
    of_checkpoints |= {"--learning-rate": learning_rate}
    for_pair = {"--params": params, "--kwargs": kwargs}
    _only_for(modes, {**of_the_suite, **of_checkpoints, "--checkpoint": checkpoint}, "--pair")
    _only_for(modes, {**of_the_suite, **for_pair}, "--checkpoint")
    for mode, options in (("--pair", for_pair), ("--checkpoint", of_checkpoints)):
        if modes[mode] is None:
            _refuse(options, f"is for {mode}")
    if pair is None and checkpoint is None:
        _refuse({"--gradients": gradients}, "is for --pair and --checkpoint")
    if list_checks:
        raise typer.Exit(suite.print_list(only or (), full, devices or (8 if full else 1)))
    if devices or full:
        suite.use_host_devices(devices or 8)
    suite.use_compilation_cache()
    suite.collect_garbage_seldom()
    if checkpoint is not None:
        without_note_on_tensorflow()
        # That of the optimizers which are compared here, not the program's own.
        warnings.filterwarnings("ignore", "flax.optim was removed", DeprecationWarning)
        from equivalence_tests.checkpoint import STEPS, check_checkpoint  # Orbax, slow to import

        code = check_checkpoint(
            checkpoint,
            program,
            old,
            optimizer or (),
            STEPS if steps is None else steps,
            gradients or "all",
            learning_rate,
            json,
            junit,
            report,
        )
        raise typer.Exit(code)
    if pair is not None:
        stream, steps = gradients or "all", 160 if steps is None else steps
        raise typer.Exit(
            pairs.check_pair(
                *pair, params, stream, steps, json, junit, report, platform, kwargs or ("", "")
            )
        )
    raise typer.Exit(
        suite.check(
            only or (),
            json_file=json,
            svg_file=svg,
            junit_file=junit,
            platform=platform,
            steps=100 if steps is None else steps,
            full=full,
            record=record,
            against=against,
            report_folder=report,
        )
    )


def _only_for(modes: dict[str, Any], options: dict[str, Any], mode: str) -> None:
    if modes[mode] is not None:
        _refuse(options, f"is not for {mode}")


def _refuse(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value:
            raise typer.BadParameter(f"{option} {why}")
