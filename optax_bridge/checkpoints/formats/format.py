# pyright: strict
"""`Format`: the name of a checkpoint format, and the functions that find, read and write it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.metadata.trees import Leaf, PyTree


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint."""

    tree: PyTree
    variant: str = ""  # of the format, in words, where it has several


def head_of(path: Path, length: int) -> bytes:
    """The first bytes of a file; none of anything else."""
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(length)


def put(tree: dict[str, PyTree], names: tuple[str, ...], leaf: Leaf, place: str) -> None:
    """Puts a leaf into nested dicts, which are made on the way."""
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
        if type(tree) is not dict:
            break
    if type(tree) is not dict or names[-1] in tree:
        raise CheckpointError(place, "each name once", "a leaf and a folder of one name")
    tree[names[-1]] = leaf


@dataclass(frozen=True)
class Format:
    """A kind of checkpoint.

    Attributes:
      name: how messages call it, such as "Flax msgpack".
      option: how the command line calls it, such as "msgpack".
      find: from a path to the file or folder of the checkpoint; None if it is of another format.
      read: from that file or folder to the contents; arrays may stay on the disk until used.
      write: writes a tree to a path; None if the format is only read. Its last argument is the
        destination, for errors.
      file_pattern: of a folder that is written: a regular expression that its files' names match.
      level: the name under which every checkpoint of the format has its optimizer, if any.
      is_general: True if other formats have the same outward form, and are tried before it.
    """

    name: str
    option: str
    find: Callable[[Path], Path | None]
    read: Callable[[Path], Contents]
    write: Callable[[Path, PyTree, Path], None] | None = None
    file_pattern: str = ""
    level: str | None = None
    is_general: bool = False
