"""Runs a program as `python` would, with `legacy_optim.install()` in force."""

import importlib.util
import linecache
import os
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from legacy_optim import shim, spawned

Advice = Callable[[Sequence[str]], str]


class NoProgram(ValueError):
    """There is no such script or module; says what was looked for."""


def run(
    program: str,
    args: Sequence[str] = (),
    *,
    as_module: bool = False,
    quiet: bool = False,
    advice: Advice | None = None,
) -> int:
    """Runs a script, or a module as `python -m` does.

    Args:
      program: path of a script or of a folder with `__main__.py`, or a module's dotted name.
      args: the program's arguments, `sys.argv[1:]`.
      as_module: `program` is a module's name.
      quiet: do not say at the end which old names were used.
      advice: from the files that used old names to further lines for the end.

    Returns:
      The exit code that `python` would have ended with.
    """
    try:
        code, module, argv0, first_path = _loaded(program, as_module)
    except NoProgram as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except SyntaxError as error:
        sys.excepthook(type(error), error.with_traceback(None), None)
        return 1
    before = sys.argv, sys.path[:], sys.modules.get("__main__")
    sys.argv = [argv0, *args]
    sys.path.insert(0, first_path)
    sys.modules["__main__"] = module
    shim.install()
    try:
        with spawned.reached():
            return _executed(code, module)
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        if before[2] is not None:
            # What the program left for later (atexit, threads) still reads its own module's names.
            sys.modules["__main__"] = before[2]
            before[2].__dict__["_legacy_program"] = module
        if not quiet:
            print(summary(advice), end="", file=sys.stderr)
        shim.uninstall()


def summary(advice: Advice | None = None) -> str:
    """What to say at the end: the old names that were used, where, and what to do about them."""
    found = [(use, count) for use, count in shim.uses() if not _is_library(use.file)]
    elsewhere = len(shim.uses()) - len(found)
    if not found and not elsewhere:
        return ""
    names: dict[str, list[str]] = {}
    for use in _longest(use for use, _ in found):
        names.setdefault(use.name, []).append(f"{_shown(use.file)}:{use.line}")
    places_found = sum(map(len, names.values()))
    lines = [
        f"optax-bridge: {_number(len(names), 'old name')} answered in "
        f"{_number(places_found, 'place')}:"
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
    files = sorted({use.file for use, _ in found})
    if files:
        shown = " ".join(_shown(file) for file in files[:4]) + (" ..." if len(files) > 4 else "")
        lines.append(f"To rewrite them for Optax: optax-bridge migrate {shown}")
        lines += [advice(files)] if advice else []
    return "\n".join(lines) + "\n"


def _longest(found: Iterable[shim.Use]) -> list[shim.Use]:
    """Without `flax.optim` where the same line uses `flax.optim.Adam`."""
    uses = list(found)
    at: dict[tuple[str, int], list[str]] = {}
    for use in uses:
        at.setdefault((use.file, use.line), []).append(use.name)
    return [
        use
        for use in uses
        if not any(other.startswith(f"{use.name}.") for other in at[use.file, use.line])
    ]


def _executed(code: types.CodeType, module: types.ModuleType) -> int:
    try:
        exec(code, module.__dict__)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("KeyboardInterrupt", file=sys.stderr)
        return 130
    except BaseException as error:
        # The frames of this file say nothing to the program's author.
        trace = _of_the_program(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return 0


def _of_the_program(trace: types.TracebackType | None) -> types.TracebackType | None:
    """A traceback without this file's frames at its start and the shim's at its end."""
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    frames = frames[1:]
    while frames and frames[-1].tb_frame.f_code.co_filename == shim.__file__:
        frames.pop()
    if frames:
        frames[-1].tb_next = None
    return frames[0] if frames else None


def _loaded(program: str, as_module: bool) -> tuple[types.CodeType, types.ModuleType, str, str]:
    """The code, the module to run it in, `sys.argv[0]` and `sys.path[0]`."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = __builtins__
    if as_module:
        spec = _spec(program)
        loader: Any = spec.loader
        code = loader.get_code(spec.name)
        if code is None:
            raise NoProgram(f"No code in module {program!r}: it is not written in Python")
        module.__spec__ = spec
        module.__loader__ = loader
        module.__package__ = spec.parent
        module.__file__ = spec.origin
        return code, module, str(spec.origin), os.getcwd()
    path = Path(program)
    file = path / "__main__.py" if path.is_dir() else path
    if not file.is_file():
        raise NoProgram(
            f"No program at {str(file)!r}: expected a script, a folder with __main__.py, or "
            "-m and a module's name"
        )
    file = file.absolute()  # as `python` has it
    linecache.checkcache(str(file))
    module.__file__ = str(file)
    module.__dict__["__cached__"] = None
    code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    return code, module, program, str(file.resolve().parent)


def _spec(name: str) -> Any:
    sys.path.insert(0, os.getcwd())
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
    except ModuleNotFoundError as error:
        raise NoProgram(f"No module named {error.name!r}, looked for as -m {name}") from None
    finally:
        sys.path.pop(0)
    if spec is None or spec.loader is None:
        raise NoProgram(f"No module named {name!r} that can be run with -m")
    return spec


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _is_library(file: str) -> bool:
    return "site-packages" in Path(file).parts or "dist-packages" in Path(file).parts


def _shown(file: str) -> str:
    try:
        return str(Path(file).resolve().relative_to(Path.cwd()))
    except ValueError:
        return file
