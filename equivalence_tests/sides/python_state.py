"""The Python state of a step, and its changes.

A program that JAX compiles, or that a proof follows, is written down once: what the step changes
in Python is changed then, and never again. Such a side would be taken for one that does the same
at every step, so it is looked for: in what the step holds, in the functions, objects, classes and
modules of the user's that it names, and in the random numbers of Python and NumPy.
"""

import array
import collections
import contextlib
import ctypes
import decimal
import enum
import fractions
import functools
import gc
import io
import itertools
import operator
import random
import sys
import types
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePath

import jax
import numpy as np

from equivalence_tests.sides.held_values import (
    LONGEST,
    PLAIN,
    Part,
    attributes_of,
    is_library,
    parts_of,
    text_of,
)
from equivalence_tests.sides.same_program import digest_of

_VALUES = (*PLAIN, bytes, decimal.Decimal, enum.Enum, fractions.Fraction)
_CONTAINERS = (list, dict, set, collections.deque, bytearray, array.array)
_BUFFERS = (bytearray, array.array, memoryview, ctypes.c_int.__mro__[-2])  # all of ctypes
_OF_ARRAYS = (jax.Array, np.ndarray, np.random.Generator, np.random.RandomState)
# Objects of Python that hold others in ways that are followed by name, or not at all.
_NAMED = (
    *(list, dict, tuple, set, frozenset, type, types.FunctionType, types.ModuleType),
    *(types.CodeType, types.FrameType, types.TracebackType, types.CellType),
)
_LIBRARIES = ("equivalence_tests", "jaxlib", "keras", "legacy_optim", "optax_bridge", "torch")
_STANDARD = frozenset(sys.stdlib_module_names) - {"__main__"}
_INSTALLED = {"site-packages", "dist-packages"}
# Where the classes of Python itself come from: asking their objects runs no code of the user's.
_OF_PYTHON = ("builtins", "itertools", "collections", "_collections", "functools", "_queue")

Reached = Iterator[tuple[str, object]]  # where -> what is there


def plain_values(function: Callable[..., object]) -> dict[str, object]:
    """The plain values that a function has at hand: where -> value."""
    values: dict[str, object] = {
        "the state of random": _digest(repr(random.getstate())),
        "the state of np.random": _digest(digest_of(np.random.get_state(legacy=False))),
    }
    seen: dict[int, object] = {}  # kept, so that nothing that is made later has the same id
    waiting: list[tuple[str, object]] = [("", function)]
    while waiting:
        path, value = waiting.pop()
        with contextlib.suppress(Exception):
            if isinstance(value, (*_VALUES, jax.Array)):
                while path in values:  # another object's of that name
                    path += "'"
                values[path] = value
                if not _is_own(type(value)):
                    continue
            if id(value) not in seen:
                seen[id(value)] = value
                waiting += reversed(_all_reached(path, value))
    return values


def python_changes(
    before: Mapping[str, object], after: Mapping[str, object], *, new: bool
) -> dict[str, str]:
    """Returns the values that changed: where -> both values as text."""
    return {
        path.rstrip("'"): f"{text_of(before.get(path, 'nothing'))} -> {text_of(value)}"
        for path, value in after.items()
        if (new if path not in before else _is_changed(before[path], value, new))
    }


def _is_changed(before: object, after: object, new: bool) -> bool:
    """True if values differ; NaN does not from NaN, and of arrays of JAX only new ones do."""
    if isinstance(after, jax.Array):
        return new and before is not after
    with contextlib.suppress(Exception):  # of a number of the user's
        both_nan = before != before and after != after
        return before is not after and bool(before != after) and not both_nan
    return False


def _digest(text: str) -> str:
    return text if len(text) < 40 else f"{text[:10]}...{hash(text):x}"


def _all_reached(path: str, value: object) -> list[tuple[str, object]]:
    """Returns what is reached from a value, and measures of it, in each of the ways."""
    reached: list[tuple[str, object]] = []
    with contextlib.suppress(Exception):
        reached.extend(_measures(path, value))
    for parts in (parts_of(value), _own_parts(value), _named_parts(value)):
        with contextlib.suppress(Exception):
            for part in parts:
                if _is_followed(value, part):
                    reached.append((part.below(path), part.value))
    with contextlib.suppress(Exception):
        reached += [(path, inner) for inner in _behind(value)]
    return reached


def _measures(path: str, value: object) -> Reached:
    """Yields what changes where a value changes in place, with the place."""
    kind = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    if kind is not None:  # of the class of Python: a class of the user's may count another way
        yield f"len({path})", kind.__len__(value)  # pyright: ignore[reportArgumentType]
    if isinstance(value, _BUFFERS):
        content = memoryview(value).tobytes()  # pyright: ignore[reportArgumentType]
        yield path, content.hex() if len(content) <= 16 else f"{zlib.crc32(content):x}"
    elif isinstance(value, io.StringIO | io.BytesIO):
        yield path, f"{hash(value.getvalue()):x} at {value.tell()}"
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            yield path, _entries(value.flat)
        elif not isinstance(value, np.memmap):  # a file
            yield path, digest_of(value)
    elif isinstance(value, set | frozenset):
        yield path, repr(sorted(map(text_of, value))) if len(value) <= LONGEST else _entries(value)
    elif isinstance(value, list | tuple | collections.deque) and len(value) > LONGEST:
        yield path, _entries(value)
    elif isinstance(value, dict):
        if len(value) > LONGEST:
            yield path, _entries(dict.values(value))
        yield f"the order of {path}", _entries(_keys(value))
    elif isinstance(value, np.random.Generator):
        yield path, _digest(digest_of(value.bit_generator.state))
    elif isinstance(value, np.random.RandomState):
        yield path, _digest(digest_of(value.get_state(legacy=False)))
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


def _keys(value: dict[object, object]) -> Iterator[object]:
    """Yields the keys in their order, by the methods of Python's own classes."""
    ordered = isinstance(value, collections.OrderedDict)
    return collections.OrderedDict.__iter__(value) if ordered else dict.__iter__(value)


def _behind(value: object) -> Iterator[object]:
    """Yields what an object of Python refers to and does not name, as an iterator does."""
    if isinstance(value, types.GeneratorType):  # what it yields from, and its loops
        yield from (inner for inner in gc.get_referents(value) if isinstance(inner, Iterator))
    elif type(value).__module__ in _OF_PYTHON and not isinstance(value, _NAMED):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                state = value.__reduce__()[1:] if isinstance(value, Iterator) else ()
        except TypeError:  # itertools' are no longer copied from Python 3.14 on
            state = ()
        for inner in state or (tuple(gc.get_referents(value)),):
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
            elif path not in listed and _is_holder(other):
                yield Part(name, other, path)


def _is_holder(value: object) -> bool:
    """True of what is followed where a function names it: arrays, and Python's and own objects."""
    root = type(value).__module__.partition(".")[0]
    if root in _STANDARD:
        return root != "logging"  # a log counts for itself
    return isinstance(value, _OF_ARRAYS) or _is_own(type(value))


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
