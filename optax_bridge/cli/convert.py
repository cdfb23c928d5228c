# pyright: strict
"""`optax-bridge convert`: the options; what it does is imported when it is called."""

import enum
from pathlib import Path
from typing import Annotated

import typer

from optax_bridge._options import Recipe
from optax_bridge.cli.interrupts import Interrupts


class Target(enum.StrEnum):
    """What `convert` makes."""

    OPTAX = "optax"
    LEGACY = "legacy"


class Layout(enum.StrEnum):
    """Where `convert` puts what stood around an optimizer."""

    KEEP = "keep"
    FLAT = "flat"


# Whether the state is that of the exact recipe; None where that depends on the optimizer.
_EXACT = {None: None, Recipe.STOCK: None, Recipe.EXACT: True, Recipe.STANDALONE: False}


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of numbered ones.")],
    destination: Annotated[Path, typer.Argument(help="What to write.")],
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="The legacy constructor call; read from the state where that is clear. Of several "
            'optimizers one for each, with where it stands: `"actor=Adam(1e-3)"`.'
        ),
    ] = None,
    to: Annotated[
        Target, typer.Option(help="`optax`: a TrainState; `legacy`: an Optimizer, the way back.")
    ] = Target.OPTAX,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="What to write a TrainState as: `orbax`, `msgpack`; a wrong name lists all.",
        ),
    ] = "orbax",
    params_only: Annotated[
        bool, typer.Option("--params-only", help="Write the parameters alone.")
    ] = False,
    recipe: Annotated[
        Recipe | None,
        typer.Option(
            help="Whose state: `stock`, the default: that of public Optax where it is the same but "
            "for rounding, else of the exact recipe, as `migrate` does; `exact`; `standalone`: "
            "public Optax wherever it has an equal."
        ),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(help="`keep`: what stood around the optimizer stays; `flat`: one TrainState."),
    ] = Layout.KEEP,
    like: Annotated[
        str | None,
        typer.Option(
            help="The template, `train.py:make_state`: a function of the program that makes what "
            "it saves. It decides everything, also for several optimizers."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Which optimizer, e.g. `generator`, if several; back, its place."),
    ] = None,
    allow_nan: Annotated[
        bool, typer.Option("--allow-nan", help="Let NaN in the optimizer's state through.")
    ] = False,
    verify: Annotated[bool, typer.Option(help="Read again and compare every leaf.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace the checkpoint there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Convert a checkpoint of flax.optim, moments and step too, or convert it back.

    The source is only read; the destination appears whole or not at all. Exit code 0, 1 if it
    cannot be converted, 2 for misuse.

    Examples:
    - `optax-bridge convert checkpoint_100 new/ --optimizer "Adam(learning_rate=1e-3)"`

    - `optax-bridge convert checkpoint_100 new/ --like train.py:make_state`

    - `optax-bridge convert new/ checkpoint_100 --to legacy --optimizer "Adam(1e-3)"`

    - `optax-bridge convert old new --optimizer "actor=Adam()" --optimizer "critic=Adam()"`

    - `optax-bridge convert old new --optimizer 'MultiOptimizer(("*/bias", Adam(0.1)))'`
    """
    with Interrupts(destination) as interrupts:
        # JAX and Orbax, which no other subcommand's help needs
        from optax_bridge.checkpoints.formats.registry import writable
        from optax_bridge.checkpoints.terminal.convert import run

        interrupts.is_starting = False
        if file_format not in writable():
            known = ", ".join(writable())
            raise typer.BadParameter(f"{file_format!r} is not one of {known}.")
        code = run(
            source,
            destination,
            optimizer or (),
            like,
            json,
            to_legacy=to is Target.LEGACY,
            file_format=file_format,
            params_only=params_only,
            exact=_EXACT[recipe],
            layout=layout.value,
            part=part,
            allow_nan=allow_nan,
            verify=verify,
            force=force,
        )
    raise typer.Exit(code)
