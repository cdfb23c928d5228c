"""The old optimizers of a checkpoint beside the new states, pair by pair."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax.core import FrozenDict, unfreeze

from equivalence_tests.sides.adapt import EquivalenceError, on_host
from optax_bridge.metadata.trees import PyTree


def each_pair(
    legacy: Mapping[str, Any], states: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Any, Any]]:
    """Each old optimizer with the new state: of copies for devices one, of a population all."""
    for path, one in _pair_up(legacy, states, name):
        optimizer, state = _in_dicts(one), _in_dicts(states[path])
        sizes = [np.shape(optimizer.state.step), np.shape(state.step)]
        if sizes[0] == sizes[1] != () and not (_are_copies(optimizer) and _are_copies(state)):
            for index in range(sizes[0][0]):
                yield f"{path}[{index}]", _take(optimizer, index), _take(state, index)
            continue
        whole = (
            _take(tree, 0) if size else tree
            for tree, size in zip((optimizer, state), sizes, strict=True)
        )
        yield path, *whole


def _take(tree: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[index], tree)


def _are_copies(tree: PyTree) -> bool:
    """True if what every leaf has along its first axis is the same, bit for bit."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(on_host(tree))]
    return all(part.tobytes() == array[0].tobytes() for array in arrays for part in array[1:])


def _pair_up(
    legacy: Mapping[str, Any], states: Mapping[str, Any], name: str
) -> Iterator[tuple[str, Any]]:
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
