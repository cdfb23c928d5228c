"""A step that is saved again is replaced without a moment in which neither checkpoint is there."""

import shutil
from collections.abc import Callable
from pathlib import Path

import jax
from jax.experimental import multihost_utils

_SUFFIX = ".replaced"


def set_aside(folder: Path) -> None:
    """Renames a checkpoint, so that another can take its name; to be called by all processes."""
    if jax.process_index() == 0:
        folder.rename(_aside(folder))
    _together(f"set aside {folder.name}")


def move_out_of_the_way(folder: Path) -> Path:
    """Renames a checkpoint to a name that no run looks at; to be called by all processes.

    Returns:
      Its new place.
    """
    new, number = folder.with_name(f"aside_{folder.name}"), 1
    while new.exists():
        number += 1
        new = folder.with_name(f"aside_{folder.name}_{number}")
    _together(f"about to move {folder.name}")  # all have seen the same names
    if jax.process_index() == 0:
        folder.rename(new)
    _together(f"moved {folder.name}")
    return new


def settle(base_dir: Path, is_complete: Callable[[Path], bool]) -> None:
    """Removes what was replaced; what was not, as its successor is not there, has its name again.

    To be called by all processes, when no save is under way.

    Args:
      base_dir: the folder of the checkpoints.
      is_complete: whether a folder is a whole checkpoint.
    """
    if jax.process_index() == 0 and base_dir.is_dir():
        for aside in base_dir.glob(f".*{_SUFFIX}"):
            folder = base_dir / aside.name[1:].removesuffix(_SUFFIX)
            if is_complete(folder):
                shutil.rmtree(aside)
            elif not folder.exists():
                aside.rename(folder)
    _together("settle")


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_SUFFIX}")


def _together(name: str) -> None:
    """Waits until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"optax_bridge: {name}")
