"""Writes what `flax.serialization.msgpack_restore` reads, an array at a time."""

import math
import struct
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO

import msgpack
import numpy as np

from optax_bridge.checkpoints.formats.flax_msgpack.decode import CHUNKED
from optax_bridge.checkpoints.lazy import ChunkedArray, blocks_of
from optax_bridge.metadata.trees import Leaf, PyTree

MAX_CHUNK_SIZE = 2**30  # as in Flax: msgpack's own limit is four times that
_pack: Any = msgpack.packb


def write_msgpack(file: BinaryIO, node: PyTree) -> None:
    """Writes a tree; the bytes are those of `flax.serialization.msgpack_serialize(tree)`."""
    if isinstance(node, Mapping):
        file.write(msgpack.Packer().pack_map_header(len(node)))
        for key, value in node.items():
            file.write(_pack(key))
            write_msgpack(file, value)
    elif isinstance(node, list | tuple):
        file.write(msgpack.Packer().pack_array_header(len(node)))
        for value in node:
            write_msgpack(file, value)
    elif isinstance(node, np.generic):
        _extension(file, 3, node.shape, node.dtype, blocks_of(node))
    elif hasattr(node, "shape") and hasattr(node, "dtype"):
        if node.nbytes > MAX_CHUNK_SIZE:
            _write_chunks(file, node)
        else:
            _extension(file, 1, node.shape, node.dtype, blocks_of(node))
    elif isinstance(node, complex):
        file.write(_pack(msgpack.ExtType(2, _pack((node.real, node.imag)))))
    else:
        file.write(_pack(node))


def _extension(
    file: BinaryIO,
    code: int,
    shape: tuple[int, ...],
    dtype: np.dtype,
    blocks: Iterable[np.ndarray],
) -> None:
    size = math.prod(shape) * dtype.itemsize
    head = msgpack.Packer().pack_array_header(3) + _pack(shape)
    head += _pack(dtype.name) + _header(0xC4, size)
    length = len(head) + size
    is_fixed = length in (1, 2, 4, 8, 16)
    file.write(bytes([0xD4 + length.bit_length() - 1]) if is_fixed else _header(0xC7, length))
    file.write(bytes([code]) + head)
    for block in blocks:
        file.write(block.data)


def _header(first: int, length: int) -> bytes:
    """A length behind its code: the first of three, for one byte, two or four."""
    if length < 2**8:
        return struct.pack(">BB", first, length)
    if length < 2**16:
        return struct.pack(">BH", first + 1, length)
    return struct.pack(">BI", first + 2, length)


def _write_chunks(file: BinaryIO, leaf: Leaf) -> None:
    count = max(1, MAX_CHUNK_SIZE // leaf.dtype.itemsize)
    starts = range(0, leaf.size, count)
    file.write(msgpack.Packer().pack_map_header(3))
    file.write(_pack(CHUNKED) + _pack(True))
    file.write(_pack("shape") + _pack({str(i): dim for i, dim in enumerate(leaf.shape)}))
    file.write(_pack("chunks") + msgpack.Packer().pack_map_header(len(starts)))
    array = leaf if isinstance(leaf, ChunkedArray) else np.asarray(leaf)  # is read once
    for number, first in enumerate(starts):
        file.write(_pack(str(number)))
        length = min(count, array.size - first)
        start, stop = (at * array.dtype.itemsize for at in (first, first + length))
        _extension(file, 1, (length,), array.dtype, blocks_of(array, start, stop))
