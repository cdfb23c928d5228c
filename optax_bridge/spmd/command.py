# pyright: strict
"""`optax-bridge train`: runs a trainer that a config describes."""

from pathlib import Path
from typing import Annotated

import typer

from optax_bridge.cli.options import Devices

Config = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="`package.module.function` or `module:function` that returns a trainer's config; or a "
        "`trainer_config.txt` that a run wrote.",
    ),
]
Folder = Annotated[
    Path | None, typer.Option("--dir", help="The folder of the run; sets the config's `dir`.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field, e.g. `trainer.max_step=1000`; may be repeated. Parsed, never evaluated.",
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the config and train nothing.")
]
Seed = Annotated[
    int, typer.Option(min=-(2**63), max=2**63 - 1, help="Seed of a new run's random numbers.")
]
ResumeFrom = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="STEP",
        help="Resume from the checkpoint of this step; later ones are set aside, not deleted.",
    ),
]
Coordinator = Annotated[
    str | None, typer.Option(help="`host:port` of process 0, if there are several processes.")
]
Processes = Annotated[int | None, typer.Option(help="How many processes there are.")]
ProcessId = Annotated[int | None, typer.Option(help="The number of this process, from 0.")]


def train(
    config: Config,
    folder: Folder = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    seed: Seed = 0,
    resume_from: ResumeFrom = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process_id: ProcessId = None,
) -> None:
    """Train what a config describes, or resume if its folder has a checkpoint.

    Ctrl-C and SIGTERM save a checkpoint, and the same command goes on from there.

    | exit code | means |
    |---|---|
    | 0 | done |
    | 1 | the run failed: a loss that is not finite, an indivisible batch, a full disk |
    | 2 | misuse |
    | 130, 143 | ended by Ctrl-C, by SIGTERM |

    Examples:
    - `optax-bridge train optax_bridge.spmd.examples.language_model.trainer --dir run`

    - `optax-bridge train mine.config --dir run --set trainer.max_step=1000`

    - `optax-bridge train run/trainer_config.txt --dir again`
    """
    from optax_bridge.spmd import terminal  # JAX, which no help needs

    with terminal.report_misuse():
        terminal.connect(devices, coordinator, processes, process_id)
        cfg = terminal.find_config(config, folder, overrides or ())
        if print_config:
            typer.echo(cfg.debug_string())
            return
        trainer = terminal.make_trainer(cfg)
    raise typer.Exit(terminal.train(trainer, seed, resume_from))
