"""Puts the arrays of a checkpoint on devices, and keeps Orbax from logging that."""

import contextlib
import logging
from collections.abc import Generator
from typing import TypeVar

import jax
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.lazy import BLOCK, blocks_of
from optax_bridge.checkpoints.trees import is_array, is_key, is_state
from optax_bridge.checkpoints.values import fault_in
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
    # A copy, as a view of the mapped file must not be donated to a step.
    return jax.block_until_ready(jax.device_put(_own_copy(leaf), sharding, may_alias=True))


def placed(tree: dict[str, PyTree], sharding: PyTree) -> dict[str, PyTree]:
    """The fields of a state with their leaves on devices, one after another."""
    if not is_state(sharding):
        return jax.tree_util.tree_map_with_path(
            lambda *row: on_device(row[1], sharding(*row) if callable(sharding) else sharding), tree
        )
    flat, treedef = jax.tree.flatten(tree)
    # The same order, also where the parameters are in boxes.
    shardings = jax.tree.leaves({name: getattr(sharding, name) for name in tree})
    if len(shardings) != len(flat):
        raise CheckpointError(
            "sharding", f"a state with {len(flat)} shardings, as the checkpoint has leaves",
            f"{len(shardings)}", "Make it by state_shardings of a state of the same optimizer.",
        )  # fmt: skip
    return treedef.unflatten(map(on_device, flat, shardings))


def without_memory(template: T) -> T:
    """The template with its large finite arrays as views of one zero; JAX's own are deleted."""

    def outline_of_leaf(leaf: Leaf) -> Leaf:
        if not is_array(leaf) or is_key(leaf) or leaf.nbytes <= BLOCK or fault_in(leaf):
            return leaf
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)

    outline = jax.tree.map(outline_of_leaf, template)
    for old, new in zip(jax.tree.leaves(template), jax.tree.leaves(outline), strict=True):
        if isinstance(old, jax.Array) and old is not new:
            old.delete()  # the program may hold it to the end, and a file replaces it
    return outline


def as_arrays(tree: PyTree) -> PyTree:
    """A state dict whose arrays are in memory: those read when asked for, or mapped from a file."""
    return jax.tree.map(
        lambda leaf: np.array(leaf) if is_array(leaf) and not isinstance(leaf, jax.Array) else leaf,
        tree,
    )


def placed_like(target: T, tree: T) -> T:
    """Reads the arrays one by one onto the target's devices, committed if the target's are."""

    def place(old: Leaf, new: Leaf) -> Leaf:
        new = as_arrays(new)
        if not isinstance(old, jax.Array):
            return new
        # What `jnp` made, where no device was named, JAX may move. Keys have no NumPy.
        is_free = not old.committed and not is_key(old)
        return jax.device_put(new, None if is_free else old.sharding)

    # Where the target has None, anything may have come.
    return jax.tree.map(place, target, tree, is_leaf=lambda node: node is None)


def _own_copy(leaf: Leaf) -> np.ndarray:
    """A copy, made block by block, aligned so that JAX takes it without copying it again."""
    memory = np.empty(leaf.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy, offset = memory[start : start + leaf.nbytes], 0
    for block in blocks_of(leaf):
        copy[offset : offset + block.size] = block
        offset += block.size
    return copy.view(leaf.dtype).reshape(leaf.shape)


@contextlib.contextmanager
def quiet_orbax() -> Generator[None, None, None]:
    """Keeps Orbax from logging its progress, and its errors, which come as exceptions."""
    loggers = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [logger.level for logger in loggers]
    is_asked_for = levels[0] in (logging.INFO, logging.DEBUG)
    for logger in loggers:
        logger.setLevel(logger.level if is_asked_for else logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
