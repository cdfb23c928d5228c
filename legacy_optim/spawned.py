"""What a process starts with that a program under `run` spawns: the old names, then the program.

`multiprocessing` with the start methods `spawn` and `forkserver` imports the main program anew in
each process, where nothing is installed yet. While `run` lasts, it is told to import this module in
its place, which installs the old names and goes on with the program.
"""

import contextlib
import multiprocessing.spawn
import os
import runpy
from collections.abc import Iterator
from typing import Any

from legacy_optim import shim

_PROGRAM = "LEGACY_OPTIM_PROGRAM"  # environment: what the new process goes on with
_KEYS = ("init_main_from_path", "init_main_from_name")


@contextlib.contextmanager
def reached() -> Iterator[None]:
    """Processes that are spawned in this context know the old names, too."""
    original = multiprocessing.spawn.get_preparation_data

    def prepared(name: str) -> dict[str, Any]:
        data = original(name)
        main = next((f"{key}:{data.pop(key)}" for key in _KEYS if key in data), "")
        os.environ[_PROGRAM] = main
        return {**data, "init_main_from_name": __name__}

    multiprocessing.spawn.get_preparation_data = prepared
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = original
        os.environ.pop(_PROGRAM, None)


def _go_on() -> dict[str, Any]:
    """Runs the program as `multiprocessing` would have; returns its names."""
    shim.install()
    key, _, main = os.environ.get(_PROGRAM, "").partition(":")
    if key == "init_main_from_path":
        return runpy.run_path(main, run_name="__mp_main__")
    if key and not main.endswith("__main__"):
        return runpy.run_module(main, run_name="__mp_main__", alter_sys=True)
    return {}


if __name__ == "__mp_main__":
    globals().update(_go_on())
