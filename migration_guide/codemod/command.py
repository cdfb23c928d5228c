"""`optax-bridge migrate`: diff, summary, exit code."""

import dataclasses
import difflib
import io
import json as json_module
import re
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from migration_guide.codemod import driver, files
from migration_guide.codemod.context import UNKNOWN_TEMPLATE, Message, Options
from migration_guide.codemod.registry import RULES
from migration_guide.codemod.rules.restoring import FILL_IN
from optax_bridge._terminal import plain_terminal

DONE, WOULD_CHANGE, MISUSE, INTERRUPTED = 0, 1, 2, 130
_BAR_AFTER = 1.0  # seconds
_RANDOM = re.compile(r"\brandom\.(?:PRNGKey|key|split)\b|\bdropout\b", re.IGNORECASE)
_RANDOM_NUMBERS = (
    "Random numbers: JAX draws others than it did then. To keep those, for dropout and initial "
    'parameters too, put jax.config.update("jax_threefry_partitionable", False) behind '
    "`import jax`; `optax-bridge run` does it by itself."
)


def run(
    paths: Sequence[Path],
    *,
    write: bool = False,
    check: bool = False,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    exact: bool = False,
    rename: bool = False,
    standalone: bool = False,
    json: bool = False,
) -> int:
    """Rewrites programs, or shows what would change.

    Args:
      paths: files and folders.
      write: change the files; else show a diff.
      check: change nothing and return 1 if anything would change.
      only: names of the only rules to apply.
      skip: names of rules not to apply.
      exact: prefer this project's transformations where public Optax agrees only up to rounding.
      rename: call variables named `optimizer` `state`, where that is safe.
      standalone: public Optax and Flax alone, where that is the same up to rounding.
      json: print results as JSON.

    Returns:
      0; 1 if `check` and something would change, or if a file could not be read, rewritten or
      written, which keeps none of the others from it; 2 for misuse; 130 if it was interrupted.
    """
    errors = plain_terminal(stderr=True)
    if standalone and exact:
        errors.print("--standalone and --exact: public Optax is not exact; give one of them")
        return MISUSE
    known = {rule.name for rule in RULES}
    unknown = sorted({*only, *skip} - known)
    if unknown:
        errors.print(f"no rule {unknown[0]!r}; `optax-bridge migrate --list` names them")
        return MISUSE
    rules = frozenset(only or known) - frozenset(skip)
    options = Options(exact=exact, rules=rules, rename=rename, standalone=standalone)
    try:
        report = with_bar(paths, options, Console(stderr=True, quiet=json))
    except FileNotFoundError as error:
        errors.print(str(error))
        return MISUSE
    except KeyboardInterrupt:
        errors.print("Interrupted; nothing was written.")
        return INTERRUPTED
    removed: list[Path] = []
    if write and not check:
        removed = files.remove_unfinished(paths)
        written: list[Path] = []
        try:
            failed = driver.save(report.results, written)
        except KeyboardInterrupt:
            done = f"{len(written)} of {_number(len(report.changed), 'file')}"
            errors.print(f"Interrupted; {done} written, all of them whole. Run it again.")
            return INTERRUPTED
        paths_failed = {result.path for result in failed}
        kept = [result for result in report.results if result.path not in paths_failed]
        report = dataclasses.replace(report, results=(*kept, *failed))
    if json:
        print(json_module.dumps(_as_json(report, write and not check), indent=2))
    else:
        console = plain_terminal()
        if not write or check:
            for result in report.changed:
                _print_diff(console, result)
        console.print(summary(report, write and not check, standalone))
        for path in removed:
            console.print(f"Removed what a run that was killed had left: {path}")
    refused = any(result.refused for result in report.results)
    return WOULD_CHANGE if refused or (check and report.changed) else DONE


def print_rules() -> int:
    """Prints the rules and what each is for."""
    console = plain_terminal()
    width = max(len(rule.name) for rule in RULES)
    for rule in RULES:
        console.print(f"{rule.name:{width}}  {rule.summary}")
    return DONE


def summary(report: driver.Report, written: bool = False, standalone: bool = False) -> str:
    """What changed, what a person has to do, and what is good to know, with file and line."""
    counts: Counter[str] = Counter()
    for result in report.changed:
        counts.update(dict(result.counts))
    verb = "rewritten" if written else "would be rewritten"
    files = _number(len(report.changed), "file")
    lines = [f"{files} {verb}, {report.seen} looked at, in {report.seconds:.1f} s."]
    if counts:
        lines.append("  " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
    by_hand = [(r.path, m) for r in report.results for m in r.messages if m.by_hand]
    notes = [(r.path, m) for r in report.results for m in r.messages if not m.by_hand]
    lines_of = "" if written or not report.changed else " (lines of the files as they are now)"
    for title, found in (("To do by hand", by_hand), ("Good to know", notes)):
        if found:
            lines.append(f"{title}{lines_of}:")
            lines += [f"  {path}:{m.location(written=written)}: {m.text}" for path, m in found]
    commands = convert_commands(report)
    if commands:
        lines.append(
            "Old checkpoints need converting, unless the program imports optax_bridge still:"
            if standalone
            else "Old checkpoints are read as they are; to convert files all the same:"
        )
        lines += [f"  {command}" for command in commands]
        if any(command.endswith(f":{UNKNOWN_TEMPLATE}") for command in commands):
            lines.append(f"  {FILL_IN}; write it into the program if there is none.")
        lines.append(
            "  A checkpoint of a folder belongs into NEW_FOLDER/checkpoint_STEP, so that the "
            "program finds it there, and later what it saves beside it."
        )
    if _draws(report):
        lines.append(_RANDOM_NUMBERS)
    refused = [result for result in report.results if result.refused]
    if refused:
        lines += [
            "Left as they are:",
            *(f"  {result.path}: {result.refused}" for result in refused),
        ]
    return "\n".join(lines)


def _draws(report: driver.Report) -> bool:
    """Whether some file that changes seems to draw random numbers."""
    return any(_RANDOM.search(result.new) for result in report.changed)


def convert_commands(report: driver.Report) -> list[str]:
    """Commands that convert the checkpoints whose paths the programs have written out."""
    commands = {}
    for result in report.results:
        for found in result.checkpoints:
            near = result.path.resolve().is_relative_to(Path.cwd())
            file = _short(result.path) if near else str(result.path)
            commands.setdefault(found.path, found.command(file))
    return list(commands.values())


def advice(paths: Sequence[str]) -> str:
    """What `migrate` would do to some files, in a line each, for the end of a run."""
    report = driver.migrate([Path(p) for p in paths if p.endswith((".py", ".ipynb"))], Options())
    lines = []
    for result in report.results:
        edits = sum(count for _, count in result.counts)
        by_hand = sum(message.by_hand for message in result.messages)
        lines.append(f"  {_short(result.path)}: {edits} rewrites, {by_hand} to do by hand")
    return "\n".join(lines)


def with_bar(
    paths: Sequence[Path], options: Options, console: Console, after: float = _BAR_AFTER
) -> driver.Report:
    """Runs the driver; on a terminal a bar appears if it takes longer than some seconds."""
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


def _print_diff(console: Console, result: driver.FileResult) -> None:
    name = _short(result.path)
    old, new = (list(io.StringIO(text, newline="")) for text in (result.old, result.new))
    for line in difflib.unified_diff(old, new, f"a/{name}", f"b/{name}"):
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[0], "")
        ended = line.endswith(("\n", "\r"))
        text = line.rstrip("\r\n") + ("\n" if ended else "\n\\ No newline at end of file\n")
        console.print(Text(text.replace("\r", ""), style=style), end="")


def _as_json(report: driver.Report, written: bool) -> dict[str, Any]:
    return {
        "seen": report.seen,
        "parsed": report.parsed,
        "seconds": round(report.seconds, 3),
        "convert": convert_commands(report),
        "notes": [_RANDOM_NUMBERS] if _draws(report) else [],
        "files": [
            {
                "path": str(result.path),
                "changed": result.changed,
                "counts": dict(result.counts),
                "by_hand": [_message(m, written) for m in result.messages if m.by_hand],
                "notes": [_message(m, written) for m in result.messages if not m.by_hand],
                "refused": result.refused,
            }
            for result in report.results
        ],
    }


def _message(message: Message, written: bool) -> dict[str, Any]:
    said = {"line": message.new_line if written else message.line, "text": message.text}
    return said | ({"cell": message.cell} if message.cell else {})


def _short(path: Path) -> str:
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path).lstrip("/")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
