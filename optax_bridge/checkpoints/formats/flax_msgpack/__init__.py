"""Flax's msgpack files: `flax.serialization.to_bytes`, `flax.training.checkpoints` before Orbax."""

import mmap
from pathlib import Path

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.formats.flax_msgpack.encode import write_msgpack
from optax_bridge.checkpoints.formats.format import Contents, Format
from optax_bridge.checkpoints.trees import state_dict
from optax_bridge.metadata.trees import PyTree


def read_msgpack(path: Path) -> PyTree:
    """Reads a file that `flax.serialization.msgpack_serialize` wrote."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise CheckpointError(path, "a checkpoint", "an empty file", DAMAGED)
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as error:
        raise CheckpointError(
            path, "a file that can be read", error.strerror or str(error), "Check the path."
        ) from None
    return decode(data, path)


def has_outline(path: Path) -> bool:
    """True if a file starts as a map or a list of msgpack does."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(2)
    # A pickle of protocol 2 or later starts with an empty map and then more.
    if not head or (head.startswith(b"\x80") and len(head) > 1):
        return False
    return 0x80 <= head[0] <= 0x9F or 0xDC <= head[0] <= 0xDF


def _find(path: Path) -> Path | None:
    return path if has_outline(path) else None


def _read(path: Path) -> Contents:
    return Contents(read_msgpack(path))


def _write(path: Path, tree: PyTree, name: Path) -> None:
    del name
    with path.open("xb") as file:
        write_msgpack(file, state_dict(tree))


FORMAT = Format("Flax msgpack", "msgpack", find=_find, read=_read, write=_write, is_general=True)
