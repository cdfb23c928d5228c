# pyright: strict
"""`Format`: the name of a checkpoint format, and the functions that find, read and write it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError
from optax_bridge.metadata.trees import Leaf, PyTree

Written = Callable[[int], None]  # told of the bytes written so far


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint.

    Attributes:
      tree: nested dicts and lists; arrays, or objects with `shape`, `dtype` and `__array__` that
        are read when asked for, numbers and text at the leaves.
      version: of the format's layout, where it has one.
      variant: in words, where a format has several without a version.
    """

    tree: PyTree
    version: int | None = None
    variant: str = ""


def put(tree: dict[str, PyTree], names: tuple[str, ...], leaf: Leaf, place: str) -> None:
    """Puts a leaf into nested dicts, which are made on the way.

    Raises:
      CheckpointError: there is something of that name.
    """
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
        if type(tree) is not dict:
            break
    if type(tree) is not dict or names[-1] in tree:
        raise CheckpointError(place, "each name once", "a leaf and a folder of one name", DAMAGED)
    tree[names[-1]] = leaf


@dataclass(frozen=True)
class Format:
    """A kind of checkpoint.

    Attributes:
      name: in words, as `inspect` says it.
      option: its name on the command line and in Python.
      find: takes a path that exists and returns the checkpoint that it names, by the content:
        usually the path itself, None if it is no checkpoint of this format. Damage is no reason for
        None where the outline can be told: `read` says what is wrong.
      read: reads what `find` returned. Raises `CheckpointError` for what is damaged; anything else
        that a library raises becomes one, with the file's name.
      write: takes the path to make, a tree, a function to be told of the bytes written, and how
        errors call the path; None where the format is only read.
      file_pattern: of a folder, a pattern of the '/'-joined paths of the files that belong to the
        checkpoint; `--force` leaves a folder alone in which there are others, and every folder of
        a format without a pattern.
      level: the name under which every checkpoint of this format has its optimizer, if any.
      is_general: asked last, since checkpoints of other formats have its outline as well.
    """

    name: str
    option: str
    find: Callable[[Path], Path | None]
    read: Callable[[Path], Contents]
    write: Callable[[Path, PyTree, Written, Path], None] | None = None
    file_pattern: str | None = None
    level: str | None = None
    is_general: bool = False
