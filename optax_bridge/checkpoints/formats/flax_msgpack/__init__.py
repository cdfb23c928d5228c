"""Flax's msgpack files: `flax.serialization.to_bytes`, `flax.training.checkpoints` before Orbax."""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats import Contents, Format, head_of
from optax_bridge.checkpoints.formats.flax_msgpack.decode import CHUNKED, decode
from optax_bridge.checkpoints.lazy import BLOCK, ChunkedArray, blocks_of, return_memory
from optax_bridge.checkpoints.trees import state_dict
from optax_bridge.metadata.trees import Leaf, PyTree

MAX_CHUNK_SIZE = 2**30  # as in Flax: msgpack's own limit is four times that
_pack: Any = msgpack.packb


def read_msgpack(path: Path) -> PyTree:
    """Reads a file that `flax.serialization.msgpack_serialize` wrote."""
    if path.stat().st_size == 0:
        raise CheckpointError(path, "a checkpoint", "an empty file")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    tree = decode(memoryview(mapped), path)
    return_memory(mapped)  # of data beside the heads of arrays, which come in with them
    return tree


def has_outline(path: Path) -> bool:
    """True if a file starts as a map or a list of msgpack does."""
    head = head_of(path, 2)
    # A pickle of protocol 2 or later starts with an empty map and then more.
    if not head or (head.startswith(b"\x80") and len(head) > 1):
        return False
    return 0x80 <= head[0] <= 0x9F or 0xDC <= head[0] <= 0xDF


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
    elif not hasattr(node, "shape") or not hasattr(node, "dtype"):
        is_complex = isinstance(node, complex)
        file.write(_pack(msgpack.ExtType(2, _pack((node.real, node.imag))) if is_complex else node))
    elif node.nbytes > MAX_CHUNK_SIZE:
        shape = {str(axis): length for axis, length in enumerate(node.shape)}
        pieces = {str(number): piece for number, piece in enumerate(_pieces(node))}
        write_msgpack(file, {CHUNKED: True, "shape": shape, "chunks": pieces})
    else:
        _write_array(file, node)


def _write_array(file: BinaryIO, node: Leaf) -> None:
    code, form = 3 if isinstance(node, np.generic) else 1, (node.shape, node.dtype.name)
    if node.nbytes < BLOCK:
        data = b"".join(block.data for block in blocks_of(node))
        file.write(_pack(msgpack.ExtType(code, _pack((*form, data)))))
        return
    # A length of 32 bits, as msgpack writes it from 2**16 on: of the array, and of its data.
    head = msgpack.Packer().pack_array_header(3) + b"".join(map(_pack, form))
    head += struct.pack(">BI", 0xC6, node.nbytes)
    file.write(struct.pack(">BIB", 0xC9, len(head) + node.nbytes, code) + head)
    for block in blocks_of(node):
        file.write(block.data)


def _pieces(leaf: Leaf) -> list[np.ndarray]:
    """A large array as Flax cuts it; as it is read from Flax's file, it is cut already."""
    if isinstance(leaf, ChunkedArray) and all(p.nbytes <= MAX_CHUNK_SIZE for p in leaf.pieces):
        return list(leaf.pieces)
    count = max(1, MAX_CHUNK_SIZE // leaf.dtype.itemsize)
    return np.split(np.asarray(leaf).reshape(-1), range(count, leaf.size, count))


def _write(path: Path, tree: PyTree, _: Path) -> None:
    with path.open("xb") as file:
        write_msgpack(file, state_dict(tree))


FORMAT = Format(
    "Flax msgpack", "msgpack", find=lambda path: path if has_outline(path) else None,
    read=lambda path: Contents(read_msgpack(path)), write=_write, is_general=True,
)  # fmt: skip
