# pyright: strict
"""Options that several commands have."""

import enum
from typing import Annotated

import typer


class Recipe(enum.StrEnum):
    """The kinds of recipe; see `optax_bridge.correspondence.choose_recipe`."""

    EXACT = "exact"
    STOCK = "stock"
    STANDALONE = "standalone"


Devices = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Split the CPU into so many devices.")
]
