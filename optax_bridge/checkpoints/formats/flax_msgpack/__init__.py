"""Flax's msgpack files: `flax.serialization.to_bytes`, `flax.training.checkpoints` before Orbax."""

import mmap
from pathlib import Path

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.formats.flax_msgpack.encode import write_msgpack
from optax_bridge.checkpoints.formats.format import Contents, Format, head_of
from optax_bridge.checkpoints.trees import state_dict
from optax_bridge.metadata.trees import PyTree


def read_msgpack(path: Path) -> PyTree:
    """Reads a file that `flax.serialization.msgpack_serialize` wrote."""
    if path.stat().st_size == 0:
        raise CheckpointError(path, "a checkpoint", "an empty file")
    with path.open("rb") as file:
        return decode(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), path)


def has_outline(path: Path) -> bool:
    """True if a file starts as a map or a list of msgpack does."""
    head = head_of(path, 2)
    # A pickle of protocol 2 or later starts with an empty map and then more.
    if not head or (head.startswith(b"\x80") and len(head) > 1):
        return False
    return 0x80 <= head[0] <= 0x9F or 0xDC <= head[0] <= 0xDF


def _write(path: Path, tree: PyTree, _: Path) -> None:
    with path.open("xb") as file:
        write_msgpack(file, state_dict(tree))


FORMAT = Format(
    "Flax msgpack", "msgpack", find=lambda path: path if has_outline(path) else None,
    read=lambda path: Contents(read_msgpack(path)), write=_write, is_general=True,
)  # fmt: skip
