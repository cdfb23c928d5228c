"""State dicts: nested dicts of arrays, numbers and text, which checkpoints hold and states become.

A `TrainState` of a template stands in its state dict as it is, so that whoever fits a checkpoint to
it knows which leaves are a state's.
"""

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.training import train_state

from optax_bridge._text import listed
from optax_bridge.checkpoints.errors import leaf_name, shown
from optax_bridge.metadata.axis_metadata import key_names, leaves_with_path
from optax_bridge.metadata.trees import Leaf, Params, PyTree

T = TypeVar("T")
Names = tuple[str, ...]

SAME_MAKE = "Restore into the model and the transformation that it was saved from."
_STATES: set[type[Any]] = set()
_opaque = contextvars.ContextVar("states are leaves of state dicts", default=False)
_fitted = contextvars.ContextVar("what is restored has been fitted", default=False)


def register(cls: type[Any], to_state_dict: Callable[..., Any], from_state_dict: Any) -> None:
    """Registers a dataclass with Flax; `outlined` leaves its instances as they are."""

    def opaque_or_dict(state: Any) -> Any:
        return state if _opaque.get() else to_state_dict(state)

    _STATES.add(cls)
    serialization.register_serialization_state(cls, opaque_or_dict, from_state_dict, override=True)


def register_states_of(target: Params) -> bool:
    """Lets the states of a tree be recognised, also those of Flax's own `TrainState`.

    Returns:
      Whether the tree has any.
    """
    states = [node for node in jax.tree.leaves(target, is_leaf=is_state) if is_state(node)]
    for cls in {type(state) for state in states} - _STATES:
        register(cls, _fields_to_state_dict, _all_fields_from_state_dict)
    return bool(states)


def _fields_to_state_dict(state: Any) -> dict[str, Any]:
    return {name: serialization.to_state_dict(getattr(state, name)) for name in fields_of(state)}


def _all_fields_from_state_dict(state: Any, saved: PyTree) -> Any:
    """As Flax restores a class of its own: no field may be missing, and none left over."""
    if set(saved) != set(fields_of(state)):
        raise ValueError(
            f"{type(state).__name__}: expected the fields {shown(sorted(fields_of(state)))}, "
            f"found {shown(sorted(saved))}. {SAME_MAKE}"
        )
    return fields_from_state_dict(state, saved)


def fields_from_state_dict(state: Any, saved: PyTree) -> Any:
    """As Flax restores its dataclasses."""
    return state.replace(
        **{
            name: serialization.from_state_dict(getattr(state, name), saved[name], name=name)
            for name in fields_of(state)
        }
    )


def outlined(target: Params) -> PyTree:
    """The state dict of any tree, in which each `TrainState` stands as it is, for `Fit.tree`."""
    token = _opaque.set(True)
    try:
        return serialization.to_state_dict(target)
    finally:
        _opaque.reset(token)


def restored(target: T, fitted: PyTree) -> T:
    """The target with what `Fit.tree` returned for it."""
    with already_fitted():
        made: Any = serialization.from_state_dict(target, fitted)
    return made


def is_fitted() -> bool:
    """Whether what Flax restores just now has been fitted already."""
    return _fitted.get()


@contextlib.contextmanager
def already_fitted() -> Iterator[None]:
    """While it is open, states take what they are given."""
    token = _fitted.set(True)
    try:
        yield
    finally:
        _fitted.reset(token)


def is_state(node: PyTree) -> bool:
    """Whether this is a `TrainState`, Flax's own included."""
    return type(node) in _STATES or isinstance(node, train_state.TrainState)


def fields_of(state: Any) -> list[str]:
    """The fields of a state that checkpoints hold."""
    fields = dataclasses.fields(state)
    return [field.name for field in fields if field.metadata.get("pytree_node", True)]


def plain(tree: PyTree) -> PyTree:
    """A state dict of dicts alone: lists by index, and keys as their bits."""
    tree = numbered(tree)
    if isinstance(tree, Mapping):
        return {str(name): plain(value) for name, value in tree.items()}
    return jax.random.key_data(tree) if is_key(tree) else tree


def numbered(tree: PyTree) -> PyTree:
    """A list or a tuple as a dict by index, as state dicts have it; all else as it is."""
    if isinstance(tree, list | tuple):
        return {str(index): value for index, value in enumerate(tree)}
    return tree


def is_key(leaf: Leaf) -> bool:
    """Whether a leaf is made of typed keys, as of `jax.random.key`."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def legacy_states(tree: PyTree) -> list[Mapping[str, PyTree]] | None:
    """The states of a legacy optimizer's state dict, one for each group up to flax 0.3.2.

    Returns:
      A list of `{'step', 'param_states'}`, of one state from flax 0.3.3 on; None if this is none.
    """
    state = tree.get("state") if isinstance(tree, Mapping) and "target" in tree else None
    if isinstance(state, Mapping) and {"step", "param_states"} <= set(state):
        return [state]
    if isinstance(state, Mapping) and state and set(state) == {str(i) for i in range(len(state))}:
        state = [state[str(index)] for index in range(len(state))]
    if not isinstance(state, list) or not state:
        return None
    fits = all(isinstance(s, Mapping) and {"step", "param_states"} <= set(s) for s in state)
    return state if fits else None


def outline_of(state: Any) -> dict[str, Any]:
    """The fields of a state, each as `outlined`."""
    return {name: outlined(getattr(state, name)) for name in fields_of(state)}


def plain_outline(tree: PyTree) -> PyTree:
    """A template's part as a state dict, where the checkpoint has none."""
    if is_state(tree):
        return {name: plain_outline(value) for name, value in outline_of(tree).items()}
    if isinstance(tree, Mapping):
        return {name: plain_outline(value) for name, value in tree.items()}
    return tree


def leaves(tree: PyTree, path: Names = ()) -> Iterator[tuple[Names, Leaf]]:
    """The leaves of nested dicts and lists with their paths; empty dicts have none."""
    tree = numbered(tree)
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from leaves(value, (*path, str(name)))
    else:
        yield path, tree


def named_as_pytree(target: Params, saved: PyTree) -> bool:
    """Whether a tree has the leaves of a target, by their paths in JAX and with their shapes.

    Orbax names leaves so. A container of one's own may have other names in Flax's state dicts.
    """
    own = {key_names(at): np.shape(leaf) for at, leaf in leaves_with_path(target)}
    found = {at: np.shape(leaf) for at, leaf in leaves(saved) if leaf is not None}
    return own == found


def optimizers(tree: PyTree, path: Names = ()) -> Iterator[Names]:
    """Where legacy optimizers stand in a state dict."""
    if legacy_states(tree) is not None:
        yield path
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from optimizers(value, (*path, str(name)))


def is_floating(dtype: Any) -> bool:
    """True for numbers in floating point, bfloat16 and the like included."""
    return bool(jnp.issubdtype(dtype, np.floating))


def is_array(leaf: Leaf) -> bool:
    """True for what has a shape and a dtype."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def array_like(leaf: Leaf) -> bool:
    """Whether a leaf is an array or a number."""
    return hasattr(leaf, "dtype") or isinstance(leaf, bool | int | float | complex)


def dtype_of(leaf: Leaf) -> np.dtype:
    """The dtype of an array, or of what a number becomes as one."""
    return np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else np.asarray(leaf).dtype


def kind(leaf: Leaf) -> str:
    """What a leaf is, in a word or two."""
    if leaf is None:
        return "nothing"
    if isinstance(leaf, Mapping):
        return f"a level with {shown(sorted(leaf))}"
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return shown(leaf)


def listed_leaves(paths: list[Names]) -> str:
    """The first leaves by name, and how many more there are."""
    return listed(sorted(leaf_name(path) for path in paths))
