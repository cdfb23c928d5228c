"""Which checkpoints stay, and under which names.

A step that is saved again is replaced without a moment in which neither checkpoint is there.
"""

import dataclasses
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import jax
from jax.experimental import multihost_utils

_SUFFIX = ".replaced"


class _Saved(Protocol):
    @property
    def step(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class KeepLastAndEvery:
    """Orbax's policy for: the last few, and of the older ones some at a distance.

    Attributes:
      keep_last_n: how many of the newest stay.
      keep_every_n_steps: of the older ones, from the oldest on, each stays that is at least so many
        steps after the one that stayed before; None for none.
    """

    keep_last_n: int
    keep_every_n_steps: int | None = None

    def should_preserve(
        self, checkpoints: Sequence[_Saved], *, context: object = None
    ) -> list[bool]:
        """For each checkpoint, by rising step, whether it stays."""
        del context
        older = max(0, len(checkpoints) - self.keep_last_n)
        decisions: list[bool] = []
        last: int | None = None
        for index, checkpoint in enumerate(checkpoints):
            keep = index >= older
            if not keep and self.keep_every_n_steps is not None:
                keep = last is None or checkpoint.step - last >= self.keep_every_n_steps
                last = checkpoint.step if keep else last
            decisions.append(keep)
        return decisions


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
