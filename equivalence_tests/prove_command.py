# pyright: strict
"""`optax-bridge prove`: what the correspondence claims, or a pair of the user's own, proved."""

from pathlib import Path
from typing import Annotated

import typer


def prove(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="An optimizer, `exact` or `stock`, or a dtype, e.g. `adam` or `bfloat16`; may be "
            "repeated."
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the certificates to this file as well.")
    ] = None,
    pair: Annotated[
        tuple[str, str] | None,
        typer.Option(
            help="Prove two of your own instead: `module:left` and `module:right`; with "
            "--hyper-params, functions of a mapping of these."
        ),
    ] = None,
    params: Annotated[
        str | None,
        typer.Option(
            help="For --pair: `module:params`, or shapes such as `w=4x3,b=3`; a few unless given."
        ),
    ] = None,
    hyper_params: Annotated[
        str | None,
        typer.Option(
            help="For --pair: numbers that stand for any, e.g. `learning_rate=1e-3,decay=0.1`, or "
            "`module:numbers`."
        ),
    ] = None,
) -> None:
    """Prove for all inputs that the old optimizers and the new ones are the same, or show one.

    Both programs are followed symbolically: *identical* keeps every bit, *equal over the reals*
    leaves rounding out, *different* comes with an input that shows it, and *not decided* says what
    stopped the proof.

    Exit code 0 if every claim is proved, 1 if one is not, 2 for misuse. Of a pair: 0 if the two
    are proved identical or equal over the reals.

    Examples:
    - `optax-bridge prove`

    - `optax-bridge prove --only lamb --only exact --json certificates.json`

    - `optax-bridge prove --pair mine:old mine:new --params w=4x3,b=3`

    - `optax-bridge prove --pair mine:old mine:new --hyper-params learning_rate=1e-3`
    """
    from equivalence_tests.prove import prove_pair, prove_table  # JAX, which no help needs

    for_pair = {"--params": params, "--hyper-params": hyper_params}
    for option, value in (for_pair if pair is None else {"--only": only}).items():
        if value:
            raise typer.BadParameter(f"{option} is {'' if pair is None else 'not '}for --pair")
    if pair is not None:
        raise typer.Exit(prove_pair(*pair, params, hyper_params, json))
    raise typer.Exit(prove_table(only or (), json))
