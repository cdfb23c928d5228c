# pyright: strict
"""The start and the end of a process under `run`."""

import atexit
import os
import sys

from legacy_optim import settings, shim


def start() -> None:
    """Installs the old names and prepares the closing lines; `sitecustomize` calls it."""
    shim.install(old_defaults=not os.environ.get(settings.TODAYS_DEFAULTS))
    if os.environ.get(settings.PROCESS) == settings.NEXT:
        os.environ[settings.PROCESS] = str(os.getpid())
    if os.environ.get(settings.PROCESS) == str(os.getpid()):
        # Registered before all else, so called after all else.
        atexit.register(_close, os.getpid(), os.getcwd())


def _close(process: int, folder: str) -> None:
    """The closing lines, in the process that was started, not in its forks."""
    if os.getpid() != process:
        return
    from legacy_optim import closing  # not at every program's start

    closing.close(folder)
    if getattr(sys, "last_type", None) is KeyboardInterrupt:
        # The interpreter ends by the signal if the last text that it evaluated was interrupted, and
        # the standard library has evaluated others meanwhile.
        try:  # noqa: SIM105 - contextlib would be one more module at every program's start
            exec("raise KeyboardInterrupt")
        except KeyboardInterrupt:
            pass
