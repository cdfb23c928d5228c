"""Writes what `flax.serialization.msgpack_restore` reads, an array at a time."""

import struct
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import msgpack
import numpy as np

from optax_bridge.checkpoints.msgpack_format import CHUNKED, release

MAX_CHUNK_SIZE = 2**30  # as in Flax: msgpack's own limit is four times that
_BLOCK = 2**24
_pack: Any = msgpack.packb


def write_msgpack(file: BinaryIO, tree: Any, progress: Callable[[int], None] | None = None) -> None:
    """Writes a tree; the bytes are those of `flax.serialization.msgpack_serialize(tree)`.

    Args:
      file: opened for writing in binary mode.
      tree: nested dicts with arrays, numbers, text and None at the leaves. Arrays are written in
        blocks of 16 MiB, without a copy of the whole.
      progress: called with the number of bytes after each block.
    """
    told = progress or (lambda count: None)
    _write(file, tree, told)


def _write(file: BinaryIO, node: Any, told: Callable[[int], None]) -> None:
    if isinstance(node, Mapping):
        file.write(msgpack.Packer().pack_map_header(len(node)))
        for key, value in node.items():
            file.write(_pack(key))
            _write(file, value, told)
    elif isinstance(node, list | tuple):
        file.write(msgpack.Packer().pack_array_header(len(node)))
        for value in node:
            _write(file, value, told)
    elif isinstance(node, np.generic):
        _extension(file, 3, np.asarray(node), told)
    elif hasattr(node, "shape") and hasattr(node, "dtype"):
        array = np.asarray(node)
        if array.nbytes > MAX_CHUNK_SIZE:
            _write(file, _chunked(array), told)
        else:
            _extension(file, 1, array, told)
    elif isinstance(node, complex):
        file.write(_pack(msgpack.ExtType(2, _pack((node.real, node.imag)))))
    else:
        file.write(_pack(node))


def _extension(file: BinaryIO, code: int, array: np.ndarray, told: Callable[[int], None]) -> None:

    head = msgpack.Packer().pack_array_header(3) + _pack(array.shape)
    head += _pack(array.dtype.name) + _bin_header(array.nbytes)
    file.write(_ext_header(code, len(head) + array.nbytes))
    file.write(head)
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        file.write(block.data)
        told(block.size)
    if flat.size > _BLOCK:
        release(array)


def _bin_header(length: int) -> bytes:
    if length < 2**8:
        return struct.pack(">BB", 0xC4, length)
    return struct.pack(">BH", 0xC5, length) if length < 2**16 else struct.pack(">BI", 0xC6, length)


def _ext_header(code: int, length: int) -> bytes:
    if length in (1, 2, 4, 8, 16):
        return struct.pack(">Bb", 0xD4 + (1, 2, 4, 8, 16).index(length), code)
    if length < 2**8:
        return struct.pack(">BBb", 0xC7, length, code)
    if length < 2**16:
        return struct.pack(">BHb", 0xC8, length, code)
    return struct.pack(">BIb", 0xC9, length, code)


def _chunked(array: np.ndarray) -> dict[str, Any]:
    flat = np.ascontiguousarray(array).reshape(-1)
    count = max(1, MAX_CHUNK_SIZE // array.dtype.itemsize)
    starts = range(0, flat.size, count)
    return {
        CHUNKED: True,
        "shape": {str(i): dim for i, dim in enumerate(array.shape)},
        "chunks": {str(i): flat[start : start + count] for i, start in enumerate(starts)},
    }
