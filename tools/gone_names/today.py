# pyright: strict
"""Looks up names of old releases in the installed packages."""

import enum
import functools
import importlib
import inspect
import warnings
from typing import Any

MISSING = object()
UNKNOWN = object()  # there, but it cannot be imported here


@functools.cache
def module(name: str) -> Any:
    """Today's module, MISSING or UNKNOWN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except ImportError as error:
            # What is not there may be something else that it needs, TensorFlow for one.
            needed = (error.name or "").partition(".")[0]
            return MISSING if needed == name.partition(".")[0] else UNKNOWN


def member(owner: Any, name: str) -> Any:
    """An attribute of a module, a class or an instance, also if it warns; or MISSING."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return getattr(owner, name)
        except AttributeError:
            pass
    fields = {**getattr(owner, "__dataclass_fields__", {}), **getattr(owner, "__annotations__", {})}
    return fields.get(name, MISSING)


def value(dotted: str) -> Any:
    """Returns the value of a dotted name today, or MISSING; without dots it is a builtin."""
    parts = dotted.split(".")
    if len(parts) == 1:
        return member(importlib.import_module("builtins"), dotted)
    for split in range(len(parts), 0, -1):
        current = module(".".join(parts[:split]))
        if current is not MISSING and current is not UNKNOWN:
            for part in parts[split:]:
                current = member(current, part)
                if current is MISSING:
                    break
            if current is not MISSING:
                return current
    return MISSING


def takes(function: Any, keyword: str) -> bool | None:
    """True if a function takes a keyword today; None if its signature is not known."""
    if not callable(function) or isinstance(function, enum.EnumType):  # whose are Python's own
        return None
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    parameter = parameters.get(keyword)
    return parameter is not None and parameter.kind is not parameter.POSITIONAL_ONLY
