# pyright: strict
"""`optax-bridge migrate`: the options; what it does is imported when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from optax_bridge.cli.options import Recipe

Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATHS", help="Files and folders: Python and notebooks."),
]
Write = Annotated[bool, typer.Option("--write", help="Change the files.")]
Check = Annotated[
    bool, typer.Option("--check", help="Change nothing; exit 1 if anything would change.")
]
Only = Annotated[list[str] | None, typer.Option(help="Apply this rule alone; may be repeated.")]
Skip = Annotated[list[str] | None, typer.Option(help="Leave this rule out; may be repeated.")]
Written = Annotated[
    Recipe | None,
    typer.Option(
        help="What optimizers become. `auto`, the default: public Optax where it is the same "
        "but for rounding, else this project's exact transformation; `exact`: always the latter; "
        "`optax`: public Optax and Flax alone, and a comment where that is not the same."
    ),
]
OldRandomNumbers = Annotated[
    bool,
    typer.Option(
        "--old-random-numbers",
        help="Keep the random numbers of that time: where a file makes random keys, JAX's setting "
        "goes behind its imports.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
ListRules = Annotated[bool, typer.Option("--list", help="List the rules and change nothing.")]


def migrate(
    paths: Paths = None,
    write: Write = False,
    check_only: Check = False,
    only: Only = None,
    skip: Skip = None,
    recipe: Written = None,
    old_random_numbers: OldRandomNumbers = False,
    json: Json = False,
    list_rules: ListRules = False,
) -> None:
    """Rewrite programs of flax.optim for Optax; without --write, show the diff.

    What cannot be decided is left as it is, with a comment that says what to do. A line with the
    comment `# optax-bridge: skip` is left alone. `[tool.optax-bridge]` in pyproject.toml may set
    `paths`, `skip` and `recipe`.

    | exit code | means |
    |---|---|
    | 0 | done, and nothing is left to do by hand |
    | 1 | something is left to do by hand, or a file could not be read, rewritten or written, or \
`--check` found something to change |
    | 2 | misuse: an unknown rule or option, a path that is not there, no Python file |
    | 130 | interrupted; files that were written are whole |

    Examples:
    - `optax-bridge migrate train.py`

    - `optax-bridge migrate --write src/`

    - `optax-bridge migrate --write --recipe optax src/`

    - `optax-bridge migrate --check --skip gone_names src/ notebooks/`
    """
    from migration_guide.codemod import command  # LibCST, which no help needs

    if list_rules:
        raise typer.Exit(command.print_rules())
    raise typer.Exit(
        command.run(
            paths or (),
            write=write,
            check=check_only,
            only=only or (),
            skip=skip or (),
            recipe=recipe or "",
            old_random_numbers=old_random_numbers,
            json=json,
        )
    )
