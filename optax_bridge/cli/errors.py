# pyright: strict
"""An error of a user's program as text, with its place."""

import sysconfig
import traceback
from pathlib import Path

import optax_bridge

_INSTALLED = {"site-packages", "dist-packages"}
# Packages of this project, which lie side by side.
OURS = ("optax_bridge", "legacy_optim", "equivalence_tests", "migration_guide")
_LIBRARIES = (
    Path(sysconfig.get_paths()["stdlib"]),
    *(Path(optax_bridge.__file__).parents[1] / package for package in OURS[:-1]),
)


def error_text(error: BaseException, first_line: bool = False) -> str:
    """Returns an error as text, with the innermost line of the user's own program."""
    message = str(error).strip()
    text = f"raised {type(error).__name__}: {first_line_of(message) if first_line else message}"
    return text + place_of(error)


def place_of(error: BaseException) -> str:
    """Returns " (train.py:3)", the innermost line of the user's own program, or ""."""
    frame = user_frame(error)
    return "" if frame is None else f" ({Path(frame.filename).name}:{frame.lineno})"


def first_line_of(message: str) -> str:
    """Returns the first line of a message, as JAX's have many."""
    return message.strip().partition("\n")[0][:300]


def user_frame(error: BaseException) -> traceback.FrameSummary | None:
    """Returns the innermost frame of the user's program, not of this or an installed package."""
    if isinstance(error, SyntaxError) and error.filename and _is_users(error.filename):
        line = (error.text or "").strip()
        return traceback.FrameSummary(error.filename, error.lineno, "<module>", line=line)
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return next((frame for frame in frames if _is_users(frame.filename)), None)


def _is_users(filename: str) -> bool:
    file = Path(filename)
    if filename.startswith("<") or _INSTALLED.intersection(file.parts):
        return False
    ours = any(file.is_relative_to(folder) for folder in _LIBRARIES)
    return not ours or file.name.endswith("_test.py")
