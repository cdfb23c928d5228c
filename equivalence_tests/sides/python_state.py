"""Values that a side keeps in Python: a counter in a closure, an attribute, a global variable.

A program that JAX compiles, or that a proof follows, is written down once: what the step changes in
Python is changed then, and never again. Such a side would be taken for one that does the same at
every step, so it is looked for.
"""

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

_DEPTH = 32  # functions in functions, as `optax.chain` makes; no object is looked into twice
_LONGEST = 64  # of a list or a mapping; longer ones are data or caches
_PLAIN = (bool, int, float, complex, str, type(None), np.generic)


def plain_values(*functions: Callable[..., Any]) -> dict[str, object]:
    """The plain values that functions have at hand: where -> value.

    Args:
      functions: their closures, the objects that they are methods of, and the global variables that
        they name are followed.
    """
    found: dict[str, object] = {}
    seen: set[int] = set()
    for function in functions:
        for path, value in _held_by(function):
            _collect(path, value, found, seen, 0)
    return found


def changed(
    before: Mapping[str, object], after: Mapping[str, object], *, new: bool
) -> dict[str, str]:
    """Returns the values that changed: where -> both values as text.

    Args:
      before: of `plain_values`.
      after: the same, later.
      new: whether what was not there before counts.
    """
    return {
        path.rstrip("'"): f"{before.get(path, 'nothing')!r} -> {value!r}"
        for path, value in after.items()
        if (before[path] is not value and before[path] != value if path in before else new)
    }


def _collect(path: str, value: Any, found: dict[str, object], seen: set[int], depth: int) -> None:
    if isinstance(value, _PLAIN):
        while path in found:  # another object's of that name
            path += "'"
        found[path] = value
        return
    if depth == _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    for name, inner in _parts(path, value):
        _collect(name, inner, found, seen, depth + 1)


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list | tuple) and len(value) <= _LONGEST:
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, dict) and len(value) <= _LONGEST:
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif callable(value) and not isinstance(value, type):
        yield from _held_by(value)
        yield from _attributes(path, value)
    elif type(value).__module__ != "builtins" and not isinstance(value, types.ModuleType):
        yield from _attributes(path, value)


def _attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType | types.MethodType):
        return
    for name, item in list(getattr(value, "__dict__", {}).items())[:_LONGEST]:
        yield f"{path}.{name}", item


def _held_by(function: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(function, functools.partial):
        yield "partial", function.func
        yield "its arguments", [*function.args, *function.keywords.values()]
        return
    if isinstance(function, types.MethodType):
        yield from _attributes("self", function.__self__)
        yield from _class_numbers(type(function.__self__))
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, (*_PLAIN, list, dict)) and name in function.__globals__:
            yield f"the global {name}", value


def _class_numbers(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if isinstance(value, bool | int | float) and not name.startswith("__"):
            yield f"{kind.__name__}.{name}", value
