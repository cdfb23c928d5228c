"""The start of a resumed training: the file, its old optimizers, and the new states."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
from flax import serialization
from flax.core import FrozenDict, unfreeze
from flax.training import checkpoints as flax_checkpoints

import legacy_optim
from equivalence_tests.sides.adapt import EquivalenceError, on_host
from optax_bridge.checkpoints.devices import as_arrays
from optax_bridge.checkpoints.locate import at_path, find_states, legacy_states, optimizers
from optax_bridge.checkpoints.read import ORBAX, Read, read_checkpoint
from optax_bridge.checkpoints.restore import path_restored
from optax_bridge.metadata.trees import PyTree

PREFIX = "checkpoint_"
_OF_FLAX = ("Flax msgpack", ORBAX)
_NAMED = 5


def old_checkpoint(checkpoint: Path) -> Read:
    """The checkpoint that both sides restore: one that a legacy program wrote."""
    path = path_restored(checkpoint.absolute(), None, PREFIX)
    if path is None:
        raise EquivalenceError(
            f"no checkpoint found in {checkpoint}: expected a checkpoint, or a folder with entries "
            f"named {PREFIX}N, found {_held_by(checkpoint)}. Name the file itself if its "
            "prefix differs, or its folder; `optax-bridge inspect PATH` identifies a file or folder"
        )
    read = read_checkpoint(path)
    if not any(True for _ in optimizers(read.tree)) and (
        read.format == ORBAX or any(True for _ in find_states(read.tree))
    ):
        folder_content = "" if Path(path) == checkpoint.absolute() else f" ({_held_by(checkpoint)})"
        raise EquivalenceError(
            f"{path}: expected a checkpoint of flax.optim, found {read.description}: this is a "
            "checkpoint of the migrated program. Name the old one, the file itself if both are "
            f"in one folder{folder_content}"
        )
    return read


def restored_by_flax(read: Read, wanted: PyTree) -> PyTree:
    """Restores as the legacy program does, by Flax; other formats by this project's reader."""
    by_flax = functools.partial(flax_checkpoints.restore_checkpoint, str(read.path))
    is_within = isinstance(wanted, legacy_optim.Optimizer) and legacy_states(read.tree) is None
    if read.format in _OF_FLAX and not is_within:
        return by_flax(wanted)
    tree: PyTree = by_flax(None) if read.format in _OF_FLAX else read.tree
    if is_within:
        paths = list(optimizers(tree))
        if len(paths) != 1:
            names = ", ".join("/".join(path) for path in paths) or "none"
            raise EquivalenceError(
                f"{read.path}: expected one legacy optimizer, found {names}. Give --old a function "
                "that makes everything in the checkpoint"
            )
        tree = at_path(tree, paths[0])
    return serialization.from_state_dict(wanted, as_arrays(tree))


def _held_by(folder: Path) -> str:
    if not folder.exists():
        return "nothing of that name"
    names = sorted(entry.name for entry in folder.iterdir())
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"it holds {', '.join(names[:_NAMED])}{more}" if names else "an empty folder"


def each_pair(
    legacy: Mapping[str, PyTree], states: Mapping[str, PyTree], name: str
) -> Iterator[tuple[str, PyTree, PyTree]]:
    """Yields each old optimizer and its new state: each of a population, one of device copies."""
    for path, one in _pair_up(legacy, states, name):
        optimizer, state = _in_dicts(one), _in_dicts(states[path])
        sizes = [np.shape(optimizer.state.step), np.shape(state.step)]
        if sizes[0] == sizes[1] != () and not (_are_copies(optimizer) and _are_copies(state)):
            for index in range(sizes[0][0]):
                yield f"{path}[{index}]", _take(optimizer, index), _take(state, index)
            continue
        firsts = (
            _take(tree, 0) if size else tree
            for tree, size in zip((optimizer, state), sizes, strict=True)
        )
        yield path, *firsts


def _take(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _are_copies(tree: PyTree) -> bool:
    """True if what every leaf has along its first axis is the same, bit for bit."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(on_host(tree))]
    return all(part.tobytes() == array[0].tobytes() for array in arrays for part in array[1:])


def _pair_up(
    legacy: Mapping[str, PyTree], states: Mapping[str, PyTree], name: str
) -> Iterator[tuple[str, PyTree]]:
    if len(legacy) == len(states) == 1:
        yield next(iter(states)), next(iter(legacy.values()))
        return
    if legacy.keys() != states.keys():
        raise EquivalenceError(
            f"{name}: expected optimizers at {', '.join(states)}, as the migrated program has "
            f"them, found {', '.join(legacy) or 'none'}"
        )
    yield from legacy.items()


def _in_dicts(tree: PyTree) -> PyTree:
    """A tree with dicts in place of FrozenDicts, which Flax's modules made of parameters once."""

    def is_frozen(node: PyTree) -> bool:
        return isinstance(node, FrozenDict)

    return jax.tree.map(
        lambda node: unfreeze(node) if is_frozen(node) else node, tree, is_leaf=is_frozen
    )
