# pyright: strict
"""An error of a user's program as text, with its place."""

import sysconfig
import traceback
from pathlib import Path

import equivalence_tests
import legacy_optim
import optax_bridge

_INSTALLED = {"site-packages", "dist-packages"}
_OTHERS = (
    Path(sysconfig.get_paths()["stdlib"]),
    *(Path(package.__file__ or "").parent for package in (equivalence_tests, legacy_optim)),
    Path(optax_bridge.__file__ or "").parent,
)


def error_text(error: BaseException, first_line: bool = False) -> str:
    """Returns an error as text, with the last line of the user's own program that was reached."""
    message = str(error).strip()
    text = f"raised {type(error).__name__}: {first_line_of(message) if first_line else message}"
    lines = [f for f in traceback.extract_tb(error.__traceback__) if _is_own(f.filename)]
    return f"{text} ({Path(lines[-1].filename).name}:{lines[-1].lineno})" if lines else text


def first_line_of(message: str) -> str:
    """Returns the first line of a message, as JAX's have many."""
    return message.strip().partition("\n")[0][:300]


def _is_own(filename: str) -> bool:
    file = Path(filename)
    if filename.startswith("<") or _INSTALLED.intersection(file.parts):
        return False
    ours = any(file.is_relative_to(folder) for folder in _OTHERS)
    return not ours or file.name.endswith("_test.py")
