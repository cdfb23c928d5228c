"""Restores old and new checkpoints into any tree that has a `TrainState`: for migrated programs."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from optax_bridge.checkpoints.devices import as_arrays, placed_like, quiet_orbax
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.legacy_to_state import plan_like
from optax_bridge.checkpoints.moves import Plan, keeps
from optax_bridge.checkpoints.read import ORBAX, Read, is_checkpoint, item_of, read_checkpoint
from optax_bridge.checkpoints.trees import (
    fill_outline,
    is_array,
    is_key,
    is_state,
    plain,
    refill,
    state_dict,
    state_dict_of,
)
from optax_bridge.metadata.trees import Leaf, PyTree

T = TypeVar("T")


def from_state_dict(
    target: T, state: PyTree, name: str = ".", *, missing: str = "error", allow_nan: bool = False
) -> T:
    """Restores a state dict, of `flax.optim` or of today, whole or not at all.

    As `flax.serialization.from_state_dict`, but where the target has a `TrainState` and the state
    dict a legacy optimizer, parameters, moments and step of that one are taken over; and nothing
    is left out silently.

        >>> from flax import serialization
        >>> old = legacy_optim.Adam(0.1).create({"kernel": jnp.ones(3)})
        >>> saved = serialization.to_state_dict(old.apply_gradient(old.target))
        >>> new = optax_bridge.TrainState.create(None, old.target, optax_bridge.adam(0.1))
        >>> int(from_state_dict(new, saved).step)
        1

    Args:
      target: a `TrainState`, or any tree that holds some.
      state: the result of `flax.serialization.to_state_dict` or `msgpack_restore`.
      name: how errors call it.
      missing: "error", or "keep": leaves that the state dict lacks stay as the target has them.
      allow_nan: let NaN and infinities in parameters and moments through.

    Returns:
      A tree like the target; its next step is the one that the saved one would have taken.

    Raises:
      CheckpointError: a leaf of the target is missing, one is of another shape, type or
        optimizer, or a parameter or a moment is not finite.

    Warns:
      LeftOverWarning: something outside of the states is left over.
      ConvertedWarning: something has another type in the checkpoint.
    """
    place = "state dict" if name == "." else name
    return _restore_into(target, state, place, keeps(missing), allow_nan)


def from_bytes(
    target: T, encoded_bytes: bytes, *, missing: str = "error", allow_nan: bool = False
) -> T:
    """Restores msgpack, of `flax.optim` or of today, as `flax.serialization.from_bytes` does.

    Args:
      target: see `from_state_dict`.
      encoded_bytes: the result of `flax.serialization.to_bytes`.
      missing: see `from_state_dict`.
      allow_nan: see `from_state_dict`.

    Raises:
      CheckpointError: see `from_state_dict`; or the bytes are damaged, or something else.
    """
    saved = decode(encoded_bytes, "bytes")
    return _restore_into(target, saved, "bytes", keeps(missing), allow_nan, as_arrays)


def restore_checkpoint(
    ckpt_dir: str | os.PathLike[str],
    target: T,
    step: int | float | None = None,
    prefix: str = "checkpoint_",
    parallel: bool = True,
    *,
    missing: str = "error",
    allow_nan: bool = False,
    orbax_checkpointer: Any = None,
    **flax_options: Any,
) -> T:
    """Restores the latest checkpoint of a folder, of `flax.optim` or of today, or a given one.

    As `flax.training.checkpoints.restore_checkpoint`, and see `from_state_dict`. Msgpack files and
    Orbax folders are read, those of T5X and `.npz` files as well; the files stay as they are.
    Orbax and absl log nothing unless `absl.logging.set_verbosity(absl.logging.INFO)` was called.

    Args:
      ckpt_dir: the folder, or the checkpoint itself.
      target: see `from_state_dict`; None: the state dict comes, in NumPy's arrays, keys as bits.
      step: which one; None: the latest.
      prefix: how the checkpoints' names begin.
      parallel: as of Flax.
      missing: see `from_state_dict`.
      allow_nan: see `from_state_dict`.
      orbax_checkpointer: as in Flax; a save in progress is waited for.
      **flax_options: the others of Flax, `orbax_transforms=` say; with any, Flax restores.

    Returns:
      See `from_state_dict`; the target itself where there is no checkpoint and no step was given.

    Raises:
      CheckpointError: see `from_state_dict`; or there is no checkpoint of this step.
    """
    if not isinstance(ckpt_dir, str | os.PathLike):
        raise TypeError(f"ckpt_dir: expected a path, found {type(ckpt_dir).__name__} {ckpt_dir!r}")
    if isinstance(target, str):
        raise TypeError(
            f"target: expected a state or a tree to restore into, found the string {target!r}"
        )
    keep, folder = keeps(missing), os.fspath(ckpt_dir)
    folder = folder if "://" in folder else os.path.abspath(folder)
    with quiet_orbax():
        from flax.training import checkpoints  # Orbax, slow to import

        if hasattr(orbax_checkpointer, "wait_until_finished"):
            orbax_checkpointer.wait_until_finished()  # else a save in progress is missed
        if any(value is not None for value in flax_options.values()):
            flax_options |= {"parallel": parallel, "orbax_checkpointer": orbax_checkpointer}
            return checkpoints.restore_checkpoint(folder, target, step, prefix, **flax_options)
        path = path_restored(folder, step, prefix)
        if path is None:
            return target
        if "://" in path:  # in a bucket, where Flax reads
            tree = checkpoints.restore_checkpoint(path, None)
            return _restore_into(target, tree, path, keep, allow_nan)
        read = read_checkpoint(path, _size_of(target))
        if target is None:
            return as_arrays(read.tree)
        if read.format != ORBAX:
            return _restore_into(target, read.tree, path, keep, allow_nan, as_arrays)
        return placed_like(target, _restore_into(target, read.tree, path, keep, allow_nan))


def _size_of(target: PyTree) -> int:
    """The bytes of a template's arrays, which may be shapes."""
    leaves_of_it = (leaf for leaf in jax.tree.leaves(target) if is_array(leaf) and not is_key(leaf))
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves_of_it)


def path_restored(folder: str | os.PathLike[str], step: float | None, prefix: str) -> str | None:
    """The checkpoint that Flax would read; None if there is none."""
    from flax.training.checkpoints import latest_checkpoint  # Orbax, slow to import

    folder = os.fspath(folder)
    if step is not None:
        return os.path.join(folder, f"{prefix}{step}")
    if "://" in folder:
        return latest_checkpoint(folder, prefix) or folder
    if not os.path.isdir(folder):
        return folder if os.path.exists(folder) else None
    # What was saved into a folder that is a converted checkpoint itself is newer than that.
    latest = latest_checkpoint(folder, prefix)
    if latest is None and is_checkpoint(Path(folder)):
        return folder
    return latest or _step_of_manager(Path(folder), prefix)


def _step_of_manager(folder: Path, prefix: str) -> str | None:
    """The state within a step of Orbax's manager, None for a folder that has none."""
    if (item := item_of(folder)) is not None:
        return str(item)
    steps = [step for step in folder.iterdir() if step.name.isdecimal() and item_of(step)]
    if steps:
        newest = max(steps, key=lambda step: int(step.name))
        raise CheckpointError(
            folder, f"checkpoints named {prefix}N", "steps of Orbax's CheckpointManager",
            f"Name the step: {newest} is the newest.",
        )  # fmt: skip
    return None


def plan_restore(target: PyTree, read: Read) -> Plan:
    """The plan from a checkpoint that was read to a template, not checked."""
    if not any(map(is_state, jax.tree.leaves(target, is_leaf=is_state))):
        raise CheckpointError(
            read.path, "a template that holds a TrainState", type(target).__name__,
            "Give a function that returns what the program saves: a TrainState, or a dict, tuple "
            "or flax.struct dataclass that holds some.",
        )  # fmt: skip
    return plan_like(state_dict_of(target), read.tree, read.path)


def _restore_into(
    target: T,
    saved: PyTree,
    place: Place,
    keep: bool,
    allow_nan: bool,
    put: Callable[[Leaf], Leaf] = lambda leaf: leaf,
) -> T:
    """The target with a state dict or a tree like it, whole or not at all."""
    saved = plain(state_dict(saved))
    plan = plan_like(state_dict_of(target), saved, place, keep=keep)
    plan.check(keep=keep, allow_nan=allow_nan)
    return apply_plan(plan, target, put)


def apply_plan(plan: Plan, target: T, put: Callable[[Leaf], Leaf] = lambda leaf: leaf) -> T:
    """The target with the leaves that a plan has for it."""
    return refill(target, fill_outline(state_dict_of(target), plan.apply(put)))
