"""The comparison of a checkpoint with a template, leaf by leaf: nothing is lost unsaid."""

import contextlib
import contextvars
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.training import train_state

from optax_bridge._text import listed
from optax_bridge.checkpoints.errors import (
    CheckpointError,
    LeftOverWarning,
    Place,
    leaf_name,
    shown,
)
from optax_bridge.metadata.axis_metadata import key_names, leaves_with_path
from optax_bridge.metadata.trees import Leaf, Params, PyTree

T = TypeVar("T")
Names = tuple[str, ...]

LAYOUT = "legacy_layout"  # what `optax-bridge convert` remembers for the way back; no leaf
_LEVEL = "value"  # what Flax's own boxes, and classes of one's own by custom, call the array
_NAMED_TUPLE = {"name", "fields", "values"}  # how Flax once saved one
_NAMED = 8  # leaves of another shape that a message names before it counts the rest
_STATES: set[type[Any]] = set()
_opaque = contextvars.ContextVar("states are leaves of state dicts", default=False)
_fitted = contextvars.ContextVar("what is restored has been fitted", default=False)

_SAME_MAKE = "Restore into the model and the transformation that it was saved from."
_OTHER_STATE = (
    "What `optax-bridge convert` wrote may be the state of the other kind: convert again with "
    "another --recipe, or with --like."
)
_BESIDE = (
    "Give the template an array of that shape; one without elements, np.zeros(0) say, takes as "
    "many as there are."
)
_REPLICATED = (
    "One of them is replicated, a copy for each device, and the other is not: restore into "
    "flax.jax_utils.unreplicate(state) and replicate what comes, or restore by "
    "optax_bridge.checkpoints.restore_checkpoint, which takes either."
)
BELOW_PARAMS = (
    "The checkpoint has them below 'params', as models before Linen did, and Linen's variables: "
    "make the state of {'params': params}, and give the model state.params as it is."
)
REMEDY = (
    "This is a checkpoint of flax.optim: optax_bridge.checkpoints.restore_checkpoint (from_bytes, "
    "from_state_dict) reads it into this state, and `optax-bridge convert` makes a checkpoint of "
    "it that Flax and Orbax restore."
)


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
            f"found {shown(sorted(saved))}. {_SAME_MAKE}"
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


class Fit:
    """Fits state dicts to templates and keeps a list of all that does not fit.

    Attributes:
      place: how errors call the checkpoint.
      keep: whether leaves that the checkpoint lacks are taken from the template.
      missing: leaves of the template that the checkpoint lacks.
      surplus: leaves of the checkpoint that a `TrainState` has no place for.
      left: leaves of the checkpoint beside the states that nothing has a place for.
      wrong: what is otherwise not as it should be: path, expected, found.
      remedy: what to do about it.
      changed: whether anything was taken otherwise than as it is.
    """

    if_missing = "optax_bridge.checkpoints restores in part if asked to, by missing='keep'."

    def __init__(self, place: Place, *, keep: bool = False):
        self.place, self.keep, self.remedy, self.changed = place, keep, _SAME_MAKE, False
        self.missing: list[Names] = []
        self.surplus: list[Names] = []
        self.left: list[Names] = []
        self.wrong: list[tuple[Names, str, str]] = []
        self.replicated = 0  # of them, those with a copy for each device on one side alone
        self.beside = 0  # of them, those that are of no state

    def tree(self, expected: PyTree, saved: PyTree, path: Names, *, own: bool) -> PyTree:
        """Fits a part.

        Args:
          expected: what `outlined` made of the template.
          saved: what `plain` made of the checkpoint.
          path: where both stand.
          own: whether they belong to a `TrainState`, where nothing may be left over.

        Returns:
          A state dict for the template.
        """
        if is_state(expected):
            return self.state(expected, saved, path)
        if isinstance(expected, Mapping):
            return self._level(expected, saved, path, own)
        if isinstance(saved, Mapping):
            return self._unboxed(expected, saved, path, own)
        return self.leaf(expected, saved, path, own)

    def state(self, template: Any, saved: PyTree, path: Names) -> PyTree:
        """Fits a `TrainState`, or what stands in its place."""
        if legacy_states(saved) is not None:
            raise CheckpointError(
                self.named(path), f"a {type(template).__name__}: step, params, opt_state",
                "an Optimizer: target, state", REMEDY,
            )  # fmt: skip
        if not isinstance(saved, Mapping) or not {"params", "opt_state"} <= set(saved):
            remedy = REMEDY if any(True for _ in optimizers(saved)) else self.remedy
            raise CheckpointError(
                self.named(path), f"a {type(template).__name__}: step, params, opt_state",
                kind(saved), remedy,
            )  # fmt: skip
        saved = {name: value for name, value in saved.items() if name != LAYOUT}
        return self._level(outline_of(template), saved, path, own=True)

    def _level(
        self, expected: Mapping[str, PyTree], saved: PyTree, path: Names, own: bool
    ) -> PyTree:
        if not isinstance(saved, Mapping):
            if set(expected) == {_LEVEL} and saved is not None:  # a box here, none there
                self.changed = True
                return {_LEVEL: self.tree(expected[_LEVEL], saved, (*path, _LEVEL), own=own)}
            if saved is None or not any(True for _ in leaves(expected)):
                self._over(saved, path, own)
                saved = {}
            else:
                self.wrong.append((path, f"a level with {shown(sorted(expected))}", kind(saved)))
                return expected
        if set(saved) == _NAMED_TUPLE != set(expected):
            saved = _of_named_tuple(saved)
        for name in saved.keys() - expected.keys():
            self._over(saved[name], (*path, name), own)
        fitted = {}
        for name, value in expected.items():
            if name in saved:
                fitted[name] = self.tree(value, saved[name], (*path, name), own=own)
            else:
                fitted[name] = self.lacking(value, (*path, name))
        return fitted

    def _unboxed(
        self, expected: PyTree, saved: Mapping[str, PyTree], path: Names, own: bool
    ) -> PyTree:
        if set(saved) == {_LEVEL} and (own or array_like(expected)):
            self.changed = True
            return self.tree(expected, saved[_LEVEL], path, own=own)
        if expected is None and not own:  # what Flax does: there is nothing to compare it with
            self.changed = True  # from Orbax, Flax would leave it out
            return saved
        if expected is None:
            self._over(saved, path, own)
            return None
        if not array_like(expected) and not own:
            return saved
        found = f"a level with {shown(sorted(saved))}"
        self.wrong.append((path, f"{kind(expected)} (is it in a box of its own class?)", found))
        return expected

    def leaf(self, expected: PyTree, saved: PyTree, path: Names, own: bool) -> Leaf:
        """Fits a leaf."""
        if expected is None:
            if own and saved is not None:
                self._over(saved, path, own)
                return None
            self.changed |= saved is not None
            return saved
        if saved is None:
            return self.lacking(expected, path)
        if is_key(expected):
            return self._key(expected, saved, path)
        if array_like(expected) and not isinstance(saved, str | bytes):
            if np.shape(expected) == np.shape(saved):
                return saved
            if not own and _grows(expected, saved):
                self.changed = True
                return saved
        elif not own or isinstance(expected, str | bytes) == isinstance(saved, str | bytes):
            return saved
        self.replicated += _is_copied(expected, saved)
        self.beside += not own
        self.wrong.append((path, kind(expected), kind(saved)))
        return expected

    def _key(self, expected: PyTree, saved: PyTree, path: Names) -> Leaf:
        bits = jax.eval_shape(jax.random.key_data, expected)
        if np.shape(saved) != bits.shape or np.dtype(getattr(saved, "dtype", object)) != bits.dtype:
            self.wrong.append((path, f"the bits of {kind(expected)}, {kind(bits)}", kind(saved)))
            return expected
        return jax.random.wrap_key_data(jnp.asarray(saved), impl=jax.random.key_impl(expected))

    def lacking(self, expected: PyTree, path: Names) -> PyTree:
        """Notes that the checkpoint lacks a part; gives the template's own."""
        if is_state(expected):
            self.missing.append(path)
            return {name: plain_outline(value) for name, value in outline_of(expected).items()}
        self.missing += [(*path, *at) for at, leaf in leaves(expected) if leaf is not None]
        return expected

    def _over(self, saved: PyTree, path: Names, own: bool) -> None:
        over = [(*path, *at) for at, leaf in leaves(saved) if leaf is not None]
        (self.surplus if own else self.left).extend(over)

    @property
    def is_exact(self) -> bool:
        """Whether template and checkpoint have the same leaves, as they are."""
        return not (self.changed or self.missing or self.surplus or self.left or self.wrong)

    def named(self, path: Names) -> str:
        """How errors call a leaf of the checkpoint."""
        return f"{self.place}, {leaf_name(path)}" if path else str(self.place)

    def settle(self) -> None:
        """Says what does not fit.

        Warns:
          LeftOverWarning: something is left over beside the states.

        Raises:
          CheckpointError: something is missing, too many or of another shape.
        """
        if self.wrong or (not self.keep and (self.missing or self.surplus)):
            raise self.error()
        left = self.surplus + self.left
        if left:
            warnings.warn(
                LeftOverWarning(
                    f"{self.place}: {listed_leaves(left)} left over: nothing that was restored has "
                    "a place for it. Give the template a field of that name to have it; what the "
                    "program takes itself, it leaves out of what is restored.",
                    left,
                ),
                stacklevel=5,
            )

    def error(self) -> CheckpointError:
        """The error about all that does not fit."""
        missing, surplus = ([], []) if self.keep else (self.missing, self.surplus)
        if len(self.wrong) == 1 and not missing and not surplus:
            path, expected, found = self.wrong[0]
            remedy = _BESIDE if self.beside and self.remedy == _SAME_MAKE else self.remedy
            return CheckpointError(self.named(path), expected, found, remedy)
        found = [f"no {listed_leaves(missing)}"] if missing else []
        found += [
            f"{leaf_name(p)}: {is_} for {expected}" for p, expected, is_ in self.wrong[:_NAMED]
        ]
        found += [f"{len(self.wrong) - _NAMED} more such"] if len(self.wrong) > _NAMED else []
        found += [f"{listed_leaves(surplus)} besides"] if surplus else []
        remedies = [_REPLICATED if self.replicated == len(self.wrong) > 0 else self.remedy]
        if self.remedy == _SAME_MAKE and any("opt_state" in path for path in missing):
            remedies.append(_OTHER_STATE)
        return CheckpointError(
            self.place, "every leaf of what is restored, and no other", "; ".join(found),
            " ".join([*remedies, self.if_missing] if missing else remedies),
        )  # fmt: skip


def _grows(expected: Leaf, saved: Leaf) -> bool:
    """Whether a program begins with an empty array, a history's say, and has put more into it."""
    one, other = np.shape(expected), np.shape(saved)
    return (
        0 in one
        and len(one) == len(other)
        and all(n in (0, m) for n, m in zip(one, other, strict=True))
    )


def _is_copied(expected: Leaf, saved: Leaf) -> bool:
    """Whether either has one axis more, in front, than the other."""
    one, other = np.shape(expected), np.shape(saved)
    return (one[1:] == other and len(one) > len(other)) or (
        other[1:] == one and len(other) > len(one)
    )


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


def _of_named_tuple(saved: Mapping[str, PyTree]) -> Mapping[str, Any]:
    fields, values = saved["fields"], saved["values"]
    fits = isinstance(fields, Mapping) and isinstance(values, Mapping)
    if not fits or fields.keys() != values.keys():
        return saved
    return {str(fields[number]): values[number] for number in fields}


def optimizers(tree: PyTree, path: Names = ()) -> Iterator[Names]:
    """Where legacy optimizers stand in a state dict."""
    if legacy_states(tree) is not None:
        yield path
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from optimizers(value, (*path, str(name)))


def array_like(leaf: Leaf) -> bool:
    """Whether a leaf is an array or a number."""
    return hasattr(leaf, "shape") or isinstance(leaf, bool | int | float | complex)


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
