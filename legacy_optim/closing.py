"""The closing lines of `run`: the old names that a program used, and that time's defaults."""

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from legacy_optim import gone, settings, shim
from legacy_optim import uses as uses_module
from legacy_optim.uses import Use

# What Python says of a keyword argument that a function does not take (any more).
_KEYWORD = re.compile(
    r"([\w.]+)\(\) got (?:an unexpected keyword argument"
    r"|some positional-only arguments passed as keyword arguments:) '([\w, ]+)'"
)


def close(folder: str) -> None:
    """Says it on the standard error, unless told to be quiet."""
    uses = {use for use, _ in uses_module.uses()} | set(uses_module.of_other_processes())
    if os.environ.get(settings.QUIET):
        return
    lines = summary(uses, folder)
    stream = sys.__stderr__
    if lines and stream is not None and not stream.closed:
        print("\n".join(lines), file=stream, flush=True)


def summary(uses: Iterable[Use], folder: str) -> list[str]:
    """Returns the closing lines: the old names, their places, the remedy, and the defaults."""
    uses = sorted(uses)
    own_uses = [use for use in uses if not _is_library(use.file)]
    lines = _names(own_uses, len(uses) - len(own_uses), folder) if uses else []
    files = sorted({use.file for use in own_uses if os.path.isfile(use.file)})
    if files:
        shown = [_display_path(file, folder) for file in files]
        more = " ..." if len(files) > 4 else ""
        lines.append(f"To rewrite them for Optax: optax-bridge migrate {' '.join(shown[:4])}{more}")
        lines += _advice(files, folder)
    return [*_explanations(), *lines, *_defaults()]


def _explanations() -> list[str]:
    """Returns the remedy for the name that ended the program, where its error could not hold it."""
    error = getattr(sys, "last_value", None)
    entries = []
    if isinstance(error, AttributeError) and error.name:
        cls = error.obj if isinstance(error.obj, type) else type(error.obj)
        for base in cls.__mro__:
            entries += gone.find_attribute(base.__name__, error.name)
    elif isinstance(error, TypeError) and (match := _KEYWORD.search(str(error))) is not None:
        function = match[1].removesuffix(".__init__").removesuffix(".__new__").lstrip("_")
        for keyword in match[2].split(", "):
            entries += gone.find_keyword_by_ending(function, keyword)
    entries.sort(key=lambda entry: (len(entry.name), entry.name))
    messages = {entry.remedy: entry.message for entry in reversed(entries)}  # the shortest name
    return [f"optax-bridge: {message}" for message in [*messages.values()][::-1][:3]]


def _names(uses: list[Use], elsewhere: int, folder: str) -> list[str]:
    names: dict[str, list[str]] = {}
    for use in _longest(uses):
        names.setdefault(use.name, []).append(f"{_display_path(use.file, folder)}:{use.line}")
    places_found = sum(map(len, names.values()))
    lines = [
        f"optax-bridge: {_number(len(names), 'old name')} used in {_number(places_found, 'place')}:"
    ]
    width = max(map(len, names), default=0)
    for name, places in names.items():
        text = ", ".join(places[:6]) + (f" and {len(places) - 6} more" if len(places) > 6 else "")
        lines += textwrap.wrap(
            text,
            width=max(100, width + 30),
            initial_indent=f"  {name:{width}}  ",
            subsequent_indent=" " * (width + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )
    if elsewhere:
        lines.append(f"  and in {_number(elsewhere, 'place')} of installed libraries")
    return lines


def _defaults() -> list[str]:
    defaults = shim.old_defaults_in_force()
    if not defaults:
        return []
    shown = ", ".join(f"{name}={value}" for name, value in defaults.items())
    return textwrap.wrap(
        f"optax-bridge: old defaults restored: {shown} (undo: --todays-defaults)",
        width=100,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _advice(files: list[str], folder: str) -> list[str]:
    """Returns the lines that the command that started the run adds about some files."""
    module, _, function = os.environ.get(settings.ADVICE, "").partition(":")
    if not function:
        return []
    code = (
        f"import sys\nfrom {module} import {function} as advice\n"
        "print(advice(sys.argv[1:]), end='')\n"
    )
    environment = {**settings.without_settings(os.environ), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-W", "ignore", "-c", code, *files]
    done = subprocess.run(
        command,
        cwd=folder if os.path.isdir(folder) else None,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return [f"  (optax-bridge migrate failed to list its rewrites: {reason})"]
    return done.stdout.splitlines()


def _longest(uses: Iterable[Use]) -> list[Use]:
    """Without `flax.optim` where the same line uses `flax.optim.Adam`."""
    uses = list(uses)
    at: dict[tuple[str, int], list[str]] = {}
    for use in uses:
        at.setdefault((use.file, use.line), []).append(use.name)
    return [
        use
        for use in uses
        if not any(other.startswith(f"{use.name}.") for other in at[use.file, use.line])
    ]


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_library(file: str) -> bool:
    return "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts


def _display_path(file: str, folder: str) -> str:
    try:
        return str(Path(file).resolve().relative_to(Path(folder).resolve()))
    except ValueError:
        return file
