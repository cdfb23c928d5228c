"""Orbax checkpoints of a TrainState's fields: `step`, `params`, `opt_state` and further ones."""

import logging
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, leaf_name, shown
from optax_bridge.checkpoints.recognise import is_array, leaves

_GIB = 2**30

# Orbax tells what it does at every step; errors come as exceptions anyway.
logging.getLogger("absl").setLevel(logging.ERROR)


def write_orbax(folder: Path, tree: Any) -> None:
    """Writes a checkpoint that `orbax.checkpoint.StandardCheckpointer` restores.

    Args:
      folder: does not exist yet.
      tree: a pytree of arrays; NamedTuples and dataclasses become folders of their fields' names.

    Raises:
      CheckpointError: two leaves have the same name in Orbax, which joins names with '.'; a leaf
        has no elements, which Orbax refuses; writing fails.
    """
    _check_names(tree)
    # Arrays are compressed and written side by side, as far as this many bytes go.
    largest = max((_bytes(leaf) for leaf in jax.tree.leaves(tree)), default=0)
    at_once = max(1, -(-2 * largest // 10**9))
    handler = ocp.PyTreeCheckpointHandler(save_concurrent_gb=at_once, use_compression=False)
    with ocp.Checkpointer(handler) as checkpointer:
        try:
            checkpointer.save(folder.absolute(), args=ocp.args.PyTreeSave(tree))  # pyright: ignore
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            raise CheckpointError(
                folder, "that Orbax writes the checkpoint", shown(str(error), 300),
                "Is the disk full? --format msgpack writes one file without Orbax.",
            ) from error  # fmt: skip


def read_orbax(folder: Path, template: Any = None) -> Any:
    """Reads a checkpoint.

    Args:
      folder: the checkpoint.
      template: a pytree of `jax.ShapeDtypeStruct`, whose containers the result has; nested dicts if
        None.

    Returns:
      The tree, with NumPy arrays.

    Raises:
      CheckpointError: it cannot be read, or is no tree like the template.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # sharding is not asked for: NumPy arrays
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
                if template is None:
                    metadata = checkpointer.metadata(folder.absolute()).item_metadata
                    like = getattr(metadata, "tree", metadata)
                else:
                    like = template
                args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
                restore = ocp.args.PyTreeRestore(item=template, restore_args=args)  # pyright: ignore
                return checkpointer.restore(folder.absolute(), args=restore)
    except (ValueError, TypeError, KeyError, OSError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            folder, "an Orbax checkpoint" + (" of this state" if template is not None else ""),
            shown(str(error), 300), DAMAGED,
        ) from error  # fmt: skip


def _bytes(leaf: Any) -> int:
    return leaf.nbytes if is_array(leaf) else 0


def _check_names(tree: Any) -> None:
    from flax.serialization import to_state_dict

    named = list(leaves(to_state_dict(tree)))
    paths = [path for path, _ in named]
    empty = [path for path, leaf in named if is_array(leaf) and leaf.size == 0]
    if empty:
        raise CheckpointError(
            leaf_name(empty[0]), "arrays with elements, as Orbax saves no others", "one without",
            "Write msgpack: --format msgpack.",
        )  # fmt: skip
    counted = Counter(".".join(path) for path in paths)
    for path in paths:
        if counted[".".join(path)] > 1:
            raise CheckpointError(
                leaf_name(path), "names that differ when joined with '.'", "two leaves of one name",
                "Orbax cannot hold both: rename one, or write msgpack with --format msgpack.",
            )  # fmt: skip
