"""Arrays that are read when they are asked for: by tensorstore, or joined from pieces."""

import math
import mmap
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import DTypeLike

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.metadata.trees import Leaf

MAX_ELEMENTS = 2**48  # of an array; what no machine has, NumPy counts in 64 bits
BLOCK = 2**24  # bytes that are handled at a time
# How much a checkpoint may hold once it is unpacked: a multiple of its own size, and what every
# machine has. Moments that are zero compress to nothing, parameters hardly.
_UNPACKED_RATIO, _UNPACKED_AT_LEAST = 32, 2**28
UNPACKED_LIMIT = "OPTAX_BRIDGE_MAX_UNPACKED_BYTES"  # the environment variable that raises it


@dataclass(frozen=True)
class LazyArray:
    """An array that is read when NumPy asks for it; `np.asarray` returns a new copy."""

    place: str
    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]  # may raise any error of a library

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

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Reads the array."""
        try:
            array = self.read()
        except Exception as error:  # of the library that reads it
            raise CheckpointError(self.place, "an array that can be read", error) from error
        if array.shape != self.shape or array.dtype != self.dtype:
            raise CheckpointError(
                self.place, f"{self.dtype}{list(self.shape)}", f"{array.dtype}{list(array.shape)}",
                "The checkpoint was changed while it was read.",
            )  # fmt: skip
        return array if dtype is None else array.astype(dtype)


@dataclass(frozen=True)
class ChunkedArray(LazyArray):
    """An array that a msgpack file has in pieces; it is joined each time it is asked for."""

    pieces: Sequence[np.ndarray]

    def bytes_at(self, start: int, stop: int) -> np.ndarray:
        """Some of the array's bytes, a copy."""
        parts, offset = list[np.ndarray](), 0
        for piece in self.pieces:
            parts.append(piece.view(np.uint8)[max(start - offset, 0) : max(stop - offset, 0)])
            offset += piece.nbytes
        return np.concatenate(parts)


def blocks_of(leaf: Leaf) -> Iterator[np.ndarray]:
    """Yields an array's bytes in blocks, so that those of a large file are in memory in turn."""
    array = leaf if isinstance(leaf, ChunkedArray) else np.ascontiguousarray(np.asarray(leaf))
    for first in range(0, array.nbytes, BLOCK):
        last = min(first + BLOCK, array.nbytes)
        if isinstance(array, ChunkedArray):
            yield array.bytes_at(first, last)
        else:
            yield array.reshape(-1).view(np.uint8)[first:last]
        _count_read(leaf, last - first)


_read_of: weakref.WeakKeyDictionary[mmap.mmap, int] = weakref.WeakKeyDictionary()


def _count_read(leaf: Leaf, size: int) -> None:
    """Counts bytes read of an array; of a mapped file, the memory of each block is returned."""
    if isinstance(leaf, ChunkedArray):
        leaf = leaf.pieces[0]
    while isinstance(leaf, np.ndarray):
        leaf = leaf.base
    mapped = leaf.obj if isinstance(leaf, memoryview) else None
    if isinstance(mapped, mmap.mmap):
        _read_of[mapped] = _read_of.get(mapped, 0) + size
        if _read_of[mapped] >= BLOCK:
            return_memory(mapped)
            _read_of[mapped] = 0


def return_memory(mapped: mmap.mmap) -> None:
    """Returns the memory of a mapped file to the system, which loads it again when it is read."""
    if hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


def is_shape(dims: object) -> bool:
    """True if these are lengths of axes that NumPy takes, those of an empty array included."""
    if not isinstance(dims, list | tuple) or len(dims) > 32:
        return False
    are_lengths = all(type(dim) is int and 0 <= dim <= MAX_ELEMENTS for dim in dims)
    return are_lengths and math.prod(dim or 1 for dim in dims) <= MAX_ELEMENTS


def check_unpacked(leaves: Iterable[Leaf], path: Path, requested: int = 0) -> None:
    """Checks the declared sizes of a checkpoint's arrays before any is unpacked."""
    packed = (leaf for leaf in leaves if isinstance(leaf, LazyArray))
    unpacked = sum(leaf.nbytes for leaf in packed if not isinstance(leaf, ChunkedArray))
    size, setting = size_of_files(path), os.environ.get(UNPACKED_LIMIT, "")
    limit = max(_UNPACKED_RATIO * size + _UNPACKED_AT_LEAST, requested)
    limit = max(limit, int(setting) if setting.isdecimal() else 0)
    if unpacked > limit:
        raise CheckpointError(
            path, f"arrays of at most {limit:,} bytes in {size:,} bytes of files",
            f"{unpacked:,} bytes", "Nothing was unpacked. If the file is one that you trust, set "
            f"the environment variable {UNPACKED_LIMIT}={unpacked} and try again.",
        )  # fmt: skip


def size_of_files(path: Path) -> int:
    """The bytes of a file, or of those in a folder."""
    if path.is_file():
        return path.stat().st_size
    files = [file for file in path.rglob("*") if file.is_symlink() or not file.is_dir()]
    for file in files:
        if file.is_symlink() or not file.is_file():
            raise CheckpointError(
                file, "a file or a folder", "a link or a device",
                "Nothing outside the checkpoint is ever read: copy the linked file into it.",
            )  # fmt: skip
    return sum(file.stat().st_size for file in files)
