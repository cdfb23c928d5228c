"""The values that an object holds in Python: its settings.

They are found by name, and changed in a copy of the object.
"""

import copy
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

DEPTH = 32  # functions in functions, as `optax.chain` makes
LONGEST = 64  # of a tuple or a mapping; longer ones are data or caches
SCALARS = (bool, int, float)
PLAIN = (*SCALARS, complex, str, type(None), np.generic)

Change = Mapping[tuple[str, object], object]  # (name, value) -> the new value


def settings_of(*values: object) -> dict[str, object]:
    """Returns the numbers and flags that functions and objects hold: name -> value."""
    named: dict[str, list[object]] = {}
    for name, value in _scalars(values, set(), 0):
        others = named.setdefault(name, [])
        if not any(type(value) is type(other) and value == other for other in others):
            others.append(value)
    return {
        name if not number else f"{name}#{number + 1}": value
        for name, values in named.items()
        for number, value in enumerate(values)
    }


def with_settings(
    value: object, before: Mapping[str, object], changes: Mapping[str, object]
) -> Any:
    """Returns a copy of an object in which some of its settings have other values."""
    change = {(name.partition("#")[0], before[name]): new for name, new in changes.items()}
    return _Copy(change).of(value, 0)


def literals(*values: object) -> list[float]:
    """Returns the floating-point literals in the source of functions, and of those they hold."""
    numbers: dict[float, None] = {}

    def visit(code: types.CodeType) -> None:
        for constant in code.co_consts:
            if isinstance(constant, float):
                numbers[constant] = None
            elif isinstance(constant, types.CodeType):
                visit(constant)

    for function in functions_within(values):
        if not is_library(function.__module__):
            visit(function.__code__)
    return list(numbers)


def functions_within(value: object) -> Iterator[types.FunctionType]:
    """Yields the functions that an object holds, each once, methods of its class included."""
    yield from _functions(value, set(), 0)


def _functions(value: object, seen: set[int], depth: int) -> Iterator[types.FunctionType]:
    if depth > DEPTH or id(value) in seen or isinstance(value, SCALARS):
        return
    seen.add(id(value))
    if isinstance(value, types.FunctionType):
        yield value
        for name in value.__code__.co_names:  # what it calls in its own module
            other = value.__globals__.get(name)
            is_own = isinstance(other, types.FunctionType) and other.__module__ == value.__module__
            if is_own and not is_library(value.__module__):
                yield from _functions(other, seen, depth + 1)
    elif depth == 0 or not isinstance(value, type | types.ModuleType):
        for method in vars(type(value)).values() if hasattr(value, "__dict__") else ():
            if isinstance(method, types.FunctionType):
                yield from _functions(method, seen, depth + 1)
    for part in parts_of(value):
        yield from _functions(part.value, seen, depth + 1)


def is_library(module: str | None) -> bool:
    """True if a module, given by name, is one of the libraries that optimizers are made of."""
    return (module or "").partition(".")[0] in ("jax", "optax", "flax", "numpy", "chex")


def _scalars(value: object, seen: set[int], depth: int) -> Iterator[tuple[str, object]]:
    if depth > DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    for part in parts_of(value):
        if isinstance(part.value, SCALARS):
            yield part.name, part.value
        elif not part.path.startswith("the global "):
            yield from _scalars(part.value, seen, depth + 1)


class Part(NamedTuple):
    """A value that an object holds; `path` says where, from the path of the object."""

    name: str
    value: object
    path: str

    def below(self, path: str) -> str:
        """Returns the path of the value in an object at a path; a variable has its name alone."""
        return path + self.path if self.path[:1] in (".", "[") else self.path


def parts_of(value: object) -> Iterator[Part]:
    """Yields what an object holds, by name."""
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if _is_filled(cell):
                yield Part(name, cell.cell_contents, name)
        for name, default in (_defaults(value) | (value.__kwdefaults__ or {})).items():
            yield Part(name, default, name)
        for name in filter(value.__globals__.__contains__, value.__code__.co_names):
            if isinstance(value.__globals__[name], (*PLAIN, list, dict)):
                yield Part(name, value.__globals__[name], f"the global {name}")
    elif isinstance(value, functools.partial):
        yield Part("function", value.func, "partial")
        arguments = [*((str(n), arg) for n, arg in enumerate(value.args)), *value.keywords.items()]
        yield from (Part(name, part, f"its argument {name}") for name, part in arguments)
    elif isinstance(value, types.MethodType):
        yield Part("self", value.__self__, "self")
        yield Part("function", value.__func__, "function")
    elif isinstance(value, tuple | list | dict) and len(entries := _entries(value)) <= LONGEST:
        for key, part in entries:
            yield Part(text_of(key, str), part, f"[{text_of(key)}]")
    elif not isinstance(value, type | types.ModuleType):
        yield from (Part(name, part, f".{name}") for name, part in attributes_of(value))


def attributes_of(value: object) -> list[tuple[str, object]]:
    """Returns the first attributes of an object; none where its own methods raise."""
    try:
        return list(vars(value).items())[:LONGEST]
    except Exception:
        return []


def text_of(value: object, show: Callable[[object], str] = repr) -> str:
    """Returns a value as text, also where it raises when it is shown."""
    try:
        return show(value)
    except Exception:
        return f"a {type(value).__name__}"


def _entries(value: tuple[object, ...] | list[object] | dict[object, object]) -> list[Any]:
    """Returns the first keys and values, one more than `LONGEST`; the methods are Python's own."""
    if isinstance(value, dict):
        entries = dict.items(value)
    else:
        entries = enumerate(
            tuple.__iter__(value) if isinstance(value, tuple) else list.__iter__(value)
        )
    return list(itertools.islice(entries, LONGEST + 1))


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _defaults(function: types.FunctionType) -> dict[str, object]:
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))


class _Copy:
    """Copies objects with some of their settings changed; what holds none of them stays itself."""

    def __init__(self, change: Change):
        self.change = change
        self.copies: dict[int, object] = {}

    def setting(self, name: str, value: object, depth: int) -> object:
        if isinstance(value, SCALARS):
            for (changed, before), new in self.change.items():
                if changed == name and type(before) is type(value) and before == value:
                    return new
            return value
        return self.of(value, depth)

    def of(self, value: object, depth: int) -> object:
        """Returns the copy of a value, or itself where nothing in it changes."""
        if depth > DEPTH or isinstance(value, SCALARS):
            return value
        if id(value) not in self.copies:
            self.copies[id(value)] = value  # where it holds itself
            parts = list(parts_of(value))
            copies = [self.setting(part.name, part.value, depth + 1) for part in parts]
            if any(part.value is not new for part, new in zip(parts, copies, strict=True)):
                named = {part.name: new for part, new in zip(parts, copies, strict=True)}
                self.copies[id(value)] = _with_parts(value, named, copies)
        return self.copies[id(value)]


def _with_parts(value: object, parts: Mapping[str, Any], in_order: list[Any]) -> object:
    """Returns an object like a given one that holds other parts."""
    if isinstance(value, types.FunctionType):
        return _function(value, parts)
    if isinstance(value, functools.partial):
        args = in_order[1 : 1 + len(value.args)]
        return functools.partial(in_order[0], *args, **{k: parts[k] for k in value.keywords})
    if isinstance(value, types.MethodType):
        return types.MethodType(in_order[1], in_order[0])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*in_order)
    if isinstance(value, tuple | list):
        return type(value)(in_order)
    if isinstance(value, dict):
        return type(value)(zip(value, in_order, strict=True))
    duplicate = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(duplicate, name, part)  # of a frozen dataclass as well
    return duplicate


def _function(value: types.FunctionType, parts: Mapping[str, Any]) -> Callable[..., object]:
    changed_globals = {name: parts[name] for name in value.__code__.co_names if name in parts}
    cells = tuple(
        types.CellType(parts[name]) if _is_filled(cell) else cell
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    )
    duplicate = types.FunctionType(
        value.__code__,
        {**value.__globals__, **changed_globals} if changed_globals else value.__globals__,
        value.__name__,
        tuple(parts[name] for name in _defaults(value)) or None,
        cells or None,
    )
    duplicate.__kwdefaults__ = {name: parts[name] for name in value.__kwdefaults__ or {}} or None
    duplicate.__qualname__, duplicate.__module__ = value.__qualname__, value.__module__
    return duplicate
