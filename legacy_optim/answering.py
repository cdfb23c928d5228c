"""Modules that answer for old names: under an old name of their own, or for what another lost."""

import contextlib
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from legacy_optim import hooks
from legacy_optim.uses import note

Undo = Callable[[], object]
# From an owner's name and a name in it to what answers; raises KeyError where nothing does.
Answer = Callable[[str, str], object]
# From an owner's name to the names in it that something answers for.
Names = Callable[[str], list[str]]
# From a dotted name to an explanation in place of "no such attribute", or None.
Explain = Callable[[str], str | None]


class Answering(types.ModuleType):
    """A module under a name that is gone."""

    def __init__(self, name: str, answer: Answer, explain: Explain, names: Names):
        super().__init__(name)
        self.__dict__["_answering"] = answer
        self.__dict__["_explain"] = explain
        self.__dict__["_names"] = names

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            note(f"{self.__name__}.*")
            return self._names(self.__name__)
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        try:
            value = self._answering(self.__name__, name)
        except KeyError:
            text = self._explain(full) or (
                f"module {self.__name__!r} never had {name!r}, or it has no equivalent today"
            )
            raise hooks.missing_name(text, sys._getframe(1), self.__name__) from None
        if not isinstance(value, Answering):
            note(full)
        return value


def member(module: str, path: str) -> Any:
    """`path`, a name or dotted names, in a module; raises KeyError where it is not there."""
    value = importlib.import_module(module)
    for name in path.split("."):
        if not hasattr(value, name) and isinstance(value, types.ModuleType):
            with contextlib.suppress(ModuleNotFoundError):  # a module that nothing imported yet
                importlib.import_module(f"{value.__name__}.{name}")
        if not hasattr(value, name):
            raise KeyError(f"{module}.{path}")
        value = getattr(value, name)
    return value


def value(dotted: str) -> Any:
    """Returns the object of a dotted name or of a builtin's name, or raises KeyError."""
    module, _, path = dotted.rpartition(".")
    while module:
        try:
            return member(module, path)
        except ModuleNotFoundError:
            module, _, name = module.rpartition(".")
            path = f"{name}.{path}"
    return member("builtins", path)


def answer_missing(owner: Any, dotted: str, answer: Answer, explain: Explain) -> Undo:
    """Makes names answer where a module, or an object of a module, raises AttributeError."""
    is_module = isinstance(owner, types.ModuleType)
    kind = f"module {dotted!r}" if is_module else f"{type(owner).__name__!r} object"

    def read(self: object, name: str) -> object:
        value = _read(dotted, name, answer, explain, sys._getframe(1))
        if value is not _MISSING:
            return value
        fallback = vars(self).get("__getattr__")
        if fallback is not None:
            return fallback(name)  # raises again, with a text of the module's own
        raise AttributeError(f"{kind} has no attribute {name!r}", name=name, obj=self)

    if not is_module and hasattr(owner, "__getattr__"):
        return lambda: None
    return _set_class(owner, {"__getattr__": read})


def accept_keywords(
    module: types.ModuleType,
    name: str,
    renamed: Mapping[str, str],
    by_position: tuple[str, ...] = (),
) -> Undo:
    """Makes a function take keywords under their old names, too, and notes them."""
    function = vars(module)[name]
    full = f"{module.__name__}.{name}"
    with contextlib.suppress(ValueError):  # of a function of C nothing is known
        own = inspect.signature(function).parameters  # NumPy 2.0 takes `newshape` alone
        renamed = {old: new for old, new in renamed.items() if old not in own}

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
        for old in by_position[len(args) :]:
            if old not in kwargs:
                break
            note(f"{full}({old}=)")
            args += (kwargs.pop(old),)
        for old, new in renamed.items():
            if old in kwargs and new not in kwargs:
                note(f"{full}({old}=)")
                kwargs[new] = kwargs.pop(old)
        return function(*args, **kwargs)

    vars(module)[name] = call
    return lambda: vars(module).__setitem__(name, function)


def override(module: types.ModuleType, table: Mapping[str, str]) -> Undo:
    """Makes names of a module those of other modules, and notes them, from now on."""

    def read(self: types.ModuleType, name: str) -> object:
        if name in table:
            note(f"{module.__name__}.{name}")
            return getattr(importlib.import_module(table[name]), name)
        return super(kind, self).__getattribute__(name)

    undo = _set_class(module, {"__getattribute__": read})
    kind = type(module)
    return undo


_MISSING = object()


def _read(
    owner: str, name: str, answer: Answer, explain: Explain, frame: types.FrameType
) -> object:
    """Returns the replacement of a removed name, and notes it; _MISSING for other names."""
    if name.startswith("__"):
        return _MISSING
    full = f"{owner}.{name}"
    try:
        value = answer(owner, name)
    except KeyError:
        text = explain(full)
        if text is not None:
            raise hooks.missing_name(text, frame, owner) from None
        return _MISSING
    note(full)
    return value


def _set_class(owner: Any, members: dict[str, object]) -> Undo:
    before = type(owner)
    owner.__class__ = type(before.__name__, (before,), members)
    return lambda: setattr(owner, "__class__", before)
