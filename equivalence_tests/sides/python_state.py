"""The Python state of a step, and its changes.

A program that JAX compiles, or that a proof follows, is written down once: what the step changes
in Python is changed then, and never again. Such a side would be taken for one that does the same
at every step, so it is looked for: in what the step holds, in the functions, objects, classes and
modules of the user's that it names, and in the random numbers of Python and NumPy.
"""

import argparse
import array
import collections
import contextlib
import decimal
import enum
import fractions
import functools
import gc
import itertools
import operator
import random
import re
import sys
import threading
import types
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath

import jax
import numpy as np
from jax.extend import core

from equivalence_tests.sides.held_values import (
    DEPTH,
    LONGEST,
    PLAIN,
    Part,
    attributes_of,
    is_library,
    parts_of,
    text_of,
)

_VALUES = (*PLAIN, bytes, decimal.Decimal, enum.Enum, fractions.Fraction)
_CONTAINERS = (list, dict, set, collections.deque, bytearray, array.array)
# What is followed where a function names it, apart from objects of the user's classes.
_HOLDERS = (
    *(*_VALUES, *_CONTAINERS, tuple, type, types.FunctionType, types.GeneratorType, Iterator),
    *(np.ndarray, np.random.Generator, np.random.RandomState, random.Random, threading.local),
    *(types.MethodType, functools.partial, types.SimpleNamespace, argparse.Namespace),
    *(collections.UserDict, collections.UserList, collections.ChainMap),
)
_LIBRARIES = ("equivalence_tests", "jaxlib", "keras", "legacy_optim", "optax_bridge", "torch")
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}
_INSTALLED = {"site-packages", "dist-packages"}
# Where the iterators of Python itself come from: asking them runs no code of the user's.
_OF_PYTHON = ("builtins", "itertools", "collections", "_collections")
_ADDRESS = re.compile("0x[0-9a-f]+")

Reached = Iterator[tuple[str, object]]  # where -> what is there


def plain_values(function: Callable[..., object]) -> dict[str, object]:
    """The plain values that a function has at hand: where -> value.

    Of a container its length is one, of an array of NumPy what its bytes come to, of an iterator
    how much is left, of a generator of random numbers its state. What cannot be inspected, as an
    object whose own methods raise, is left out.
    """
    values: dict[str, object] = {
        "the state of random": _digest(repr(random.getstate())),
        "the state of np.random": _digest(_bytes_of(np.random.get_state(legacy=False))),
    }
    seen: dict[int, object] = {}  # kept, so that nothing that is made later has the same id

    def collect(path: str, value: object, depth: int) -> None:
        if isinstance(value, _VALUES):
            while path in values:  # another object's of that name
                path += "'"
            values[path] = value
        elif depth < DEPTH and id(value) not in seen and not isinstance(value, jax.Array):
            seen[id(value)] = value
            for reached in _all_reached(path, value):
                with contextlib.suppress(Exception):
                    for inner_path, inner in reached:
                        with contextlib.suppress(Exception):
                            collect(inner_path, inner, depth + 1)

    with contextlib.suppress(Exception):
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
        path.rstrip("'"): f"{text_of(before.get(path, 'nothing'))} -> {text_of(value)}"
        for path, value in after.items()
        if (_is_changed(before[path], value) if path in before else new)
    }


def is_same_program(first: core.ClosedJaxpr, later: core.ClosedJaxpr) -> bool:
    """True if a step that was traced twice was the same program both times."""
    texts = (_ADDRESS.sub("", str(program.jaxpr)) for program in (first, later))
    constants = ([*map(_bytes_of, _constants(program))] for program in (first, later))
    return operator.eq(*texts) and operator.eq(*constants)


def _constants(program: core.Jaxpr | core.ClosedJaxpr) -> Iterator[np.ndarray]:
    """Yields the constants of a program, and of those within it."""
    if isinstance(program, core.ClosedJaxpr):
        for value in program.consts:
            is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
            yield np.asarray(jax.random.key_data(value) if is_key else value)
        program = program.jaxpr
    for eqn in program.eqns:
        for value in jax.tree.leaves(list(eqn.params.values())):
            if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
                yield from _constants(value)


def _is_changed(before: object, after: object) -> bool:
    """True if values differ; NaN does not from NaN."""
    with contextlib.suppress(Exception):  # of a number of the user's
        both_nan = before != before and after != after
        return before is not after and bool(before != after) and not both_nan
    return False


def _digest(text: str) -> str:
    return text if len(text) < 40 else f"{text[:10]}...{hash(text):x}"


def _bytes_of(state: object) -> str:
    """Returns what identifies the state of a generator of NumPy, or an array's numbers."""
    if isinstance(state, dict):
        return ", ".join(_bytes_of(value) for value in state.values())
    if not isinstance(state, np.ndarray):
        return repr(state)
    numbers = np.ascontiguousarray(state).reshape(-1).view(np.uint8)
    return f"{state.dtype}{list(state.shape)} {zlib.crc32(numbers.data):x}"


def _all_reached(path: str, value: object) -> Iterator[Reached]:
    """Yields what is reached from a value, and measures of it, in each of the ways."""
    yield _measures(path, value)
    for parts in (parts_of(value), _own_parts(value), _named_parts(value)):
        yield ((part.below(path), part.value) for part in parts if _is_followed(value, part))
    yield ((path, inner) for inner in _behind(value))


def _measures(path: str, value: object) -> Reached:
    """Yields what changes where a value changes in place, with the place."""
    kind = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if kind is not None:  # of the class of Python: a class of the user's may count another way
        yield f"len({path})", kind.__len__(value)  # pyright: ignore[reportArgumentType]
    if isinstance(value, bytearray | array.array):
        yield path, zlib.crc32(value)
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield path, _entries(value.flat)
        elif not isinstance(value, np.memmap):  # a file
            yield path, _bytes_of(value)
    elif isinstance(value, set | frozenset):
        yield path, repr(sorted(map(text_of, value))) if len(value) <= LONGEST else _entries(value)
    elif isinstance(value, list | tuple | collections.deque) and len(value) > LONGEST:
        yield path, _entries(value)
    elif isinstance(value, dict) and len(value) > LONGEST:
        yield path, _entries(dict.values(value))
    elif isinstance(value, np.random.Generator):
        yield path, _digest(_bytes_of(value.bit_generator.state))
    elif isinstance(value, np.random.RandomState):
        yield path, _digest(_bytes_of(value.get_state(legacy=False)))
    elif isinstance(value, random.Random):
        yield path, _digest(repr(value.getstate()))
    elif isinstance(value, types.GeneratorType):
        yield path, value.gi_frame.f_lasti if value.gi_frame else "at its end"
    elif isinstance(value, itertools.count):
        yield path, repr(value)
    elif isinstance(value, Iterator) and type(value).__module__ in _OF_PYTHON:
        yield path, operator.length_hint(value, -1)


def _entries(values: Iterable[object]) -> str:
    """Returns what the plain entries of a long container come to."""
    plain = (value for value in values if isinstance(value, _VALUES))
    return f"entries {hash(tuple(value if value == value else 'nan' for value in plain)):x}"


def _behind(value: object) -> Iterator[object]:
    """Yields what an iterator or a generator goes through, and how far it is."""
    if isinstance(value, types.GeneratorType):  # what it yields from, and its loops
        yield from (inner for inner in gc.get_referents(value) if isinstance(inner, Iterator))
    elif isinstance(value, Iterator) and type(value).__module__ in _OF_PYTHON:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = value.__reduce__()[1:]
        except TypeError:  # itertools' are no longer copied from Python 3.14 on
            state = (tuple(gc.get_referents(value)),)
        for inner in state:
            yield from inner if isinstance(inner, tuple) else (inner,)


def _own_parts(value: object) -> Iterator[Part]:
    """Yields what a value holds and `parts_of` leaves out, attributes of functions say."""
    if isinstance(value, types.FunctionType):
        yield from (Part(name, m, f"{value.__name__}.{name}") for name, m in attributes_of(value))
    elif isinstance(value, types.GeneratorType) and value.gi_frame:
        names = value.gi_frame.f_locals.items()
        yield from (Part(name, member, f".{name}") for name, member in names)
    elif isinstance(value, collections.deque) and len(value) <= LONGEST:
        yield from (Part(str(n), member, f"[{n}]") for n, member in enumerate(value))
    elif isinstance(value, np.ndarray) and value.dtype == object and value.size <= LONGEST:
        yield from (Part(str(n), member, f"[{n}]") for n, member in enumerate(value.flat))
    if not isinstance(value, type) and _is_own(type(value)):
        if isinstance(value, tuple | list | dict):
            yield from (Part(name, member, f".{name}") for name, member in attributes_of(value))
        for slot in _slots(type(value)):
            with contextlib.suppress(AttributeError):  # it is not filled
                yield Part(slot.__name__, slot.__get__(value), f".{slot.__name__}")


def _named_parts(value: object) -> Iterator[Part]:
    """Yields what a value reaches by name: globals, its class, and what a class has."""
    if isinstance(value, types.FunctionType):
        if _is_own(value):
            yield from _globals_of(value)
    elif isinstance(value, type):
        if _is_own(value):
            for name, member in attributes_of(value):
                inner = _function_of(member)
                if not name.startswith("__") or isinstance(inner, types.FunctionType):
                    yield Part(name, inner, f"{value.__name__}.{name}")
    elif _is_own(type(value)):
        yield from (Part(k.__name__, k, k.__name__) for k in type(value).__mro__ if _is_own(k))


def _is_followed(value: object, part: Part) -> bool:
    """False of a global of a library's, as the counters of a log are."""
    if isinstance(value, types.FunctionType) and part.path.startswith("the global "):
        return _is_own(value)
    return True


def _function_of(member: object) -> object:
    """Returns the function of a method or a property as its class has it; else the member."""
    if isinstance(member, staticmethod | classmethod):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, functools.cached_property) else member


def _globals_of(function: types.FunctionType) -> Iterator[Part]:
    """Yields the globals that a function names and `parts_of` leaves out."""
    listed = {part.path for part in parts_of(function)}
    names = set(_names(function.__code__)).intersection(function.__globals__)
    for name in sorted(names):
        other, path = function.__globals__[name], f"the global {name}"
        with contextlib.suppress(Exception):  # it raises when it is asked for its class, say
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
    """True if a module is the user's: of no library, and not installed where packages are."""
    root = name.partition(".")[0]
    ours = root in _LIBRARIES and not name.endswith("_test")
    if ours or root in _STANDARD or is_library(name):
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return not _INSTALLED.intersection(PurePath(file).parts)


def _slots(kind: type) -> Iterator[types.MemberDescriptorType]:
    for each in kind.__mro__:
        yield from (s for s in vars(each).values() if isinstance(s, types.MemberDescriptorType))


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the global names and attributes that code names, that of functions in it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
