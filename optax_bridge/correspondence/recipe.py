"""Recipes: Optax code as data, to be evaluated or to be written down.

A recipe is a tree of calls of dotted names. `build` evaluates it to a transformation; `render`
writes it as source. So the codemod writes the very recipe that the suite proves.
"""

import functools
import importlib
import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import Any

import numpy as np

from legacy_optim.deprecation import describing

# A part of a recipe: a `Call`, `Name`, `Setting` or `Source`, a plain value, or a tuple of these.
Node = object


@dataclass(frozen=True)
class Call:
    """A call of the object that a dotted name refers to.

    Attributes:
      target: e.g. `"optax.adamw"`.
      args: positional arguments: plain values, `Call`s, `Name`s, `Setting`s or `Source`s, or tuples
        of them.
      kwargs: keyword arguments, likewise.
    """

    target: str
    args: tuple[Node, ...] = ()
    kwargs: Mapping[str, Node] = field(default_factory=dict)


@dataclass(frozen=True)
class Name:
    """An object by its dotted name, e.g. `Name("jax.numpy.bfloat16")`."""

    dotted: str


@dataclass(frozen=True)
class Setting:
    """A placeholder for the legacy optimizer's setting of that name."""

    name: str
    index: int | None = None

    def of(self, settings: Mapping[str, Node]) -> Node:
        """Its value among settings."""
        value: Any = settings[self.name]
        if self.index is None:
            return value
        if isinstance(value, Source):
            item = None if value.value is None else value.value[self.index]
            return Source(f"{value.text}[{self.index}]", item)
        return value[self.index]


@dataclass(frozen=True)
class Source:
    """A value with source text: a variable of the program, for example, or a function."""

    text: str
    value: Any = None


def call(target: str, *args: Node, **kwargs: Node) -> Call:
    """`Call`, written like the call itself."""
    return Call(target, args, kwargs)


def substitute(node: Node, settings: Mapping[str, Node]) -> Any:
    """The recipe with every `Setting` replaced by its value."""
    if isinstance(node, Setting):
        return node.of(settings)
    if isinstance(node, Call):
        args, kwargs = substitute((tuple(node.args), dict(node.kwargs)), settings)
        return Call(node.target, args, kwargs)
    if isinstance(node, tuple):
        return tuple(substitute(item, settings) for item in node)
    if isinstance(node, dict):
        return {name: substitute(value, settings) for name, value in node.items()}
    return node


def replace_nodes(node: Node, others: Mapping[int, Node]) -> Any:
    """Returns the recipe with some nodes, by their `id`, replaced."""
    if id(node) in others:
        return others[id(node)]
    if isinstance(node, Call):
        kwargs = {name: replace_nodes(value, others) for name, value in node.kwargs.items()}
        return Call(node.target, tuple(replace_nodes(arg, others) for arg in node.args), kwargs)
    return tuple(replace_nodes(item, others) for item in node) if isinstance(node, tuple) else node


@describing()
def build(node: Node) -> Any:
    """Evaluates a recipe; an old definition in it is no use of the old API by the program."""
    if isinstance(node, Call):
        kwargs = {name: build(value) for name, value in node.kwargs.items()}
        return resolve(node.target)(*(build(arg) for arg in node.args), **kwargs)
    if isinstance(node, Name):
        return resolve(node.dotted)
    if isinstance(node, Source):
        return node.value
    if isinstance(node, tuple):
        return tuple(build(item) for item in node)
    return node


def render(node: Node) -> str:
    """Writes a recipe as a Python expression, on one line."""
    if isinstance(node, Call):
        args = [render(arg) for arg in node.args]
        args += [f"{name}={render(value)}" for name, value in node.kwargs.items()]
        return f"{node.target}({', '.join(args)})"
    if isinstance(node, Name):
        return node.dotted
    if isinstance(node, Source):
        return node.text
    if isinstance(node, tuple):
        comma = "," if len(node) == 1 else ""
        return f"({', '.join(map(render, node))}{comma})"
    return _literal(node)


def imports(node: Node) -> tuple[str, ...]:
    """The modules that `render(node)` needs imported, sorted."""
    return tuple(sorted(_modules(node)))


def _modules(node: Node) -> set[str]:
    if isinstance(node, Call):
        parts = [*node.args, *node.kwargs.values()]
        return {_split(node.target)[0]}.union(*map(_modules, parts))
    if isinstance(node, Name):
        return {_split(node.dotted)[0]}
    if isinstance(node, tuple):
        return set().union(*map(_modules, node))
    if isinstance(node, float):
        return set() if math.isfinite(node) else {"math"}
    return {"jax.numpy"} if _is_dtype(node) or is_array(node) else set()


def _literal(value: Any) -> str:
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        sign = "-" if value < 0 else ""
        return repr(value) if math.isfinite(value) else f"{sign}math.{abs(value)}"
    if _is_dtype(value):
        return f"jax.numpy.{np.dtype(value).name}"
    if is_array(value) and np.ndim(value) == 0:
        return f'jax.numpy.asarray({np.asarray(value).item()!r}, "{np.asarray(value).dtype.name}")'
    raise ValueError(
        f"{value!r} has no source form: expected a number, a string, None, a dtype or a scalar "
        "array; wrap anything else as recipe.Source(text, value)"
    )


def is_array(value: object) -> bool:
    """True for an array of NumPy or JAX; imports neither."""
    return not isinstance(value, type) and hasattr(value, "dtype") and hasattr(value, "ndim")


def _is_dtype(value: object) -> bool:
    is_numpy_type = isinstance(value, type) and issubclass(value, np.generic)
    # `jax.numpy.float32` and its like are no types of numpy's.
    is_jax_type = callable(value) and isinstance(getattr(value, "dtype", None), np.dtype)
    return is_numpy_type or is_jax_type or isinstance(value, np.dtype)


@functools.cache
def _split(dotted: str) -> tuple[str, tuple[str, ...]]:
    """The longest module prefix of a dotted name, and the attributes behind it."""
    parts = dotted.split(".")
    spec, end = importlib.util.find_spec(parts[0]), 1
    if spec is None:
        raise ValueError(f"{dotted!r} names nothing in any installed module")
    # Nothing is imported, which JAX would take a second for: a recipe is also printed alone.
    while end < len(parts) - 1 and spec.submodule_search_locations is not None:
        below = PathFinder.find_spec(".".join(parts[: end + 1]), spec.submodule_search_locations)
        if below is None:
            break
        spec, end = below, end + 1
    return ".".join(parts[:end]), tuple(parts[end:])


def resolve(dotted: str) -> Any:
    """The object that a dotted name refers to, imported."""
    module, attributes = _split(dotted)
    return functools.reduce(getattr, attributes, importlib.import_module(module))
