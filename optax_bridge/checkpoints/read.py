"""Reads a checkpoint of any known format, and says which it was."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optax_bridge.checkpoints.errors import CheckpointError, shown
from optax_bridge.checkpoints.msgpack_format import read_msgpack
from optax_bridge.checkpoints.npz import read_npz
from optax_bridge.checkpoints.orbax_read import read_orbax
from optax_bridge.checkpoints.recognise import is_train_state
from optax_bridge.checkpoints.t5x import INDEX, is_t5x, read_t5x

MSGPACK, NPZ, T5X, ORBAX = "Flax msgpack", "npz", "T5X", "Orbax"
# `checkpoint_100` of flax.training, `ckpt-7.flax` of clu; the step may be a decimal number.
_NUMBERED = re.compile(
    r"(?P<stem>.*?)[_-](?P<step>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:\.flax)?", re.ASCII
)


@dataclass(frozen=True)
class Read:
    """A checkpoint as it was found.

    Attributes:
      path: the file or folder itself, the latest of a step-numbered folder.
      format: one of `Flax msgpack`, `npz`, `T5X`, `Orbax`.
      tree: nested dicts; arrays, or objects with `shape`, `dtype` and `__array__`, at the leaves.
      version: of T5X's layout.
    """

    path: Path
    format: str
    tree: Any
    version: int | None = None

    @property
    def description(self) -> str:
        """Format and content in words."""
        if self.format != T5X and is_train_state(self.tree):
            return f"{self.format}, a TrainState"
        return self.format + (f", version {self.version}" if self.version is not None else "")


def read_checkpoint(path: Path | str) -> Read:
    """Reads a checkpoint.

    Args:
      path: a msgpack or npz file, a T5X or Orbax folder, or a folder of step-numbered ones, of
        which the one with the highest number is read.

    Raises:
      CheckpointError: nothing is there, nothing that is known, or something damaged.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(path, "a checkpoint", "nothing of that name", "Check the path.")
    if path.is_dir():
        return _read_folder(path)
    if not path.is_file():
        raise CheckpointError(path, "a file or a folder", "neither", "Check the path.")
    if path.name == INDEX and (path.parent / INDEX).is_file() and _is_index(path):
        return Read(path.parent, T5X, *read_t5x(path.parent))
    return _read_file(path)


def _is_index(path: Path) -> bool:
    return is_t5x(read_msgpack(path))


def _read_folder(path: Path) -> Read:
    if (path / "_METADATA").is_file() or (path / "_CHECKPOINT_METADATA").is_file():
        return Read(path, ORBAX, read_orbax(path))
    if (path / INDEX).is_file() and _is_index(path / INDEX):
        return Read(path, T5X, *read_t5x(path))
    return read_checkpoint(latest(path))


def latest(folder: Path) -> Path:
    """The entry of a folder with the highest step in its name; by number, so 100 is after 20.

    Raises:
      CheckpointError: no name ends in a number, or several series of names do.
    """
    found: dict[str, list[tuple[float, str, Path]]] = {}
    for entry in folder.iterdir():
        match = _NUMBERED.fullmatch(entry.name)
        if match and not entry.name.startswith("."):
            step = float(match["step"])
            found.setdefault(match["stem"], []).append((step, entry.name, entry))
    if len(found) != 1:
        names = sorted(entry.name for entry in folder.iterdir())
        raise CheckpointError(
            folder, "one series of step-numbered checkpoints, such as checkpoint_100",
            shown(names) if names else "an empty folder", "Name the file itself.",
        )  # fmt: skip
    ((_, entries),) = found.items()
    return max(entries)[2]


def _read_file(path: Path) -> Read:
    try:
        with path.open("rb") as file:
            head = file.read(8)
    except OSError as error:
        raise CheckpointError(
            path, "a file that can be read", error.strerror or str(error), "Check the path."
        ) from None
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Read(path, NPZ, read_npz(path))
    # A pickle of protocol 2 or later starts so; in msgpack that is an empty map and then more.
    if head.startswith(b"\x80") and len(head) > 1:
        raise CheckpointError(
            path, "a checkpoint of a known format", "what looks like a pickle",
            "Pickles run code when they are loaded, so they never are. Save it with "
            "flax.serialization.to_bytes in the program that wrote it.",
        )  # fmt: skip
    # Maps and lists; anything else is a number or a text that other bytes would follow.
    if head and not (0x80 <= head[0] <= 0x9F or 0xDC <= head[0] <= 0xDF):
        raise CheckpointError(
            path, "a checkpoint of a known format", f"a file that starts with {shown(head)}",
            "Flax msgpack, npz, T5X and Orbax checkpoints are read; unpack it if it is packed.",
        )  # fmt: skip
    tree = read_msgpack(path)
    if not isinstance(tree, dict | list):
        raise CheckpointError(
            path, "a checkpoint: a tree of names and arrays", shown(tree),
            "Flax msgpack, npz, T5X and Orbax checkpoints are read.",
        )  # fmt: skip
    return Read(path, MSGPACK, tree)
