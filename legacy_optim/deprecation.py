# pyright: strict
"""Deprecation warnings: once a process, at the line of the program that uses the old API."""

import contextlib
import sys
import warnings
from collections.abc import Generator
from contextvars import ContextVar

_said: set[str] = set()
_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


def say_once(message: str) -> None:
    """Warns once a process, at the line that called into this package."""
    if message in _said or _quiet.get():
        return
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] == "legacy_optim":
        frame = frame.f_back
    # Python shows deprecations in __main__ only; under that name it is seen, and filters of the
    # user's still hold.
    warnings.warn_explicit(
        message,
        DeprecationWarning,
        frame.f_code.co_filename,
        frame.f_lineno,
        module="__main__",
    )
    _said.add(message)  # not before: where warnings are errors, every call is one


@contextlib.contextmanager
def describing() -> Generator[None]:
    """Within it nothing is said: an old definition says what a checkpoint was written with."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)
