"""Selects leaves by globs, traversals, trees of booleans and functions on paths."""

import fnmatch
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from jax.tree_util import KeyPath

from legacy_optim.traverse_util import ModelParamTraversal, leaf_indices
from optax_bridge._internals import path_predicate
from optax_bridge._text import describe
from optax_bridge.exact.calls import check_flag
from optax_bridge.metadata.axis_metadata import (
    is_box,
    leaves_with_path,
    nested_dict,
    unboxed,
    value_of,
)
from optax_bridge.metadata.paths import key_names, keystr
from optax_bridge.metadata.trees import Leaf, Params, PyTree

# A text, which is a glob on '/'-joined paths, `"*/bias"`; a traversal (anything with `iterate`); a
# tree of booleans like the parameters, or a function to such a tree.
Selector = object


class NothingSelectedWarning(UserWarning):
    """A mask, or a group of a `multi_optimizer`, holds none of the parameters."""


class ParamLeaves:
    """The leaves of parameters, boxes being leaves; read once for any number of selectors."""

    def __init__(self, params: Params):
        flat = leaves_with_path(params)
        self.params = params
        self.paths = [path for path, _ in flat]
        self.names = [key_names(path) for path in self.paths]
        self._asked = [
            ("/" + "/".join(names), _array(leaf))
            for names, (_, leaf) in zip(self.names, flat, strict=True)
        ]

    def where(self, predicate: Callable[[str, Leaf], object]) -> list[bool]:
        """Returns which leaves satisfy a condition on the '/'-joined path and the array."""
        return [_answer(predicate(path, value), path) for path, value in self._asked]

    def like(self, chosen: Sequence[bool]) -> PyTree:
        """Booleans in the containers of the parameters, without boxes."""
        return jax.tree.structure(self.params, is_leaf=is_box).unflatten(chosen)


def traversal_mask(traversal: Selector, *, strict: bool = False) -> Callable[[Params], PyTree]:
    """A mask for `optax.masked` and `multi_optimizer` from a traversal.

        >>> kernels = legacy_optim.ModelParamTraversal(lambda path, _: path.endswith("/kernel"))
        >>> traversal_mask(kernels)({"kernel": jnp.ones(2), "bias": jnp.ones(2)})
        {'bias': False, 'kernel': True}

    Args:
      traversal: anything with `iterate(tree)`: `legacy_optim.ModelParamTraversal`, or one of
        Flax's.
      strict: selecting no parameter is an error, not a warning.

    Returns:
      A function from parameters to a tree of booleans in the same containers, with a boolean in
      place of a box (`nn.Partitioned`, `nnx.Param`).

    Raises:
      TypeError: this is no traversal.

    Warns:
      NothingSelectedWarning: by the function, where it selects no parameter.
    """
    if not hasattr(traversal, "iterate"):
        raise TypeError(
            "traversal_mask: expected a traversal, such as ModelParamTraversal(...), found "
            f"{describe(traversal)}; path_mask takes globs and functions of path and leaf"
        )
    return _Mask(traversal, strict)


def path_mask(
    predicate: str | Callable[[str, Leaf], bool], *, strict: bool = False
) -> Callable[[Params], PyTree]:
    """A mask for `optax.masked` and `multi_optimizer` from a glob or a function on paths.

        >>> path_mask("*/kernel")({"kernel": jnp.ones(2), "bias": jnp.ones(2)})
        {'bias': False, 'kernel': True}
        >>> path_mask(lambda path, leaf: leaf.ndim > 1)({"w": jnp.ones((2, 2)), "b": jnp.ones(2)})
        {'b': False, 'w': True}

    Args:
      predicate: a glob, `"*/kernel"`, for the whole '/'-joined path of a leaf,
        `'/encoder/kernel'`; or a function of that path and the leaf (the array, if in a box).
      strict: selecting no parameter is an error, not a warning.

    Returns:
      A function from parameters to a tree of booleans in the same containers, with a boolean in
      place of a box (`nn.Partitioned`, `nnx.Param`).

    Raises:
      TypeError: the predicate is neither a text nor a function of two arguments.

    Warns:
      NothingSelectedWarning: by the function, where it selects no parameter.
    """
    if isinstance(predicate, str):
        return _Mask(predicate, strict)
    if not callable(predicate):
        raise TypeError(
            "path_mask: expected a glob or a function of path and leaf, found "
            f"{describe(predicate)}; e.g. lambda path, leaf: path.endswith('/bias')"
        )
    try:
        inspect.signature(predicate).bind("/path", None)
    except TypeError as error:
        raise TypeError(
            f"path_mask: expected a function of two arguments, path and leaf: {error}"
        ) from None
    except ValueError:
        pass  # it has no signature to look at
    return _Mask(ModelParamTraversal(predicate), strict)


class _Mask:
    """A mask from a glob or a traversal; `selected` asks that itself."""

    def __init__(self, selector: Selector, strict: bool):
        check_flag(strict, "strict")
        self.selector = selector
        self.strict = strict

    def __call__(self, params: Params) -> PyTree:
        leaves = ParamLeaves(params)
        chosen = select(self, leaves)
        if not any(chosen):
            say_nothing_selected("this mask", params, self.strict)
        return leaves.like(chosen)


def say_nothing_selected(who: str, params: Params, strict: bool) -> None:
    """Warns that a selector holds none of some parameters, or raises ValueError if `strict`."""
    paths = ["/" + "/".join(names) for names in ParamLeaves(params).names]
    if not paths:
        return
    first_paths = ", ".join(map(repr, paths[:5])) + (", ..." if len(paths) > 5 else "")
    message = (
        f"{who}: none of the {len(paths)} parameters is selected; their paths are {first_paths}"
    )
    if strict:
        raise ValueError(message)
    message += ". strict=True makes this an error."
    warnings.warn(message, NothingSelectedWarning, stacklevel=2)


def select(selector: Selector, leaves: ParamLeaves) -> list[bool]:
    """True for each leaf of parameters that a selector holds, in the order of `jax.tree.leaves`."""
    if isinstance(selector, _Mask):
        selector = selector.selector
    if isinstance(selector, str):
        return leaves.where(functools.partial(_matches, selector))
    if isinstance(selector, tuple) and hasattr(selector, "update"):
        raise TypeError(
            "selector: expected a glob, a traversal, a tree of booleans or a function, found "
            f"a transformation, {type(selector).__name__}"
        )
    if predicate := path_predicate(selector):
        return leaves.where(predicate)
    if hasattr(selector, "iterate"):
        return _select_by_traversal(selector, leaves)
    if callable(selector):
        _check_selector(selector)
    mask = selector(leaves.params) if callable(selector) else selector
    by_names = {key_names(path): _mask_leaf(path, leaf) for path, leaf in leaves_with_path(mask)}
    chosen, used, missing = [], set(), []
    for names in leaves.names:
        above = next((names[:n] for n in range(len(names), -1, -1) if names[:n] in by_names), None)
        if above is None:
            missing.append(names)
            continue
        used.add(above)
        chosen.append(by_names[above])
    differing = sorted("/".join(names) for names in {*missing, *(by_names.keys() - used)})
    if differing:
        raise ValueError(
            f"a mask must have one boolean for each leaf of params; they differ at {differing[:5]}"
        )
    return chosen


def _matches(pattern: str, path: str, leaf: Leaf) -> bool:
    """True if the whole of a path matches a glob."""
    del leaf
    return fnmatch.fnmatchcase(path, pattern)


def _answer(answer: object, path: str) -> bool:
    """A predicate's answer for a path, as a boolean."""
    if isinstance(answer, str | bytes) or callable(answer):
        raise TypeError(
            f"selecting {path!r}: expected True or False from the function of path and leaf, found "
            f"{describe(answer)}"
        )
    return bool(answer)


def _mask_leaf(path: KeyPath, leaf: Leaf) -> bool:
    """One leaf of a tree of booleans."""
    value = value_of(leaf)
    is_array = str(getattr(value, "dtype", "")) == "bool" and jnp.shape(value) == ()
    if isinstance(value, bool) or is_array:
        return bool(value)
    raise TypeError(
        f"mask{keystr(path)}: expected True or False, found {describe(value)}. A mask has one "
        'boolean for each parameter; a glob must be the whole selector: "*/bias"'
    )


def _check_selector(selector: Callable[..., PyTree]) -> None:
    """Raises TypeError for a function of path and leaf, which is no function of all parameters."""
    try:
        inspect.signature(selector).bind(None)
    except ValueError:
        return  # built in
    except TypeError:
        name = getattr(selector, "__name__", type(selector).__name__)
        raise TypeError(
            f"selector {name}: expected a function from the parameters to a tree of booleans; "
            "optax_bridge.path_mask(function) turns a function of path and leaf into one"
        ) from None


def _select_by_traversal(traversal: Any, leaves: ParamLeaves) -> list[bool]:
    plain = unboxed(leaves.params)
    if isinstance(plain, Mapping) and not isinstance(plain, dict | FrozenDict):
        plain = nested_dict(leaves_with_path(plain))  # an nnx.State: traversals go over dicts
    names = [key_names(path) for path, _ in leaves_with_path(plain)]
    matched = {names[index] for index in leaf_indices(traversal, plain)}
    return [names in matched for names in leaves.names]


def _array(leaf: Leaf) -> Leaf:
    value = value_of(leaf)
    return value if hasattr(value, "shape") else jnp.asarray(value)
