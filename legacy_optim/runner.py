"""Runs a program as `python` would, because `python` runs it, with the old names in force.

The process becomes a fresh interpreter with the program's own command line, so that all is as in
plain Python: `__main__`, the modules that are loaded, signals, exit codes, processes that the
program starts. JAX is not imported before the program does.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from legacy_optim import settings

MISUSE = 2


def run(
    program: str,
    args: Sequence[str] = (),
    *,
    as_module: bool = False,
    quiet: bool = False,
    todays_defaults: bool = False,
    advice: str = "",
) -> int:
    """Becomes a script's process, or a module's as `python -m` does."""
    problem = _problem_of_python() or ("" if as_module else _problem_of_program(program))
    if problem:
        print(f"optax-bridge: {problem}", file=sys.stderr)
        return MISUSE
    becomes = os.name == "posix"
    name = f"legacy_optim-{os.getpid()}-{os.urandom(4).hex()}.uses"
    environment = settings.environment(
        str(os.getpid()) if becomes else settings.NEXT,
        os.path.join(tempfile.gettempdir(), name),
        quiet=quiet,
        todays_defaults=todays_defaults,
        advice=advice,
    )
    # The interpreter's own options (-W, -X, -O), which multiprocessing hands on, too; -i and -u,
    # which it does not.
    flags = subprocess._args_from_interpreter_flags()  # pyright: ignore[reportAttributeAccessIssue]
    flags += ["-i"] * sys.flags.inspect
    flags += ["-u"] * getattr(sys.stdout, "write_through", False)
    what = ["-m", program] if as_module else [program]
    command = [sys.executable, *flags, *what, *args]
    sys.stdout.flush()
    sys.stderr.flush()
    if becomes:
        os.execve(sys.executable, command, environment)
    return subprocess.call(command, env=environment)


def _problem_of_python() -> str:
    """Returns why this interpreter cannot run old programs, or the empty text."""
    if sys.flags.ignore_environment or sys.flags.no_site:
        return (
            "python was started with -I, -E or -S, so the old names cannot be installed before the "
            "program: leave these flags out"
        )
    return ""


def _problem_of_program(program: str) -> str:
    """Returns why a path cannot be run and what to do instead, or the empty text."""
    if program.lower().endswith(".ipynb"):
        return (
            f"{program}: expected a script, found a notebook, which python reads as a dict and "
            "ignores. Put `import legacy_optim; legacy_optim.install()` into its first cell and "
            f"run it in Jupyter, or run the script that `jupyter nbconvert --to script {program}` "
            f"writes. To move it to Optax: optax-bridge migrate --write {program}"
        )
    if program == "-":
        return ""
    if not os.path.exists(program):
        return (
            f"{program}: expected a script, or a folder with __main__.py, found nothing of that "
            "name. Check the path; a module's name goes after -m"
        )
    if os.path.isdir(program) and not os.path.exists(os.path.join(program, "__main__.py")):
        return f"{program}: expected a script, found a folder without __main__.py. Name its script"
    return ""
