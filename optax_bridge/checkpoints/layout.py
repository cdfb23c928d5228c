"""Entries around the optimizer of a checkpoint: they stay there, or fill a state's fields."""

from collections.abc import Collection, Mapping

import jax
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.locate import is_train_state
from optax_bridge.checkpoints.trees import is_array, is_key
from optax_bridge.checkpoints.values import one_copy
from optax_bridge.metadata.paths import Names, by_index, leaf_name, leaves, paths_of, with_indices
from optax_bridge.metadata.trees import Leaf, Params, PyTree

_STEPS = ("step", "global_step")


def without_copies(tree: PyTree, copies: int | None) -> PyTree:
    """The first of each leaf's copies, if all leaves have so many and all of them are the same."""
    arrays = [leaf for _, leaf in leaves(tree) if is_array(leaf)]
    are_copies = arrays and all(leaf.shape[:1] == (copies,) for leaf in arrays)
    if not are_copies or any(one_copy(leaf) is None for leaf in arrays):
        return tree  # each device has its own: random keys, batch statistics
    return jax.tree.map(lambda leaf: one_copy(leaf) if is_array(leaf) else leaf, tree)


def without(tree: PyTree, path: tuple[str, ...]) -> PyTree:
    """A `plain` tree without the entry at the path."""
    rest = {name: value for name, value in tree.items() if name != path[0]}
    below = without(tree[path[0]], path[1:]) if path[1:] else None
    return rest | ({path[0]: below} if below else {})


def is_step_again(name: str, value: Leaf, step: int) -> bool:
    """True for an entry that has the optimizer's step once more."""
    return name in _STEPS and np.shape(value) == () and bool(np.asarray(value) == step)


def add_optimizer(others: PyTree, path: Names, tree: PyTree, place: Place) -> PyTree:
    """The other entries with the optimizer added at a path."""
    name, *rest = path
    if not isinstance(others, Mapping) or (name in others and not rest):
        raise CheckpointError(
            f"{place}, {leaf_name((name,))}", "a place for the optimizer", "something else there",
            "Name another one: --part NAME.",
        )  # fmt: skip
    inner = add_optimizer(others.get(name, {}), tuple(rest), tree, place) if rest else tree
    return {**others, name: inner}


def with_lists(tree: PyTree) -> PyTree:
    """The tree with a list where names are 0, 1, 2."""
    if not isinstance(tree, dict) or is_train_state(tree):
        return tree
    new = {name: with_lists(value) for name, value in tree.items()}
    return by_index(new) or new


# Field of a state -> its names in programs. Batch statistics stood in `model_state` as
# `{"batch_stats": ...}`, in `batch_stats`, or flat in either.
_NAMES = {
    "batch_stats": ("model_state", "state", "bn_state", "mutable_state", "variables"),
    "model_state": ("batch_stats", "state", "mutable_state", "variables"),
    "ema_params": ("ema", "params_ema", "ema_target", "average", "avg_params", "params_avg"),
    "dynamic_scale": ("loss_scale", "loss_scaling"),
    "rng": ("rngs", "key", "prng_key", "rng_key"),
}
_STATISTICS = "batch_stats"


def entries_around(tree: PyTree, path: Names) -> dict[Names, PyTree]:
    """The entries next to the optimizer, and next to each level on the way to it, by path."""
    entries: dict[Names, PyTree] = {}
    for length, name in enumerate(path):
        tree = with_indices(tree)
        if not isinstance(tree, Mapping):
            break
        entries |= {(*path[:length], key): value for key, value in tree.items() if key != name}
        tree = tree.get(name)
    return entries


def match_fields(
    names: Collection[str], entries: Mapping[Names, PyTree], params: Params, step: int
) -> tuple[dict[str, PyTree], list[Names]]:
    """The fields that a checkpoint fills, and the leaves left over."""
    filled: dict[str, PyTree] = {}
    unused: list[Names] = []
    for path in sorted(entries, key=lambda path: (-len(path), path)):  # the nearest come first
        name, value = path[-1], entries[path]
        if is_step_again(name, value, step):
            continue
        for name_of_field, candidate, rest in _candidates(name, value, names):
            if name_of_field not in filled and _fits(name_of_field, candidate, params):
                filled[name_of_field] = candidate
                unused += paths_of(rest, path)
                break
        else:
            unused += paths_of(value, path)
    return filled, unused


def _candidates(
    name: str, value: PyTree, names: Collection[str]
) -> list[tuple[str, PyTree, PyTree]]:
    """Fields that an entry may fill: the field, the value for it, and the remainder."""
    if name in names and name != "rngs":
        return [(name, _within(name, value), None)]
    candidates: list[tuple[str, PyTree, PyTree]] = []
    for field in names:
        if isinstance(value, Mapping) and field in value:  # a dict of collections
            rest = {key: item for key, item in value.items() if key != field}
            candidates.append((field, value[field], rest))
    if "rngs" in names and (name == "rngs" or name.endswith(("rng", "key"))):
        keys = value if isinstance(value, Mapping) else {name.removesuffix("_rng"): value}
        candidates.append(("rngs", keys, None))
    for field in names:
        if name in _NAMES.get(field, ()):
            collection = {_STATISTICS: value} if name == _STATISTICS else _within(field, value)
            candidates.append((field, collection, None))
    return candidates


def _within(field: str, value: PyTree) -> PyTree:
    """The collection itself, where it is alone in a dict of collections."""
    name = {"batch_stats": "batch_stats", "ema_params": "params"}.get(field)
    is_alone = isinstance(value, Mapping) and set(value) == {name}
    return value[name] if is_alone else value


def _fits(field: str, value: PyTree, params: Params) -> bool:
    """True if a value is of the kind that the field holds."""
    if field == "ema_params":
        return _shapes(value) == _shapes(params)
    if field == "dynamic_scale":
        return isinstance(value, Mapping) and set(value) == {"fin_steps", "scale"}
    if field in ("rngs", "rng"):
        return all(is_key(v) or (is_array(v) and v.dtype == np.uint32) for _, v in leaves(value))
    if field == _STATISTICS:
        return isinstance(value, Mapping)
    return True


def _shapes(tree: PyTree) -> dict[Names, tuple[int, ...]]:
    return {path: np.shape(leaf) for path, leaf in leaves(tree)}
