"""The summary below the diff of `migrate`: changes, work for a person, next steps."""

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from migration_guide.codemod.registry import RULES
from migration_guide.codemod.results import (
    SOME_RATE,
    UNKNOWN_PATH,
    UNKNOWN_RATE,
    UNKNOWN_TEMPLATE,
    WRAPPER,
    Message,
    Options,
    Report,
    Restored,
)
from migration_guide.codemod.rules.restoring import FILL_IN
from migration_guide.codemod.writing import random_numbers
from optax_bridge._text import listing

_RANDOM = re.compile(r"\brandom\.(?:PRNGKey|key|split)\b|\bdropout\b", re.IGNORECASE)
_RANDOM_NUMBERS = (
    "Random numbers: today's JAX draws different ones. To keep the old ones, also for dropout and "
    "initial parameters, run `migrate --write --old-random-numbers` on the same files: it puts "
    f"{random_numbers.LINE} after the imports. `optax-bridge run` does so by default."
)
_FLOAT32 = "Written for float32: {}. Neither the program nor its imports mention half precision."
_LEGACY = (
    "Still on legacy_optim: {}. The code that takes these definitions is legacy too, a class of "
    "your own or one chosen at run time; wrap_definition or from_legacy turns all of it into one "
    "transformation."
)

_NEXT = "Next, check that the new optimizers take the same steps as the old ones"
_COMPUTED = f" ({SOME_RATE} replaces a learning rate that the program computes)"
_RESUMING = (
    "If it restores a checkpoint, also check that it continues as before: optax-bridge "
    "check-resume {checkpoint} --program {program}:{function} --old OLD_PROGRAM:{function}{rate}, "
    "{fill_in}"
)
_OLD_PROGRAM = "where OLD_PROGRAM is the file before the rewrite"
_ADD = (
    "add to both\n"
    "  def {}():\n"
    '      """Returns the state to restore a checkpoint into."""\n'
    "      return {}"
)
_WITHOUT_ARGUMENTS = f"{FILL_IN}. If the programs have no such function, {_ADD}".format(
    UNKNOWN_TEMPLATE, "...(...)  # the program's own call, with its arguments written out"
)


def summary(report: Report, options: Options, written: bool = False) -> str:
    """Returns the changes, the work for a person and the notes, with file and line."""
    parts = [
        *_changes(report, options, written),
        *_messages(report, written),
        *_checkpoints(report, options),
    ]
    parts += _assumptions(report)
    if report.refusals:
        parts.append("Unchanged:")
        parts += [f"  {result.path}: {result.refused}" for result in report.refusals]
    commands = next_commands(report) if written else []
    if commands:
        calls = [old for result in report.changed_files for old, _ in result.compared]
        has_rate = any(UNKNOWN_RATE in call for call in calls)
        parts.append(f"{_NEXT}{_COMPUTED if has_rate else ''}:")
        parts += [f"  {command}" for command in commands]
    if written:
        parts += _resuming(report)
    return "\n".join(parts)


def _changes(report: Report, options: Options, written: bool) -> Iterator[str]:
    verb = "rewritten" if written else "would be rewritten"
    changed = number(len(report.changed_files), "file")
    yield f"{changed} {verb}, {report.seen} looked at, in {report.seconds:.1f} s."
    counts: Counter[str] = Counter()
    for result in report.changed_files:
        counts.update(dict(result.counts))
    if counts:
        yield "  " + ", ".join(f"{name} {count}" for name, count in counts.most_common())
    if not report.changed_files and not report.refusals:
        yield f"Nothing to rewrite: {_why_nothing(report, options)}"


def _why_nothing(report: Report, options: Options) -> str:
    """Why nothing changed, where every file could be read."""
    all_rules = options.rules is None or len(options.rules) == len(RULES)
    if report.users and not all_rules:
        return "the selected rules match nothing in files that use flax.optim."
    if report.users:
        by_hand = "needs a person, see below" if report.by_hand else "stays unchanged"
        return f"the code that uses flax.optim {by_hand}."
    uses = "it does not use flax.optim" if report.seen == 1 else "none of them uses flax.optim"
    if not report.migrated:
        return f"{uses}."
    if report.seen == 1:
        return f"{uses} any longer: it is migrated already."
    return f"{uses} any longer; migrated already: {number(report.migrated, 'file')}."


def _messages(report: Report, written: bool) -> Iterator[str]:
    is_old = report.changed_files and not written
    lines_of = " (line numbers before the rewrite)" if is_old else ""
    for title, by_hand in (("To do by hand", True), ("Good to know", False)):
        messages = [(r.path, m) for r in report.results for m in r.messages if m.by_hand is by_hand]
        if messages:
            yield f"{title}{lines_of}:"
            for path, message in messages:
                yield f"  {path}:{message.location(written=written)}: {message.text}"


def _checkpoints(report: Report, options: Options) -> Iterator[str]:
    commands = convert_commands(report)
    if not commands:
        return
    if options.optax_alone:
        yield "Old checkpoints need converting, unless the program still imports optax_bridge:"
    else:
        yield "The program reads old checkpoints itself; to convert files anyway:"
    yield from (f"  {command}" for command in commands)
    restored = [restored for result in report.results for restored in result.checkpoints]
    if any(UNKNOWN_RATE in call for r in restored for _, call in r.optimizers):
        yield f"  Its learning rate does not matter: {SOME_RATE} replaces a computed one."
    if any(command.endswith(f":{UNKNOWN_TEMPLATE}") for command in commands):
        yield f"  {FILL_IN}; if the program has none, add it."
    prefixes = {r.prefix for result in report.results for r in result.checkpoints if not r.format}
    names = " or ".join(f"NEW_FOLDER/{prefix}STEP" for prefix in sorted(prefixes))
    if names:
        yield (
            f"  Convert a checkpoint of a folder to {names}, so that the program finds it next to "
            "those that it saves later."
        )


def next_commands(report: Report) -> list[str]:
    """Commands that show whether the rewritten program takes the same steps as the old one."""
    commands: dict[str, None] = {}
    for result in report.changed_files:
        for old, new in result.compared:
            sides = (side.replace(UNKNOWN_RATE, SOME_RATE) for side in (old, new))
            commands[shlex.join(["optax-bridge", "compare", *sides])] = None
    for result in report.changed_files:
        for restored in result.checkpoints:
            if restored.is_known:
                program = f"{short_path(result.path)}:{restored.template}"
                parts = ["optax-bridge", "check-resume", restored.checkpoint, "--program", program]
                commands[shlex.join([*parts, *restored.options(), *report.rate_option])] = None
    return list(commands)


def _resuming(report: Report) -> Iterator[str]:
    """Yields how to check what is restored into where the source does not say how it is made."""
    restoring = [
        result
        for result in report.changed_files
        if dict(result.counts).get("restoring")
        and not any(restored.is_known for restored in result.checkpoints)
    ]
    if not restoring:
        return
    shown = restoring[0].checkpoints
    only = shown[0] if len(restoring) == len(shown) == 1 else Restored(UNKNOWN_PATH)
    function = only.template or (WRAPPER if only.call else UNKNOWN_TEMPLATE)
    added = f"{_OLD_PROGRAM}; {_ADD.format(WRAPPER, only.call)}"
    yield _RESUMING.format(
        checkpoint=shlex.quote(only.checkpoint),
        program=short_path(restoring[0].path) if len(restoring) == 1 else "PROGRAM",
        function=function,
        rate="".join(f" {option}" for option in report.rate_option),
        fill_in=_OLD_PROGRAM if only.template else added if only.call else _WITHOUT_ARGUMENTS,
    )


def _assumptions(report: Report) -> list[str]:
    """Returns notes on the assumptions of the result, and on definitions that stay legacy."""
    files = [short_path(result.path) for result in report.results if result.for_float32]
    names = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
    notes = [_FLOAT32.format(names)] if files else []
    legacy = {name for result in report.results for name in result.legacy_names}
    notes += [_LEGACY.format(listing(sorted(legacy)))] if legacy else []
    return [*notes, _RANDOM_NUMBERS] if _draws(report) else notes


def _draws(report: Report) -> bool:
    """True if some file that changes seems to draw random numbers, and none says how."""
    codes = [result.code for result in report.changed_files]
    return any(map(_RANDOM.search, codes)) and not any(random_numbers.SETTING in c for c in codes)


def convert_commands(report: Report) -> list[str]:
    """Commands that convert the checkpoints that programs restore, as far as the source shows."""
    commands: dict[str, str] = {}
    for result in report.results:
        for restored in result.checkpoints:
            file = short_path(result.path)
            unnamed = f"{file}:{restored.template}" if restored.path == UNKNOWN_PATH else ""
            commands.setdefault(unnamed or restored.path, restored.command(file))
    return list(commands.values())


def as_json(report: Report, written: bool) -> dict[str, object]:
    """The report for programs: the same content as `summary`."""
    return {
        "seen": report.seen,
        "parsed": report.parsed,
        "seconds": round(report.seconds, 3),
        "convert": convert_commands(report),
        "next": next_commands(report),
        "notes": _assumptions(report),
        "files": [
            {
                "path": str(result.path),
                "changed": result.is_changed,
                "counts": dict(result.counts),
                "by_hand": [_message(m, written) for m in result.messages if m.by_hand],
                "notes": [_message(m, written) for m in result.messages if not m.by_hand],
                "refused": result.refused,
            }
            for result in report.results
        ],
    }


def _message(message: Message, written: bool) -> dict[str, object]:
    line = message.new_line if written else message.line
    cell = {"cell": message.cell} if message.cell else {}
    return {"line": line, "text": message.text, **cell}


def short_path(path: Path) -> str:
    """The path below the current folder where it is there, else the whole one."""
    real = path.resolve()
    return str(real.relative_to(Path.cwd()) if real.is_relative_to(Path.cwd()) else real)


def number(count: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
