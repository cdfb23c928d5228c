"""Writes a tree in a format, whole or not at all, reads it again and compares."""

import contextlib
import os
import re
import stat
from collections.abc import Generator
from pathlib import Path

import numpy as np

from optax_bridge._atomic import atomic_write, remove_abandoned
from optax_bridge.checkpoints.errors import CheckpointError, brief, place_of
from optax_bridge.checkpoints.formats import Format
from optax_bridge.checkpoints.lazy import blocks_of
from optax_bridge.checkpoints.read import contents_of, format_of, written_as
from optax_bridge.checkpoints.trees import is_array, state_dict
from optax_bridge.metadata.paths import leaves
from optax_bridge.metadata.trees import PyTree

_REMEDY = (
    "Only a checkpoint is replaced: name another destination, or remove the old content yourself."
)


def write(
    destination: Path,
    tree: PyTree,
    file_format: str = "orbax",
    force: bool = False,
    verify: bool = True,
) -> None:
    """Writes a tree, whole or not at all; see `written_whole`."""
    format = written_as(file_format)
    assert format.write is not None
    with written_whole(destination, force=force) as path:
        format.write(path, tree, destination)
        if verify:
            compare(path, tree, destination, format)


@contextlib.contextmanager
def written_whole(destination: Path, *, force: bool = False) -> Generator[Path, None, None]:
    """As `atomic_write`; replaces nothing but a checkpoint, and that with `force` alone."""
    destination = Path(os.path.abspath(destination))  # `.` has no name
    remove_abandoned(destination.parent)
    _check(destination, force)
    with atomic_write(destination) as path:
        yield path
        _check(destination, force)  # something else may be there by now


def _check(destination: Path, force: bool) -> None:
    above = next(path for path in destination.parents if os.path.lexists(path))
    if not above.is_dir():
        found = f"{'a file' if above.exists() else 'a broken link'}, {above}"
        raise CheckpointError(
            destination, "a folder to write into", found, "Name another destination."
        )
    if not os.path.lexists(destination):
        return
    if not force:
        remedy = "Name another one, or pass --force, which replaces a checkpoint."
        raise CheckpointError(destination, "nothing at the destination", _kind(destination), remedy)
    if problem := _problem_of_replacing(destination):
        raise CheckpointError(destination, "a checkpoint to replace", problem, _REMEDY)


def _kind(path: Path) -> str:
    """Returns the kind of an existing path, in words."""
    mode = os.lstat(path).st_mode
    kinds = ((stat.S_ISREG, "a file"), (stat.S_ISDIR, "a folder"), (stat.S_ISLNK, "a link"))
    return next((kind for is_kind, kind in kinds if is_kind(mode)), "a device, a pipe or a socket")


def _problem_of_replacing(destination: Path) -> str:
    """Says why a path is not just a checkpoint; "" for a checkpoint and an empty folder."""
    kind = _kind(destination)
    if kind not in ("a file", "a folder"):
        return kind
    entries = sorted(os.listdir(destination)) if kind == "a folder" else None
    if entries == []:
        return ""
    located = format_of(destination)
    if located is None:
        return "a file of another kind" if entries is None else brief(entries)
    format, _ = located
    if format.write is None:
        return f"one of {format.name}, which is only read"
    try:
        tree = contents_of(format, destination).tree
    except CheckpointError as error:
        return f"a damaged one ({error.place}: {error.found})"
    if not any(is_array(leaf) for _, leaf in leaves(tree)):
        return f"a file of {format.name} without an array in it"
    files = [p for p in destination.rglob("*") if p.is_symlink() or not p.is_dir()]
    names = sorted(path.relative_to(destination).as_posix() for path in files)
    foreign = [name for name in names if not re.fullmatch(format.file_pattern, name)]
    return f"one with other files in its folder: {brief(foreign)}" if foreign else ""


def compare(path: Path, tree: PyTree, name: Path, format: Format) -> None:
    """Reads the result again and compares every leaf, bit for bit."""
    expected = dict(leaves(state_dict(tree)))
    actual = dict(leaves(contents_of(format, path).tree))
    for leaf_path in expected | actual:
        if not _is_same(expected.get(leaf_path), actual.get(leaf_path)):
            raise CheckpointError(
                place_of(name, leaf_path), "the value written", brief(actual.get(leaf_path)),
                "The write failed and left nothing behind: is the disk full or failing?",
            )  # fmt: skip


def _is_same(expected: PyTree, actual: PyTree) -> bool:
    """True if two leaves are the same, bit for bit."""
    if not is_array(expected) or not is_array(actual):
        return is_array(actual) == is_array(expected) and bool(expected == actual)
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    return all(map(np.array_equal, blocks_of(expected), blocks_of(actual)))
