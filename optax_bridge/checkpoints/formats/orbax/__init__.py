"""Orbax checkpoints, as `optax-bridge convert` writes a `TrainState` unless told otherwise."""

import gc
import re
from collections import Counter
from pathlib import Path

import jax
import numpy as np

from optax_bridge.checkpoints.devices import on_device, quiet_orbax
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats import Contents, Format
from optax_bridge.checkpoints.formats.orbax.read import METADATA, read_orbax
from optax_bridge.checkpoints.lazy import BLOCK
from optax_bridge.checkpoints.trees import is_array, state_dict
from optax_bridge.metadata.paths import leaf_name, leaves
from optax_bridge.metadata.trees import Leaf, PyTree

_SEVERAL_ITEMS = re.compile(rb'"item_handlers":\s*\{\s*"')


class _Empty(np.ndarray):
    """An array without elements, as Orbax takes it."""

    size = 1  # pyright: ignore[reportAssignmentType]


def _find(path: Path) -> Path | None:
    """The folder of a tree, also if its metadata are lost; None for one of several items."""
    of_folder = path / "_CHECKPOINT_METADATA"
    is_whole = of_folder.is_file() and not _SEVERAL_ITEMS.search(of_folder.read_bytes())
    return path if is_whole or (path / METADATA).is_file() else None


def write_orbax(folder: Path, tree: PyTree, place: Path | None = None) -> None:
    """Writes a checkpoint that `orbax.checkpoint.StandardCheckpointer` restores."""
    import orbax.checkpoint as ocp  # slow

    _check_names(tree)
    arrays = [leaf for leaf in jax.tree.leaves(tree) if is_array(leaf)]
    largest = max((leaf.nbytes for leaf in arrays), default=0)
    use_zarr3 = any(leaf.size == 0 for leaf in arrays)
    handler = ocp.PyTreeCheckpointHandler(
        # Arrays are written side by side, as far as this goes.
        save_concurrent_gb=max(1, -(-2 * largest // 10**9)), use_zarr3=use_zarr3,
        use_compression=False,
    )  # fmt: skip
    tree = jax.tree.map(_without_size, tree) if use_zarr3 else tree
    save = ocp.args.PyTreeSave(tree)  # pyright: ignore[reportCallIssue]
    with ocp.Checkpointer(handler) as checkpointer, quiet_orbax():
        try:
            checkpointer.save(folder.absolute(), args=save)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise CheckpointError(
                place or folder, "that Orbax writes the checkpoint", error,
                "Is the disk full? --format msgpack writes one file without Orbax.",
            ) from error  # fmt: skip


def _write(folder: Path, tree: PyTree, place: Path) -> None:
    # Arrays that JAX holds are restored as such, NumPy's as NumPy's.
    write_orbax(folder, jax.tree.map(on_device, tree), place)
    if sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if is_array(leaf)) > BLOCK:
        gc.collect()  # Orbax leaves the arrays in circles, of which some were in use till now


def _without_size(leaf: Leaf) -> Leaf:
    return np.asarray(leaf).view(_Empty) if is_array(leaf) and leaf.size == 0 else leaf


def _check_names(tree: PyTree) -> None:
    counted = Counter(".".join(path) for path, _ in leaves(state_dict(tree)))
    for path, _ in leaves(state_dict(tree)):
        if counted[".".join(path)] > 1:
            raise CheckpointError(
                leaf_name(path), "names that differ when joined with '.'", "two of one name",
                "Orbax cannot hold both: rename one, or write msgpack with --format msgpack.",
            )  # fmt: skip


# Metadata; one store for all arrays, or a folder of zarr 2 or 3 for each.
OWN = (
    r"_METADATA|_CHECKPOINT_METADATA|_sharding|_strings\.json|commit_success\.txt|checkpoint"
    r"|array_metadatas/process_\d+"
    r"|(ocdbt\.process_\d+/)?(manifest\.ocdbt|d/[0-9a-f]{32})"
    r"|[^/]+/(\.zarray|zarr\.json|c|(c/)?\d+([./]\d+)*)"
)

# Steps of a trainer have its outline as well.
FORMAT = Format(
    "Orbax", "orbax", find=_find, read=lambda path: Contents(read_orbax(path)), write=_write,
    file_pattern=OWN, is_general=True,
)  # fmt: skip
