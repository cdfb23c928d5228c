# pyright: strict
"""Options that several commands have, or several modules of one."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


class Recipe(enum.StrEnum):
    """The kinds of recipe; see `optax_bridge.correspondence.choose_recipe`."""

    AUTO = "auto"
    EXACT = "exact"
    OPTAX = "optax"


Devices = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Split the CPU into this many devices.")
]

ShowsTraceback = Annotated[
    bool, typer.Option("--traceback", help="Print the traceback if your own program fails.")
]


class Target(enum.StrEnum):
    """The kinds of checkpoints that `convert` makes."""

    OPTAX = "optax"
    LEGACY = "legacy"
    TORCH = "torch"


class Layout(enum.StrEnum):
    """The layout of a checkpoint's other entries: unchanged, or fields of one TrainState."""

    KEEP = "keep"
    FLAT = "flat"


@dataclass(frozen=True)
class ConvertOptions:
    """The command line of `convert`, see its help."""

    source: Path
    destination: Path
    optimizers: Sequence[str]
    to: Target
    file_format: str
    params_only: bool
    recipe: Recipe | None
    layout: Layout
    like: str | None
    part: str | None
    names: Path | None
    step: int | None
    base: Path | None
    allow_nan: bool
    verify: bool
    force: bool
    json: bool
    dry_run: bool
    shows_traceback: bool
