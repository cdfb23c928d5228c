"""The settings that an object holds in Python: numbers and flags in closures and attributes.

They are found by name, and changed in a copy of the object.
"""

import copy
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_DEPTH = 32  # functions in functions, as `optax.chain` makes
_LONGEST = 64  # of a tuple or a mapping; longer ones are data or caches
_SCALARS = (bool, int, float)

Change = Mapping[tuple[str, object], object]  # (name, value) -> the new value


def settings_of(*values: object) -> dict[str, object]:
    """Returns the numbers and flags that functions and objects hold: name -> value."""
    named: dict[str, list[object]] = {}
    for name, value in search_members(values, _is_scalar, set()):
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

    for function in _functions(values, set(), 0):
        if not _is_library(function):
            visit(function.__code__)
    return list(numbers)


def _functions(value: object, seen: set[int], depth: int) -> Iterator[types.FunctionType]:
    """Yields the functions that an object holds, methods of its class included."""
    if depth > _DEPTH or id(value) in seen or isinstance(value, _SCALARS):
        return
    seen.add(id(value))
    members = [member for _, member in _members_of(value)]
    if isinstance(value, types.FunctionType):
        yield value
        called = map(value.__globals__.get, value.__code__.co_names)
        members += [f for f in called if getattr(f, "__module__", None) == value.__module__]
    elif not isinstance(value, type | types.ModuleType) and hasattr(value, "__dict__"):
        members += vars(type(value)).values()
    for member in members:
        if not isinstance(member, type | types.ModuleType):
            yield from _functions(member, seen, depth + 1)


def _is_library(function: types.FunctionType) -> bool:
    """True if a function is of one of the libraries that optimizers are made of."""
    root = (function.__module__ or "").partition(".")[0]
    return root in ("jax", "optax", "flax", "numpy", "chex")


def search_members(
    value: object, is_wanted: Callable[[str, object], bool], seen: set[int], depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """Yields the members of an object, and of its members, that are wanted."""
    if depth > _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    for name, member in _members_of(value):
        if is_wanted(name, member):
            yield name, member
        else:
            yield from search_members(member, is_wanted, seen, depth + 1)


def _is_scalar(name: str, member: object) -> bool:
    return isinstance(member, _SCALARS)


def _members_of(value: object) -> Iterator[tuple[str, object]]:
    """Yields the members of an object by name; of a function's globals, only numbers."""
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if _is_filled(cell):
                yield name, cell.cell_contents
        yield from (_defaults(value) | (value.__kwdefaults__ or {})).items()
        named = {name: value.__globals__.get(name) for name in value.__code__.co_names}
        yield from ((name, it) for name, it in named.items() if isinstance(it, _SCALARS))
    elif isinstance(value, functools.partial):
        yield "function", value.func
        yield from ((str(n), argument) for n, argument in enumerate(value.args))
        yield from value.keywords.items()
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield "function", value.__func__
    elif isinstance(value, tuple | list | dict):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        if len(value) <= _LONGEST:
            yield from ((str(key), member) for key, member in entries)
    elif not isinstance(value, type | types.ModuleType):
        yield from itertools.islice(getattr(value, "__dict__", {}).items(), _LONGEST)


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
    """Copies objects with some of their settings changed; objects without them are not copied."""

    def __init__(self, change: Change):
        self.change = change
        self.copies: dict[int, object] = {}

    def setting(self, name: str, value: object, depth: int) -> object:
        if isinstance(value, _SCALARS):
            for (changed, before), new in self.change.items():
                if changed == name and type(before) is type(value) and before == value:
                    return new
            return value
        return self.of(value, depth)

    def of(self, value: object, depth: int) -> object:
        """Returns the copy of a value, or itself where nothing in it changes."""
        if depth > _DEPTH or isinstance(value, _SCALARS):
            return value
        if id(value) not in self.copies:
            self.copies[id(value)] = value  # where it holds itself
            members = list(_members_of(value))
            copies = [self.setting(name, member, depth + 1) for name, member in members]
            if any(old is not new for (_, old), new in zip(members, copies, strict=True)):
                named = {name: new for (name, _), new in zip(members, copies, strict=True)}
                self.copies[id(value)] = _with_members(value, named, copies)
        return self.copies[id(value)]


def _with_members(value: object, members: Mapping[str, Any], in_order: list[Any]) -> object:
    """Returns an object like a given one that holds other members."""
    if isinstance(value, types.FunctionType):
        return _function(value, members)
    if isinstance(value, functools.partial):
        args = in_order[1 : 1 + len(value.args)]
        return functools.partial(in_order[0], *args, **{k: members[k] for k in value.keywords})
    if isinstance(value, types.MethodType):
        return types.MethodType(in_order[1], in_order[0])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*in_order)
    if isinstance(value, tuple | list):
        return type(value)(in_order)
    if isinstance(value, dict):
        return type(value)(zip(value, in_order, strict=True))
    duplicate = copy.copy(value)
    for name, member in members.items():
        object.__setattr__(duplicate, name, member)  # of a frozen dataclass as well
    return duplicate


def _function(value: types.FunctionType, members: Mapping[str, Any]) -> Callable[..., object]:
    changed_globals = {name: members[name] for name in value.__code__.co_names if name in members}
    cells = tuple(
        types.CellType(members[name]) if _is_filled(cell) else cell
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    )
    duplicate = types.FunctionType(
        value.__code__,
        {**value.__globals__, **changed_globals} if changed_globals else value.__globals__,
        value.__name__,
        tuple(members[name] for name in _defaults(value)) or None,
        cells or None,
    )
    duplicate.__kwdefaults__ = {name: members[name] for name in value.__kwdefaults__ or {}} or None
    duplicate.__qualname__, duplicate.__module__ = value.__qualname__, value.__module__
    return duplicate
