"""The command `optax-bridge`; each subcommand imports the package that owns it when called."""

import enum
import importlib
from pathlib import Path
from typing import Annotated

import typer


class Target(enum.StrEnum):
    """What `convert` makes."""

    OPTAX = "optax"
    LEGACY = "legacy"


class FileFormat(enum.StrEnum):
    """What `convert` writes a TrainState as."""

    ORBAX = "orbax"
    MSGPACK = "msgpack"


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
            help="For --pair: `normal`, `hostile` (the default), `poisoned`, or `module:gradients`."
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

        stream = gradients or "hostile"
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


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="A checkpoint: a file, or a folder of them.")],
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Say what a checkpoint is and list what is in it.

    Exit code 0, 1 if it cannot be read.

    Examples:
    - `optax-bridge inspect checkpoint_100`

    - `optax-bridge inspect runs/1/`
    """
    from optax_bridge.checkpoints import inspect_command

    raise typer.Exit(inspect_command.run(file, json))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of numbered ones.")],
    destination: Annotated[Path, typer.Argument(help="What to write.")],
    optimizer: Annotated[
        str | None,
        typer.Option(help="The legacy constructor call; read from the state where that is clear."),
    ] = None,
    to: Annotated[
        Target, typer.Option(help="`optax`: a TrainState; `legacy`: an Optimizer, the way back.")
    ] = Target.OPTAX,
    file_format: Annotated[
        FileFormat, typer.Option("--format", help="What to write a TrainState as.")
    ] = FileFormat.ORBAX,
    params_only: Annotated[
        bool, typer.Option("--params-only", help="Write the parameters alone.")
    ] = False,
    stock: Annotated[
        bool, typer.Option("--stock", help="The state of public Optax, not of the exact recipe.")
    ] = False,
    part: Annotated[
        str | None,
        typer.Option(help="Which optimizer, e.g. `generator`, if several; back, its place."),
    ] = None,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Let NaN in the optimizer's state through.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Read again and compare every leaf.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Convert a checkpoint of flax.optim, moments and step too, or convert it back.

    The source is only read; the destination appears whole or not at all. Exit code 0, 1 if it
    cannot be converted, 2 for misuse.

    Examples:
    - `optax-bridge convert checkpoint_100 new/ --optimizer "Adam(learning_rate=1e-3)"`

    - `optax-bridge convert new/ checkpoint_100 --to legacy --optimizer "Adam(1e-3)"`

    - `optax-bridge convert old new --optimizer 'MultiOptimizer(("*/bias", Adam(0.1)))'`
    """
    from optax_bridge.checkpoints import convert_command

    code = convert_command.run(
        source,
        destination,
        optimizer,
        json,
        to_legacy=to is Target.LEGACY,
        msgpack=file_format is FileFormat.MSGPACK,
        params_only=params_only,
        exact=not stock,
        part=part,
        allow_nan=allow_nan,
        verify=verify,
        force=force,
    )
    raise typer.Exit(code)


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
    from migration_guide.codemod.command import advice

    raise typer.Exit(runner.run(program, args or (), as_module=module, quiet=quiet, advice=advice))


@app.command()
def migrate(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files and folders: Python and notebooks.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Change the files.")] = False,
    check_only: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 if anything would change.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="The only rule to apply; may be repeated.")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="A rule not to apply; may be repeated.")
    ] = None,
    exact: Annotated[
        bool,
        typer.Option("--exact", help="Legacy arithmetic also where Optax differs in rounding."),
    ] = False,
    rename: Annotated[
        bool, typer.Option("--rename", help="Call variables `optimizer` `state`, where safe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    list_rules: Annotated[
        bool, typer.Option("--list", help="List the rules and change nothing.")
    ] = False,
) -> None:
    """Rewrite programs of flax.optim for Optax; shows a diff unless told to write.

    What cannot be decided stays as it is, with a comment that says what to do. Exit code 0, 1 if
    `--check` found something to change, 2 for misuse.

    Examples:
    - `optax-bridge migrate train.py`

    - `optax-bridge migrate --write src/`

    - `optax-bridge migrate --check --skip jax_tree src/ notebooks/`
    """
    from migration_guide.codemod import command

    if list_rules:
        raise typer.Exit(command.print_rules())
    if not paths:
        typer.echo("name at least one file or folder: optax-bridge migrate src/", err=True)
        raise typer.Exit(command.MISUSE)
    raise typer.Exit(
        command.run(
            paths,
            write=write,
            check=check_only,
            only=only or (),
            skip=skip or (),
            exact=exact,
            rename=rename,
            json=json,
        )
    )


# Its options stand with the prover, whose packages are imported when it runs.
app.command()(importlib.import_module("equivalence_tests.proof.command").prove)


def main() -> None:
    """Entry point of the `optax-bridge` command."""
    app()
