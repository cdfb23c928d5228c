"""Writes a tree in a format, reads it again and compares."""

from pathlib import Path

import numpy as np

from optax_bridge.checkpoints.destination import written_whole
from optax_bridge.checkpoints.errors import CheckpointError, brief, place_of
from optax_bridge.checkpoints.formats.format import Format
from optax_bridge.checkpoints.lazy import blocks_of
from optax_bridge.checkpoints.read import contents_of, written_as
from optax_bridge.checkpoints.trees import is_array, state_dict
from optax_bridge.metadata.paths import leaves
from optax_bridge.metadata.trees import PyTree


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


def compare(path: Path, tree: PyTree, name: Path, format: Format) -> None:
    """Reads again what was written and compares every leaf, bit for bit."""
    expected = dict(leaves(state_dict(tree)))
    actual = dict(leaves(contents_of(format, path).tree))
    for leaf_path in [*expected, *(p for p in actual if p not in expected)]:
        if not same(expected.get(leaf_path), actual.get(leaf_path)):
            raise CheckpointError(
                place_of(name, leaf_path), "what was written", brief(actual.get(leaf_path)),
                "Writing failed, nothing was left behind: is the disk full or failing?",
            )  # fmt: skip


def same(expected: PyTree, actual: PyTree) -> bool:
    """True if two leaves are the same, bit for bit."""
    if not is_array(expected):
        return is_array(actual) == is_array(expected) and bool(expected == actual)
    if not is_array(actual) or expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    pairs = zip(blocks_of(expected), blocks_of(actual), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)
