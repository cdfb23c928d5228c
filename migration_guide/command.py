# pyright: strict
"""`optax-bridge migrate`: reads, rewrites and reports on programs.

LibCST is imported by the functions that need it: no help does.
"""

import contextlib
import dataclasses
import difflib
import io
import json as json_module
import time
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from migration_guide.codemod.reading import files
from migration_guide.codemod.results import FileResult, Options, Report
from optax_bridge.cli.configuration import (
    ConfigurationError,
    check_names,
    read_configuration,
)
from optax_bridge.cli.options import Recipe
from optax_bridge.cli.terminal import plain_terminal

DONE, LEFT, MISUSE, INTERRUPTED = 0, 1, 2, 130
_BAR_AFTER = 1.0  # seconds

Paths = Annotated[
    list[Path] | None,
    typer.Argument(metavar="PATHS", help="Files and folders: Python and notebooks."),
]
Write = Annotated[bool, typer.Option("--write", help="Change the files.")]
Check = Annotated[
    bool, typer.Option("--check", help="Change nothing; exit 1 if anything would change.")
]
Only = Annotated[list[str] | None, typer.Option(help="Apply only this rule; may be repeated.")]
Skip = Annotated[list[str] | None, typer.Option(help="Leave this rule out; may be repeated.")]
Written = Annotated[
    Recipe | None,
    typer.Option(
        help="How to write optimizers. `auto`, the default: public Optax where it is the same "
        "except for rounding, otherwise this project's exact transformation; `exact`: always the "
        "latter; `optax`: only public Optax and Flax; where they have no equivalent, the optimizer "
        "stays on this package, with a comment."
    ),
]
OldRandomNumbers = Annotated[
    bool,
    typer.Option(
        "--old-random-numbers",
        help="Keep the old random numbers: a file that makes random keys sets JAX's flag for them "
        "after its imports.",
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

    Code that cannot be decided stays unchanged, with a comment that says what to do. A line with
    the comment `# optax-bridge: skip` is skipped. `[tool.optax-bridge]` in pyproject.toml may set
    `paths`, `skip` and `recipe`.

    | exit code | means |
    |---|---|
    | 0 | done, and nothing is left to do by hand |
    | 1 | something is left to do by hand, or a file could not be read, rewritten or written, or \
`--check` found something to change |
    | 2 | misuse: an unknown rule or option, a path that does not exist, no Python file |
    | 130 | interrupted; files that were written are whole |

    Examples:
    - `optax-bridge migrate train.py`

    - `optax-bridge migrate --write src/`

    - `optax-bridge migrate --write --recipe optax src/`

    - `optax-bridge migrate --check --skip gone_names src/ notebooks/`
    """
    if list_rules:
        raise typer.Exit(print_rules())
    raise typer.Exit(
        run(
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


@contextlib.contextmanager
def _without_warnings_of_programs() -> Generator[None]:
    """Silences warnings of Python's parser about a program: a backslash, a comparison."""
    with warnings.catch_warnings():
        for category in (DeprecationWarning, SyntaxWarning):
            warnings.simplefilter("ignore", category)
        yield


@_without_warnings_of_programs()
def run(
    paths: Sequence[Path] = (),
    *,
    write: bool = False,
    check: bool = False,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    recipe: str = "",
    old_random_numbers: bool = False,
    json: bool = False,
) -> int:
    """Rewrites programs, or shows the diff."""
    from migration_guide.codemod import summary
    from migration_guide.codemod.registry import RULES

    errors = plain_terminal(stderr=True)
    write = write and not check
    try:
        names = [rule.name for rule in RULES]
        check_names([*only, *skip], names, "no rule")
        configuration = read_configuration(Path.cwd(), names)
        paths = _existing(paths or configuration.paths)
        # Rules of the command line replace those of the settings.
        skipped = skip if only or skip else configuration.skip
        options = Options(
            recipe=recipe or configuration.recipe,
            rules=frozenset(only or names) - frozenset(skipped),
            old_random_numbers=old_random_numbers,
        )
        report = with_bar(paths, options, Console(stderr=True, quiet=json))
        if not report.seen:
            raise ConfigurationError(_no_file(paths))
    except (ConfigurationError, FileNotFoundError) as error:
        errors.print(str(error))
        return MISUSE
    except KeyboardInterrupt:
        errors.print("Interrupted; nothing was written.")
        return INTERRUPTED
    if write:
        files.remove_unfinished(paths)
        saved: list[Path] = []
        try:
            report = _save(report, saved)
        except KeyboardInterrupt:
            done = f"{len(saved)} of {summary.number(len(report.changed_files), 'file')}"
            errors.print(f"Interrupted; {done} written, all of them whole. Run it again.")
            return INTERRUPTED
    if json:
        print(json_module.dumps(summary.as_json(report, write), indent=2))
    else:
        _print(report, options, write)
    return LEFT if report.by_hand or report.refusals or (check and report.changed_files) else DONE


def print_rules() -> int:
    """Prints each rule with its purpose."""
    from migration_guide.codemod.registry import RULES

    console = plain_terminal()
    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        console.print(f"{rule.name:{width}}  {rule.summary}")
    return DONE


@_without_warnings_of_programs()
def advice(paths: Sequence[str]) -> str:
    """Returns a line for each file that `migrate` would change, for the end of a run."""
    from migration_guide.codemod import driver, summary

    report = driver.migrate([Path(p) for p in paths if p.endswith((".py", ".ipynb"))], Options())
    lines: list[str] = []
    for result in report.results:
        edits = sum(count for _, count in result.counts)
        by_hand = sum(message.by_hand for message in result.messages)
        name = summary.short_path(result.path)
        lines.append(f"  {name}: {edits} rewrites, {by_hand} to do by hand")
    return "\n".join(lines)


def with_bar(
    paths: Sequence[Path], options: Options, console: Console, after: float = _BAR_AFTER
) -> Report:
    """Runs the driver; on a terminal a bar appears if it takes longer than some seconds."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from migration_guide.codemod import driver

    if not console.is_terminal or console.quiet:
        return driver.migrate(paths, options)
    start = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=None)

    def progress(what: str, done: int, total: int) -> None:
        if time.perf_counter() - start <= after:
            return
        bar.update(task, description=what, completed=done, total=total or None)
        if not bar.live.is_started:
            bar.start()

    try:
        return driver.migrate(paths, options, progress)
    finally:
        bar.stop()


def _existing(paths: Sequence[Path]) -> Sequence[Path]:
    if not paths:
        raise ConfigurationError(
            "name at least one file or folder, `optax-bridge migrate src/`, or give `paths` in "
            "[tool.optax-bridge] of pyproject.toml"
        )
    for path in paths:
        if path.is_file() and not files.is_program(path):
            raise ConfigurationError(
                f"{path}: expected Python or a notebook, found neither; name a .py or .ipynb file, "
                "or a folder of them"
            )
    return paths


def _no_file(paths: Sequence[Path]) -> str:
    names = ", ".join(map(str, paths))
    return (
        f"{names}: no Python file and no notebook there; hidden folders, environments and build "
        "outputs are looked at only where they are named themselves"
    )


def _save(report: Report, saved: list[Path]) -> Report:
    """Writes the changed files; the report has files that cannot be written as refused."""
    from migration_guide.codemod import driver

    failed = driver.save(report.results, saved)
    paths = {result.path for result in failed}
    others = [result for result in report.results if result.path not in paths]
    return dataclasses.replace(report, results=(*others, *failed))


def _print(report: Report, options: Options, written: bool) -> None:
    from migration_guide.codemod import summary

    console = plain_terminal()
    for result in () if written else report.changed_files:
        _print_diff(console, summary.short_path(result.path), result)
    console.print(summary.summary(report, options, written))


def _print_diff(console: Console, name: str, result: FileResult) -> None:
    old, new = (list(io.StringIO(text, newline="")) for text in (result.old, result.code))
    below = name.lstrip("/")
    for line in difflib.unified_diff(old, new, f"a/{below}", f"b/{below}"):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[0], "")
        ended = line.endswith(("\n", "\r"))
        text = line.rstrip("\r\n") + ("\n" if ended else "\n\\ No newline at end of file\n")
        console.print(Text(text.replace("\r", ""), style=style), end="")
