# pyright: strict
"""Options that several commands have."""

from typing import Annotated

import typer

Devices = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Split the CPU into so many devices.")
]
