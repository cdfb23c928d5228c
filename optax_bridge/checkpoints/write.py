"""Writes a tree in a format, reads it again and compares."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from optax_bridge.checkpoints.destination import written_whole
from optax_bridge.checkpoints.errors import CheckpointError, brief
from optax_bridge.checkpoints.formats.format import Format
from optax_bridge.checkpoints.lazy import BLOCK, bytes_of, release
from optax_bridge.checkpoints.read import contents_of, written_as
from optax_bridge.checkpoints.trees import is_array, state_dict
from optax_bridge.metadata.paths import leaf_name, leaves
from optax_bridge.metadata.trees import PyTree

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in all


def write(
    destination: Path,
    tree: PyTree,
    file_format: str = "orbax",
    force: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
) -> None:
    """Writes a tree, whole or not at all; see `written_whole`."""
    format, tell = written_as(file_format), progress or (lambda phase, done, total: None)
    assert format.write is not None
    total = sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if is_array(leaf))
    with written_whole(destination, force=force) as path:
        tell("write", 0, total)
        format.write(path, tree, lambda done: tell("write", min(done, total), total), destination)
        tell("write", total, total)
        if verify:
            compare(path, tree, destination, format, tell)


def compare(path: Path, tree: PyTree, name: Path, format: Format, tell: Progress) -> None:
    """Reads again what was written and compares every leaf, bit for bit."""
    written = contents_of(format, path).tree
    expected = dict(leaves(state_dict(tree)))
    actual = dict(leaves(written))
    total = sum(leaf.nbytes for leaf in expected.values() if is_array(leaf))
    done = 0
    for leaf_path in [*expected, *(p for p in actual if p not in expected)]:
        pair = expected.get(leaf_path), actual.get(leaf_path)
        if not same(*pair):
            raise CheckpointError(
                f"{name}, {leaf_name(leaf_path)}", "what was written", brief(pair[1]),
                "Writing failed, nothing was left behind: is the disk full or failing?",
            )  # fmt: skip
        done += getattr(pair[0], "nbytes", 0)
        tell("verify", done, total)


def same(expected: PyTree, actual: PyTree) -> bool:
    """True if two leaves are the same, bit for bit."""
    if not is_array(expected):
        return is_array(actual) == is_array(expected) and bool(expected == actual)
    if not is_array(actual) or expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    one, other, size = bytes_of(expected), bytes_of(actual), expected.nbytes
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        if not np.array_equal(one(start, stop), other(start, stop)):
            return False
        if size > BLOCK:
            release(expected)
            release(actual)
    return True
