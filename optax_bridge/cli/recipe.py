"""`optax-bridge recipe`: the options; what it does is imported when it is called."""

from typing import Annotated

import typer


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
    from optax_bridge.correspondence.terminal import print_recipe  # JAX, which no help needs

    raise typer.Exit(print_recipe(expression))
