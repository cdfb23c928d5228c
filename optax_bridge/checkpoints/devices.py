"""Puts the arrays of a checkpoint on devices, and keeps Orbax from logging that."""

import contextlib
import logging
from collections.abc import Callable, Generator
from typing import TypeVar

import jax
import numpy as np

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, brief
from optax_bridge.checkpoints.lazy import BLOCK, blocks_of
from optax_bridge.checkpoints.trees import is_array, is_key, is_state
from optax_bridge.checkpoints.values import fault_in
from optax_bridge.metadata.axis_metadata import leaves_with_path
from optax_bridge.metadata.paths import key_names, leaves
from optax_bridge.metadata.trees import Leaf, PyTree

T = TypeVar("T")


def on_device(leaf: Leaf, sharding: PyTree = None) -> Leaf:
    """A leaf as a JAX array, perhaps over a mesh; left alone if JAX would narrow it."""
    if not is_array(leaf):
        return leaf
    if isinstance(leaf, jax.Array):  # of a tree in memory: it is there already
        return leaf if sharding is None else jax.device_put(leaf, sharding)
    if leaf.size == 0 or jax.dtypes.canonicalize_dtype(leaf.dtype) != leaf.dtype:
        return np.asarray(leaf)
    if leaf.nbytes > BLOCK:
        placed = jax.device_put(_own_copy(leaf), sharding, may_alias=True)
        return jax.block_until_ready(placed)
    # A copy, as a view of the mapped file must not be donated to a step.
    return jax.device_put(np.asarray(leaf), sharding, may_alias=False)


def placed(tree: dict[str, PyTree], sharding: PyTree) -> dict[str, PyTree]:
    """The fields of a state with their leaves on devices, one after another."""
    if is_state(sharding):
        fields = {name: getattr(sharding, name) for name in tree}
        flat, treedef = jax.tree.flatten(tree)
        each = jax.tree.leaves(fields)  # the same order, also where the parameters are in boxes
        if len(each) != len(flat):
            raise CheckpointError(
                "sharding", f"a state with {len(flat)} shardings, as the checkpoint has leaves",
                f"{len(each)}", "Make it by state_shardings of a state of the same optimizer.",
            )  # fmt: skip
        return treedef.unflatten(map(on_device, flat, each))
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: on_device(
            leaf, sharding(path, leaf) if callable(sharding) else sharding
        ),
        tree,
    )


def _outline_on_host(target: T) -> T:
    """The target with NumPy's arrays for those that JAX may move from device to device."""

    def outline_of_leaf(leaf: Leaf) -> Leaf:
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape) if _is_free(leaf) else leaf

    return jax.tree.map(outline_of_leaf, target)


def without_memory(template: T) -> T:
    """The template with its large finite arrays as views of one zero: a file replaces them."""

    def outline_of_leaf(leaf: Leaf) -> Leaf:
        if not is_array(leaf) or is_key(leaf) or leaf.nbytes <= BLOCK or fault_in(leaf):
            return leaf
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)

    return jax.tree.map(outline_of_leaf, template)


def placed_like(target: T, tree: T) -> T:
    """Puts arrays on the target's devices, committed if the target's are."""

    def place(old: Leaf, new: Leaf) -> Leaf:
        if _is_free(old):
            return jax.device_put(new)
        return jax.device_put(new, old.sharding) if isinstance(old, jax.Array) else new

    # Where the target has None, anything may have come.
    return jax.tree.map(place, target, tree, is_leaf=lambda node: node is None)


def has_leaves_of(target: PyTree, saved: PyTree) -> bool:
    """True if a file has a target's leaves by their paths in JAX, of the same types and shapes."""
    target_leaves = {key_names(leaf_path): leaf for leaf_path, leaf in leaves_with_path(target)}
    saved_leaves = {leaf_path: leaf for leaf_path, leaf in leaves(saved) if leaf is not None}
    return target_leaves.keys() == saved_leaves.keys() and all(
        _is_same_kind(leaf, saved_leaves[path]) for path, leaf in target_leaves.items()
    )


def _is_same_kind(leaf: Leaf, saved: Leaf) -> bool:
    """True if Orbax restores the one into the other; it refuses NumPy's scalars."""
    if isinstance(leaf, np.generic) or np.shape(leaf) != np.shape(saved):
        return False
    return not is_array(leaf) or (is_array(saved) and leaf.dtype == saved.dtype)


def restore_by_orbax(target: T, path: str, by_flax: Callable[[str, PyTree], PyTree]) -> T:
    """Restores by Orbax, which brings arrays to the devices where the target has them."""
    try:
        return by_flax(path, _outline_on_host(target))
    except CheckpointError as error:  # of a state in the tree, which does not know the file
        raise CheckpointError(
            f"{path}, {error.place}", error.expected, error.found, error.remedy
        ) from None
    except (ValueError, KeyError) as error:  # of Orbax, about what it has written beside the arrays
        found = f"{type(error).__name__}: {brief(str(error), 200)}"
        raise CheckpointError(path, "a checkpoint that Orbax restores", found, DAMAGED) from error


def _is_free(leaf: Leaf) -> bool:
    """True if JAX may move it: `jnp` made it where no device was named. Keys have no NumPy."""
    return isinstance(leaf, jax.Array) and not leaf.committed and not is_key(leaf)


def _own_copy(leaf: Leaf) -> np.ndarray:
    """A copy, made block by block, aligned so that JAX takes it without copying it again."""
    alignment = 64
    memory = np.empty(leaf.nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    copy, offset = memory[start : start + leaf.nbytes], 0
    for block in blocks_of(leaf):
        copy[offset : offset + block.size] = block
        offset += block.size
    return copy.view(leaf.dtype).reshape(leaf.shape)


@contextlib.contextmanager
def quiet_orbax(*, errors_too: bool = False) -> Generator[None, None, None]:
    """Keeps Orbax from logging its progress; its errors are logged, and come as exceptions."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")[: 1 + errors_too]]
    levels = [logger.level for logger in loggers]
    if not errors_too and levels[0] in (logging.INFO, logging.DEBUG):
        yield
        return
    for logger in loggers:
        logger.setLevel(logging.CRITICAL if errors_too else logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
