# pyright: strict
"""`optax-bridge train`: runs a trainer that a config describes."""

from pathlib import Path
from typing import Annotated

import typer

from optax_bridge.cli.options import Devices


def train(
    config: Annotated[
        str,
        typer.Argument(
            help="`package.module.function` or `module:function` that returns a trainer's config; "
            "or a `trainer_config.txt` that a run wrote."
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="The folder of the run; sets the config's `dir`.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Sets a field, e.g. `trainer.max_step=1000`; may be repeated. Parsed, never "
            "evaluated.",
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the config and train nothing.")
    ] = False,
    seed: Annotated[
        int,
        typer.Option(min=-(2**63), max=2**63 - 1, help="Of the random numbers of a new run."),
    ] = 0,
    resume_from: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="STEP",
            help="Go on from the checkpoint of this step; later ones are set aside, not deleted.",
        ),
    ] = None,
    devices: Devices = None,
    coordinator: Annotated[
        str | None, typer.Option(help="`host:port` of process 0, if there are several processes.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="How many processes there are.")] = None,
    process_id: Annotated[int | None, typer.Option(help="Which of them this is, from 0.")] = None,
) -> None:
    """Train what a config describes, or go on with it if its folder has a checkpoint.

    Ctrl-C and SIGTERM save, and the same command goes on from there. Exit code 0, 1 if the run
    failed (a loss that is not finite, a batch that the devices do not divide, a full disk), 2 for
    misuse, 130 or 143 after Ctrl-C or SIGTERM.

    Examples:
    - `optax-bridge train optax_bridge.spmd.examples.language_model.trainer --dir run`

    - `optax-bridge train mine.config --dir run --set trainer.max_step=1000`

    - `optax-bridge train run/trainer_config.txt --dir again`
    """
    from optax_bridge.spmd.terminal import run  # JAX, which no help needs

    raise typer.Exit(
        run(
            config,
            folder,
            overrides or (),
            print_config=print_config,
            seed=seed,
            resume_from=resume_from,
            devices=devices,
            coordinator=coordinator,
            processes=processes,
            process_id=process_id,
        )
    )
