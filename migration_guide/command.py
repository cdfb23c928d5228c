# pyright: strict
"""`optax-bridge migrate`: the options; what it does is imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer


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
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="Public Optax and Flax alone, where they are the same."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    list_rules: Annotated[
        bool, typer.Option("--list", help="List the rules and change nothing.")
    ] = False,
) -> None:
    """Rewrite programs of flax.optim for Optax; shows a diff unless told to write.

    What cannot be decided stays as it is, with a comment that says what to do. Exit code 0; 1 if
    `--check` found something to change, or a file could not be read, rewritten or written; 2 for
    misuse.

    Examples:
    - `optax-bridge migrate train.py`

    - `optax-bridge migrate --write src/`

    - `optax-bridge migrate --write --standalone src/`

    - `optax-bridge migrate --check --skip jax_tree src/ notebooks/`
    """
    from migration_guide.codemod import command  # LibCST, which no help needs

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
            standalone=standalone,
            json=json,
        )
    )
