"""Reads a checkpoint of any known format, and says which it was."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optax_bridge.checkpoints.errors import CheckpointError, shown
from optax_bridge.checkpoints.msgpack_format import read_msgpack
from optax_bridge.checkpoints.npz import read_npz
from optax_bridge.checkpoints.orbax_read import read_orbax
from optax_bridge.checkpoints.recognise import find_states
from optax_bridge.checkpoints.t5x import INDEX, is_t5x, read_t5x

MSGPACK, NPZ, T5X, ORBAX = "Flax msgpack", "npz", "T5X", "Orbax"
# `checkpoint_100` of flax.training, `ckpt-7.flax` of clu; the step may be a decimal number.
_NUMBERED = re.compile(
    r"(?P<stem>.*?)[_-](?P<step>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:\.flax)?", re.ASCII
)
# What lies beside them: hidden files, rests of Orbax and T5X, TensorBoard's logs of a host `w-0`.
_NO_CHECKPOINT = re.compile(r"\.|.*\.(?:orbax-checkpoint-)?tmp\b|events\.out\.tfevents\.")
_TENSORFLOW = b"model_checkpoint_path"  # how its file `checkpoint` starts, which clu leaves
_LEVELS = 4  # `run_3/checkpoint_100` is two
_USUAL = ("checkpoint", "ckpt")  # the prefixes of flax.training and T5X, and of clu


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
        states = [] if self.format == T5X else list(find_states(self.tree))
        if states:
            where = ", ".join("/".join(path) for path in states if path)
            return f"{self.format}, a TrainState" + (f" at {where}" if where else "")
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
    try:
        return _read(path)
    except OSError as error:
        raise CheckpointError(
            path, "a file or folder that can be read", shown(error.strerror or str(error)),
            "Check the path and its permissions.",
        ) from None  # fmt: skip


def _read(path: Path, levels: int = _LEVELS) -> Read:
    if levels == 0:
        raise CheckpointError(
            path, f"a checkpoint within {_LEVELS} levels of numbered folders", "yet another",
            "Name the file itself.",
        )  # fmt: skip
    if not path.exists():
        raise CheckpointError(path, "a checkpoint", "nothing of that name", "Check the path.")
    if path.is_dir():
        return _read_folder(path, levels)
    if not path.is_file():
        raise CheckpointError(path, "a file or a folder", "neither", "Check the path.")
    if path.name == INDEX and _is_index(path):
        return Read(path.parent, T5X, *read_t5x(path.parent))
    return _read_file(path)


def _is_index(path: Path) -> bool:
    with path.open("rb") as file:
        if file.read(len(_TENSORFLOW)) == _TENSORFLOW:
            return False
    return is_t5x(read_msgpack(path))


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder is itself a checkpoint, of Orbax or of T5X, and not one of several."""
    if _is_orbax(folder):
        return True
    return (folder / INDEX).is_file() and _is_index(folder / INDEX)


def _is_orbax(folder: Path) -> bool:
    return (folder / "_METADATA").is_file() or (folder / "_CHECKPOINT_METADATA").is_file()


def _read_folder(path: Path, levels: int) -> Read:
    if _is_orbax(path):
        return Read(path, ORBAX, read_orbax(path))
    if (path / INDEX).is_file() and _is_index(path / INDEX):
        return Read(path, T5X, *read_t5x(path))
    return _read(latest(path), levels - 1)


def latest(folder: Path) -> Path:
    """The entry of a folder with the highest step in its name; by number, so 100 is after 20.

    Of several series of names it is `checkpoint_N`, as for `flax.training.checkpoints`.

    Raises:
      CheckpointError: no name ends in a number, or several series do and none has a usual name.
    """
    found: dict[str, list[tuple[float, str, Path]]] = {}
    for entry in folder.iterdir():
        match = _NUMBERED.fullmatch(entry.name)
        if match and not _NO_CHECKPOINT.match(entry.name):
            step = float(match["step"])
            found.setdefault(match["stem"], []).append((step, entry.name, entry))
    usual = [stem for stem in _USUAL if stem in found]
    if len(found) != 1 and not usual:
        names = sorted(entry.name for entry in folder.iterdir())
        raise CheckpointError(
            folder, "one series of step-numbered checkpoints, such as checkpoint_100",
            shown(names) if names else "an empty folder", "Name the file itself.",
        )  # fmt: skip
    return max(found[usual[0] if usual else next(iter(found))])[2]


def _read_file(path: Path) -> Read:
    with path.open("rb") as file:
        head = file.read(8)
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
