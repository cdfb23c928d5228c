"""Writes Orbax checkpoints of a TrainState's fields: `step`, `params`, `opt_state` and others."""

from collections import Counter
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from optax_bridge.checkpoints.devices import quiet_orbax
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.trees import is_array, state_dict
from optax_bridge.metadata.paths import leaf_name, leaves
from optax_bridge.metadata.trees import Leaf, PyTree


class _Empty(np.ndarray):
    """An array without elements, as Orbax takes it."""

    size = 1  # pyright: ignore[reportAssignmentType]


def write_orbax(folder: Path, tree: PyTree, place: Path | None = None) -> None:
    """Writes a checkpoint that `orbax.checkpoint.StandardCheckpointer` restores."""
    _check_names(tree)
    arrays = [leaf for leaf in jax.tree.leaves(tree) if is_array(leaf)]
    # Arrays are written side by side, as far as this many bytes go.
    largest = max((leaf.nbytes for leaf in arrays), default=0)
    use_zarr3 = any(leaf.size == 0 for leaf in arrays)
    tree = jax.tree.map(_without_size, tree) if use_zarr3 else tree
    handler = ocp.PyTreeCheckpointHandler(
        save_concurrent_gb=max(1, -(-2 * largest // 10**9)), use_zarr3=use_zarr3,
        use_compression=False,
    )  # fmt: skip
    save = ocp.args.PyTreeSave(tree)  # pyright: ignore[reportCallIssue]
    with ocp.Checkpointer(handler) as checkpointer, quiet_orbax():
        try:
            checkpointer.save(folder.absolute(), args=save)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise CheckpointError(
                place or folder, "that Orbax writes the checkpoint", error,
                "Is the disk full? --format msgpack writes one file without Orbax.",
            ) from error  # fmt: skip


def _without_size(leaf: Leaf) -> Leaf:
    return np.asarray(leaf).view(_Empty) if is_array(leaf) and leaf.size == 0 else leaf


def _check_names(tree: PyTree) -> None:
    counted = Counter(".".join(path) for path, _ in leaves(state_dict(tree)))
    for path, _ in leaves(state_dict(tree)):
        if counted[".".join(path)] > 1:
            raise CheckpointError(
                leaf_name(path), "names that differ when joined with '.'", "two leaves of one name",
                "Orbax cannot hold both: rename one, or write msgpack with --format msgpack.",
            )  # fmt: skip
