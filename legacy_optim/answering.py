"""Modules that answer for old names: under an old name of their own, or for what another lost."""

import importlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from legacy_optim import hooks
from legacy_optim.uses import note

Undo = Callable[[], object]


class Answering(types.ModuleType):
    """A module under an old name whose attributes are those of another one.

    Args:
      name: the old name.
      source: the other module's name, or a table of names.
      parts: names of submodules.
    """

    def __init__(self, name: str, source: str | Mapping[str, Any], parts: Sequence[str] = ()):
        super().__init__(name)
        self.__dict__["_answering_source"] = source
        self.__dict__["_answering_parts"] = tuple(parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self._answering_parts:
            return sys.modules[f"{self.__name__}.{name}"]
        source = _source(self._answering_source)
        value = source.get(name, _MISSING) if isinstance(source, Mapping) else _of(source, name)
        if value is _MISSING:
            said = f"module {self.__name__!r} never had {name!r}, or it has no equal today"
            raise _error(said, sys._getframe(1), self.__name__)
        note(f"{self.__name__}.{name}")
        return value

    def __dir__(self) -> list[str]:
        source = _source(self._answering_source)
        names = source if isinstance(source, Mapping) else dir(source)
        return sorted({*self._answering_parts, *names})


_MISSING = object()


def _source(source: str | Mapping[str, Any]) -> Any:
    return importlib.import_module(source) if isinstance(source, str) else source


def _of(source: types.ModuleType, name: str) -> Any:
    return getattr(source, name, _MISSING)


def answer_missing(
    module: types.ModuleType,
    answer: Callable[[str, str], Any],
    said: Callable[[str], str | None],
) -> Undo:
    """Makes names answer where the module itself raises AttributeError; nothing else changes.

    Args:
      module: which.
      answer: from its name and the missing one to what answers; raises KeyError where nothing does.
      said: from the dotted name to what to say instead of "no such attribute", or None.

    Returns:
      What undoes it.
    """

    def read(self: types.ModuleType, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if not name.startswith("__"):
            try:
                value = answer(self.__name__, name)
            except KeyError:
                text = said(full)
                if text is not None:
                    raise _error(text, sys._getframe(1), self.__name__) from None
            else:
                note(full)
                return value
        own = vars(self).get("__getattr__")
        if own is not None:
            return own(name)  # raises again, with a text of the module's own
        raise AttributeError(
            f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self
        )

    return _set_class(module, {"__getattr__": read})


def override(module: types.ModuleType, table: Mapping[str, str]) -> Undo:
    """Makes names of a module those of other modules, and notes them, from now on.

    Args:
      module: which.
      table: name -> the other module's name.

    Returns:
      What undoes it.
    """

    def read(self: types.ModuleType, name: str) -> Any:
        if name in table:
            note(f"{module.__name__}.{name}")
            return getattr(importlib.import_module(table[name]), name)
        return super(kind, self).__getattribute__(name)

    undo = _set_class(module, {"__getattribute__": read})
    kind = type(module)
    return undo


def _set_class(module: types.ModuleType, members: dict[str, Any]) -> Undo:
    before = type(module)
    module.__class__ = type(before.__name__, (before,), members)
    return lambda: setattr(module, "__class__", before)


def _error(text: str, frame: types.FrameType, module: str) -> Exception:
    """An error with a text that the program's author gets to see."""
    return ImportError(text, name=module) if hooks.imports_a_name(frame) else AttributeError(text)
