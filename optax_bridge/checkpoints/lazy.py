"""Arrays in a checkpoint's folder that are read, by tensorstore, when they are asked for."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, shown

# What tensorstore raises for files that are damaged or promise too much.
ERRORS = (ValueError, TypeError, OSError, NotImplementedError, RuntimeError, MemoryError)


@dataclass(frozen=True)
class LazyArray:
    """An array that is read when NumPy asks for it; `np.asarray` returns a copy of its own.

    Attributes:
      place: how errors call it.
      shape: its shape.
      dtype: its dtype.
    """

    place: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.size * self.dtype.itemsize

    def read(self) -> np.ndarray:
        """Reads the array; may raise any of `ERRORS`."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        """Reads the array.

        Raises:
          CheckpointError: it is damaged, or no longer what it was when the folder was opened.
        """
        del copy
        try:
            array = self.read()
        except ERRORS as error:
            raise CheckpointError(
                self.place, "an array in zarr format", shown(str(error), 200), DAMAGED
            ) from None
        if array.shape != self.shape or array.dtype != self.dtype:
            raise CheckpointError(
                self.place, f"{self.dtype}{list(self.shape)}", f"{array.dtype}{list(array.shape)}",
                "The checkpoint was changed while it was read.",
            )  # fmt: skip
        return array if dtype is None else array.astype(dtype)


def own_files(folder: Path) -> int:
    """The bytes of the files in a folder.

    Raises:
      CheckpointError: there is something else than files and folders, a link that leads out, say.
    """
    total = 0
    for path in folder.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise CheckpointError(
                path, "a file or a folder", "a link or a device",
                "Nothing outside the checkpoint is ever read: copy what belongs to it.",
            )  # fmt: skip
        total += path.stat().st_size if path.is_file() else 0
    return total
