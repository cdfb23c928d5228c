"""State dicts: nested dicts of arrays, numbers and text, which checkpoints hold and states become.

A template's state dict keeps each `TrainState` as an object, so that fitting a checkpoint to it can
tell which leaves are a state's.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.training import train_state
from jax.typing import DTypeLike

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import brief
from optax_bridge.metadata.paths import Names, leaf_name, leaves, with_indices
from optax_bridge.metadata.trees import Leaf, Params, PyTree

T = TypeVar("T")

SAME_MAKE = "Restore into the model and the transformation that it was saved from."


class _Wrapped:
    """A `TrainState` as a leaf of state dicts; an `OrderedDict`, a leaf to Flax, as a level."""

    def __init__(self, contents: PyTree, rebuilt: Callable[[PyTree], PyTree]):
        self.contents, self.rebuilt = contents, rebuilt


serialization.register_serialization_state(
    _Wrapped, lambda node: node.contents, lambda node, saved: node.rebuilt(saved)
)


def _wrapped(tree: PyTree, *, has_leaves: bool) -> PyTree:
    """Returns a tree with each `OrderedDict` wrapped, and perhaps each `TrainState` as a leaf."""

    def is_wrapped(node: PyTree) -> bool:
        return type(node) is OrderedDict or (has_leaves and is_state(node))

    def wrap(node: PyTree) -> PyTree:
        if not is_wrapped(node):
            return node
        if is_state(node):
            return _Wrapped(node, lambda saved: fields_from_state_dict(node, saved))
        children = {name: _wrapped(child, has_leaves=has_leaves) for name, child in node.items()}
        levels = OrderedDict((str(n), serialization.to_state_dict(c)) for n, c in children.items())
        refilled = serialization.from_state_dict
        return _Wrapped(
            levels,
            lambda saved: OrderedDict((n, refilled(c, saved[str(n)])) for n, c in children.items()),
        )

    if not any(map(is_wrapped, jax.tree.leaves(tree, is_leaf=is_wrapped))):
        return tree
    return jax.tree.map(wrap, tree, is_leaf=is_wrapped)


def state_dict(tree: PyTree) -> PyTree:
    """As `flax.serialization.to_state_dict`; an `OrderedDict` is a level too."""
    return serialization.to_state_dict(_wrapped(tree, has_leaves=False))


def fields_from_state_dict(state: PyTree, saved: PyTree) -> PyTree:
    """Returns a state with the fields that `fill_outline` returned for it."""
    return state.replace(
        **{name: refill(getattr(state, name), saved[name], name) for name in fields_of(state)}
    )


def state_dict_of(target: Params) -> PyTree:
    """Returns a tree's state dict, with each `TrainState` left as an object."""
    return serialization.to_state_dict(_wrapped(target, has_leaves=True))


def refill(target: T, fitted: PyTree, name: str = ".") -> T:
    """Returns the target filled with the result of `fill_outline`."""
    tree: PyTree = serialization.from_state_dict(_wrapped(target, has_leaves=True), fitted, name)
    return tree


def is_state(node: PyTree) -> bool:
    """True if this is a `TrainState`, Flax's included."""
    return isinstance(node, train_state.TrainState)


def fields_of(state: PyTree) -> list[str]:
    """The fields of a state that checkpoints hold."""
    fields = dataclasses.fields(state)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def plain(tree: PyTree) -> PyTree:
    """A state dict of dicts alone: lists by index, and keys as their bits."""
    tree = with_indices(tree)
    if isinstance(tree, Mapping):
        return {str(name): plain(value) for name, value in tree.items()}
    return jax.random.key_data(tree) if is_key(tree) else tree


def is_key(leaf: Leaf) -> bool:
    """True if a leaf is made of typed keys, as of `jax.random.key`."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def outline_of(state: PyTree) -> dict[str, PyTree]:
    """The fields of a state, each as its `state_dict_of`."""
    return {name: state_dict_of(getattr(state, name)) for name in fields_of(state)}


def fill_outline(tree: PyTree, values: Mapping[Names, Leaf], path: Names = ()) -> PyTree:
    """A template's state dict with values for leaves by their paths; the others as they are."""
    if is_state(tree):
        tree = outline_of(tree)
    if isinstance(tree, Mapping):
        return {name: fill_outline(value, values, (*path, name)) for name, value in tree.items()}
    return values.get(path, tree)


def paths_in_state_dict(tree: PyTree) -> list[Names]:
    """The paths in its state dict of the leaves of a tree, in JAX's order."""
    structure = jax.tree.structure(tree)
    numbers = structure.unflatten(range(structure.num_leaves))
    paths = {index: path for path, index in leaves(plain(state_dict(numbers)))}
    return [paths[index] for index in range(structure.num_leaves)]


def is_floating(dtype: DTypeLike) -> bool:
    """True for numbers in floating point, bfloat16 and the like included."""
    return bool(jnp.issubdtype(dtype, np.floating))


def is_array(leaf: Leaf) -> bool:
    """True for what has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def array_like(leaf: Leaf) -> bool:
    """True if a leaf is an array or a number."""
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def dtype_of(leaf: Leaf) -> np.dtype:
    """The dtype of an array, or of what a number becomes as one."""
    return np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def kind(leaf: Leaf) -> str:
    """A leaf's kind in a word or two."""
    if leaf is None:
        return "nothing"
    if isinstance(leaf, Mapping):
        return f"a level with {brief(sorted(leaf))}"
    if is_array(leaf):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return brief(leaf)


def listed_leaves(paths: Iterable[Names]) -> str:
    """The first leaves by name, and how many more there are."""
    return listing(sorted(leaf_name(path) for path in paths))
