"""Restores old and new checkpoints into any tree that has a `TrainState`: for migrated programs."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from optax_bridge.checkpoints.devices import outline_on_host, placed_like, quiet_orbax
from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, Place, brief
from optax_bridge.checkpoints.formats.flax_msgpack.decode import decode
from optax_bridge.checkpoints.legacy_to_state import plan_like
from optax_bridge.checkpoints.moves import Misfit, Plan, keeps
from optax_bridge.checkpoints.read import ORBAX, is_checkpoint, item_of, read_checkpoint
from optax_bridge.checkpoints.same_names import Paths, Scope, same_names
from optax_bridge.checkpoints.trees import (
    fill_outline,
    has_states,
    is_array,
    is_key,
    named_as_pytree,
    plain,
    refill,
    state_dict,
    state_dict_of,
)
from optax_bridge.checkpoints.values import STEPS
from optax_bridge.metadata.trees import Params, PyTree

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
      state: what `flax.serialization.to_state_dict` or `msgpack_restore` gave.
      name: how errors call it.
      missing: "error", or "keep": what the state dict lacks stays as the target has it.
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
    plan = _checked_plan(target, state, place, missing, allow_nan, by_hand=True)
    return apply_plan(plan, target)


def from_bytes(
    target: T, encoded_bytes: bytes, *, missing: str = "error", allow_nan: bool = False
) -> T:
    """Restores msgpack, of `flax.optim` or of today: `flax.serialization.from_bytes`.

    Args:
      target: see `from_state_dict`.
      encoded_bytes: what `flax.serialization.to_bytes` gave.
      missing: see `from_state_dict`.
      allow_nan: see `from_state_dict`.

    Returns:
      See `from_state_dict`.

    Raises:
      CheckpointError: see `from_state_dict`; or the bytes are damaged, or something else.
    """
    plan = _checked_plan(target, decode(encoded_bytes, "bytes"), "bytes", missing, allow_nan)
    return apply_plan(plan, target, as_arrays)


def restore_checkpoint(
    ckpt_dir: str | os.PathLike[str],
    target: T,
    step: int | float | None = None,
    prefix: str = "checkpoint_",
    parallel: bool = True,
    gda_manager: Any = None,
    allow_partial_mpa_restoration: bool = False,
    orbax_checkpointer: Any = None,
    orbax_transforms: Any = None,
    *,
    missing: str = "error",
    allow_nan: bool = False,
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
      gda_manager: as of Flax, for arrays of several processes; Flax restores these checkpoints.
      allow_partial_mpa_restoration: as of Flax.
      orbax_checkpointer: as of Flax.
      orbax_transforms: as of Flax; with any, Flax restores.
      missing: see `from_state_dict`.
      allow_nan: see `from_state_dict`.

    Returns:
      See `from_state_dict`; the target itself where there is no checkpoint and no step was given.

    Raises:
      CheckpointError: see `from_state_dict`.
      ValueError: there is no checkpoint of this step.
    """
    if not isinstance(ckpt_dir, str | os.PathLike):
        raise TypeError(f"ckpt_dir: expected a path, found {type(ckpt_dir).__name__} {ckpt_dir!r}")
    if isinstance(target, str):
        raise TypeError(
            f"target: expected what to restore into, a state say, found text {target!r}"
        )
    flax_options = {
        "prefix": prefix, "parallel": parallel, "gda_manager": gda_manager,
        "allow_partial_mpa_restoration": allow_partial_mpa_restoration,
        "orbax_checkpointer": orbax_checkpointer, "orbax_transforms": orbax_transforms,
    }  # fmt: skip
    with quiet_orbax():
        return _restore_from(os.fspath(ckpt_dir), target, step, flax_options, missing, allow_nan)


def _restore_from(
    folder: str,
    target: T,
    step: float | None,
    flax_options: Mapping[str, Any],
    missing: str,
    allow_nan: bool,
) -> T:
    """Restores by Flax what only Flax can, all else by what was read."""
    from flax.training import checkpoints  # Orbax, slow to import

    def by_flax(path: str, into: PyTree, step: float | None = None) -> PyTree:
        return checkpoints.restore_checkpoint(path, into, step, **flax_options)

    folder = folder if "://" in folder else os.path.abspath(folder)
    if any(flax_options[name] is not None for name in ("gda_manager", "orbax_transforms")):
        return by_flax(folder, target, step)
    checkpointer = flax_options["orbax_checkpointer"]
    if hasattr(checkpointer, "wait_until_finished"):
        checkpointer.wait_until_finished()  # else what it is writing is not there yet
    path = path_restored(folder, step, flax_options["prefix"], checkpoints.latest_checkpoint)
    if path is None:
        return target
    if "://" in path:  # in a bucket, where Flax reads
        return apply_plan(
            _checked_plan(target, by_flax(path, None), path, missing, allow_nan), target
        )
    read = read_checkpoint(path, _size_of(target))
    if target is None:
        return as_arrays(read.tree)
    if read.format != ORBAX:
        return apply_plan(
            _checked_plan(target, read.tree, path, missing, allow_nan), target, as_arrays
        )
    new = _from_orbax(target, read.tree, path, missing, allow_nan, by_flax)
    if not allow_nan:
        _check_finite(new, target, path)
    return new


def _from_orbax(
    target: T,
    saved: PyTree,
    path: str,
    missing: str,
    allow_nan: bool,
    by_flax: Callable[[str, PyTree], PyTree],
) -> T:
    """Restores what Orbax has saved: it brings arrays to the devices where the target has them."""
    try:  # numbers are looked at when they are restored: they may lie on many devices
        plan = _checked_plan(target, saved, path, missing, allow_nan=True)
    except CheckpointError:
        if named_as_pytree(target, saved):
            return placed_like(target, by_flax(path, outline_on_host(target)))
        raise
    scalars = any(isinstance(leaf, np.generic) for leaf in jax.tree.leaves(target))
    if not plan.is_exact or scalars or allow_nan:  # Orbax refuses NumPy's scalars, Flax's NaN
        return placed_like(target, apply_plan(plan, target, as_arrays))
    try:
        return placed_like(target, by_flax(path, outline_on_host(target)))
    except CheckpointError as error:  # of a state in the tree, which does not know the file
        raise CheckpointError(
            f"{path}, {error.place}", error.expected, error.found, error.remedy
        ) from None
    except (ValueError, KeyError) as error:  # of Orbax, about what it has written beside the arrays
        found = f"{type(error).__name__}: {brief(str(error), 200)}"
        raise CheckpointError(path, "a checkpoint that Orbax restores", found, DAMAGED) from error


def _size_of(target: PyTree) -> int:
    """The bytes of a template's arrays, which may be shapes."""
    leaves_of_it = (leaf for leaf in jax.tree.leaves(target) if is_array(leaf) and not is_key(leaf))
    return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves_of_it)


def path_restored(
    folder: str | os.PathLike[str],
    step: float | None,
    prefix: str,
    latest_checkpoint: Callable[[str, str], str | None],
) -> str | None:
    """The checkpoint that Flax would read, whose `latest_checkpoint` is given; None if none is."""
    folder = os.fspath(folder)
    if step is not None:
        path = os.path.join(folder, f"{prefix}{step}")
        if "://" not in path and not os.path.exists(path):
            raise ValueError(f"Matching checkpoint not found: {path}")
        return path
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


def as_arrays(tree: PyTree) -> PyTree:
    """A state dict whose arrays are in memory: those read when asked for, or mapped from a file."""
    return jax.tree.map(
        lambda leaf: np.array(leaf) if is_array(leaf) and not isinstance(leaf, jax.Array) else leaf,
        tree,
    )


def plan_restore(target: PyTree, saved: PyTree, place: Place) -> Plan:
    """The plan of `restored_like`, not checked."""
    if not has_states(target):
        raise CheckpointError(
            place, "a template that holds a TrainState", type(target).__name__,
            "Give a function that makes what the program saves: a TrainState, or a dict, tuple or "
            "dataclass of JAX (flax.struct) with some in it.",
        )  # fmt: skip
    return plan_like(state_dict_of(target), plain(saved), place)


def restored_like(target: T, saved: PyTree, place: Place, allow_nan: bool = False) -> T:
    """Does as `restore_checkpoint` with a tree that was read, whose arrays may be read later."""
    plan = plan_restore(target, saved, place)
    plan.check(allow_nan=allow_nan)
    return apply_plan(plan, target)


def _checked_plan(
    target: Params,
    saved: PyTree,
    place: Place,
    missing: str,
    allow_nan: bool,
    *,
    by_hand: bool = False,
) -> Plan:
    keep = keeps(missing)
    plan = plan_like(state_dict_of(target), plain(saved), place, keep=keep, by_hand=by_hand)
    plan.check(keep=keep, allow_nan=allow_nan)
    return plan


def apply_plan(plan: Plan, target: T, put: Callable[[PyTree], PyTree] = lambda leaf: leaf) -> T:
    """The target with the leaves that a plan has for it."""
    return refill(target, fill_outline(state_dict_of(target), plan.apply(put)))


def _check_finite(restored: PyTree, target: PyTree, place: Place) -> None:
    """Checks the numbers of the states that Orbax has restored."""
    saved = plain(state_dict(restored))
    items = same_names(state_dict_of(target), saved, Paths(), Scope(place, "program"))
    plan = Plan(place, tuple(items))
    steps = (item for item in plan.items if isinstance(item, Misfit) and item.expected == STEPS)
    Plan(place, (*plan.faults(), *steps)).check()
