# pyright: strict
"""The formats of checkpoints: each module in this folder defines one as `FORMAT`.

A format says by which content it is recognised, reads a checkpoint into nested dicts whose arrays
may be left on the disk until somebody asks for them, and, where it can, writes one. Everything else
(`inspect`, `convert`, `--format`, restoring) asks `read`, so a new format is one file here:

    FORMAT = Format("Toy", "toy", find=found, read=contents, write=write)

A longer one is a folder with a `FORMAT` in its `__init__.py`.
"""

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
        raise CheckpointError(place, "each name once", "a leaf and a folder with the same name")
    tree[names[-1]] = leaf


@dataclass(frozen=True)
class Format:
    """A kind of checkpoint: how it is called, recognised, read and, where it can be, written."""

    name: str  # in messages, such as "Flax msgpack"
    option: str  # of the command line, such as "msgpack"
    # From a path to the file or folder of the checkpoint; None if it is of another format.
    find: Callable[[Path], Path | None]
    read: Callable[[Path], Contents]  # whose arrays may stay on the disk until they are used
    # Writes a tree to a path; the last argument is the destination, for errors.
    write: Callable[[Path, PyTree, Path], None] | None = None
    file_pattern: str = ""  # of the names of the files in a folder that is written
    is_general: bool = False  # other formats have the same outward form, and are tried before it
