# pyright: strict
"""`optax-bridge inspect`: the options; what it does is imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer


def inspect(
    file: Annotated[Path, typer.Argument(help="A checkpoint: a file, or a folder of them.")],
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    everything: Annotated[
        bool, typer.Option("--all", help="List every leaf, not the first thousand lines.")
    ] = False,
) -> None:
    """Say what a checkpoint is and list what is in it.

    Exit code 0, 1 if it cannot be read.

    Examples:
    - `optax-bridge inspect checkpoint_100`

    - `optax-bridge inspect runs/1/`
    """
    from optax_bridge.checkpoints.terminal.inspect import run  # JAX, which no help needs

    raise typer.Exit(run(file, json, everything))
