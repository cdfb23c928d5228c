"""The Python state of a step, and its changes.

A program that JAX compiles, or that a proof follows, is written down once: what the step changes
in Python is changed then, and never again. Such a side would be taken for one that does the same
at every step, so it is looked for: in what the step holds, in the functions, objects, classes and
modules of the user's that it names, and in the random numbers of Python and NumPy.
"""

import collections
import operator
import random
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping

import jax
import numpy as np

from equivalence_tests.sides.held_values import (
    DEPTH,
    LONGEST,
    PLAIN,
    Part,
    is_library,
    parts_of,
)

_CONTAINERS = (list, dict, set, collections.deque, bytearray)
# What is followed where a function names it, apart from objects of the user's classes.
_HOLDERS = (
    *(*PLAIN, *_CONTAINERS, tuple, type, types.FunctionType, types.GeneratorType, Iterator),
    *(np.ndarray, np.random.Generator, np.random.RandomState, random.Random, threading.local),
)
_LIBRARIES = ("equivalence_tests", "jaxlib", "keras", "legacy_optim", "optax_bridge", "torch")
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}


def plain_values(function: Callable[..., object]) -> dict[str, object]:
    """The plain values that a function has at hand: where -> value.

    Of a container its length is one, of an array of NumPy its bytes, of an iterator how much is
    left, of a generator of random numbers its state.
    """
    values: dict[str, object] = {
        "the state of random": _digest(repr(random.getstate())),
        "the state of np.random": _digest(_bytes_of(np.random.get_state(legacy=False))),
    }
    seen: set[int] = set()

    def collect(path: str, value: object, depth: int) -> None:
        if isinstance(value, PLAIN):
            while path in values:  # another object's of that name
                path += "'"
            values[path] = value
        elif depth < DEPTH and id(value) not in seen and not isinstance(value, jax.Array):
            seen.add(id(value))
            for text, measure in _measures(path, value):
                collect(text, measure, depth + 1)
            for part in (*_own_parts(value), *_named_parts(value)):
                collect(part.below(path), part.value, depth + 1)

    collect("", function, 0)
    return values


def python_changes(
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


def _digest(text: str) -> str:
    return text if len(text) < 40 else f"{text[:10]}...{hash(text):x}"


def _bytes_of(state: object) -> str:
    """Returns what identifies the state of a generator of NumPy, or an array's numbers."""
    if isinstance(state, dict):
        return ", ".join(_bytes_of(value) for value in state.values())
    return state.tobytes().hex() if isinstance(state, np.ndarray) else repr(state)


def _measures(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Yields what changes where a value changes in place, with the place."""
    if isinstance(value, _CONTAINERS):
        yield f"len({path})", len(value)
    if isinstance(value, bytearray) or (isinstance(value, np.ndarray) and value.dtype != object):
        yield (
            path,
            _digest(bytes(value).hex() if isinstance(value, bytearray) else _bytes_of(value)),
        )
    elif isinstance(value, set) and len(value) <= LONGEST:
        yield path, repr(sorted(map(repr, value)))
    elif isinstance(value, np.random.Generator):
        yield path, _digest(_bytes_of(value.bit_generator.state))
    elif isinstance(value, np.random.RandomState):
        yield path, _digest(_bytes_of(value.get_state(legacy=False)))
    elif isinstance(value, random.Random):
        yield path, _digest(repr(value.getstate()))
    elif isinstance(value, types.GeneratorType):
        yield path, value.gi_frame.f_lasti if value.gi_frame else "at its end"
    elif hasattr(value, "__next__"):  # `itertools.count` shows its number, others what is left
        is_count = type(value).__name__ == "count"
        yield path, repr(value) if is_count else operator.length_hint(value, -1)


def _own_parts(value: object) -> Iterator[Part]:
    """Yields what a value holds, attributes of functions and slots included."""
    if isinstance(value, np.ndarray):
        return
    yield from parts_of(value)
    if isinstance(value, types.FunctionType):
        yield from (Part(name, member, f"{value.__name__}.{name}") for name, member in _vars(value))
    elif isinstance(value, types.GeneratorType) and value.gi_frame:
        names = value.gi_frame.f_locals.items()
        yield from (Part(name, member, f".{name}") for name, member in names)
    elif isinstance(value, collections.deque) and len(value) <= LONGEST:
        yield from (Part(str(n), member, f"[{n}]") for n, member in enumerate(value))
    elif not isinstance(value, type) and _is_own(type(value)):
        slots = [s for kind in type(value).__mro__ for s in _slots(kind) if hasattr(value, s)]
        yield from (Part(name, getattr(value, name), f".{name}") for name in slots)


def _named_parts(value: object) -> Iterator[Part]:
    """Yields what a value reaches by name: globals, its class, and what a class has."""
    if isinstance(value, types.FunctionType):
        if _is_own(value):
            yield from _globals_of(value)
    elif isinstance(value, type):
        if _is_own(value):
            for name, member in _vars(value):
                inner = getattr(member, "__func__", getattr(member, "fget", member))
                if not name.startswith("__") or isinstance(inner, types.FunctionType):
                    yield Part(name, inner, f"{value.__name__}.{name}")
    elif _is_own(type(value)):
        yield from (Part(k.__name__, k, k.__name__) for k in type(value).__mro__ if _is_own(k))


def _globals_of(function: types.FunctionType) -> Iterator[Part]:
    """Yields the globals that a function names and `parts_of` leaves out."""
    listed = {part.path for part in parts_of(function)}
    names = set(_names(function.__code__)).intersection(function.__globals__)
    for name in sorted(names):
        other, path = function.__globals__[name], f"the global {name}"
        if isinstance(other, types.ModuleType):
            if _is_own_module(other.__name__):
                inner = sorted(set(_names(function.__code__)).intersection(vars(other)))
                yield from (Part(n, vars(other)[n], f"{name}.{n}") for n in inner)
        elif path not in listed and (isinstance(other, _HOLDERS) or _is_own(type(other))):
            yield Part(name, other, path)


def _is_own(value: type | types.FunctionType) -> bool:
    """True if a class or a function is the user's."""
    return _is_own_module(value.__module__ or "")


def _is_own_module(name: str) -> bool:
    root = name.partition(".")[0]
    ours = root in _LIBRARIES and not name.endswith("_test")
    return not (ours or root in _STANDARD or is_library(name))


def _vars(value: object) -> list[tuple[str, object]]:
    return list(vars(value).items())[:LONGEST]


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the global names and attributes that code names, that of functions in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
