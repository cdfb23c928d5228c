"""Configs as trees: the walk, and the flat, nested and textual forms made with it.

A record is an instance of a dataclass or of an attrs class, or a named tuple.
"""

import collections
import dataclasses
import sys
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import attr

T = TypeVar("T")
Children = list[tuple[str, Any]]
VisitFn = Callable[[str, Any], None]
EnterFn = Callable[[str, Any, Children | None], Children | None]


def field_names_of(kind: type) -> list[str] | None:
    """The fields of a class of records, in their order; None for another class."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    if attr.has(kind):
        return [field.name for field in attr.fields(kind)]
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return list(getattr(kind, "_fields"))  # noqa: B009 (no tuple has it by its type)
    return None


def record_fields(value: object) -> dict[str, Any] | None:
    """The fields of a record by name, None where one is not set; None for another value."""
    names = field_names_of(type(value))
    return None if names is None else {name: getattr(value, name, None) for name in names}


def replace_fields(record: T, changes: Mapping[str, object]) -> T:
    """The record with some fields changed."""
    untyped: Any = record
    if dataclasses.is_dataclass(type(record)):
        return dataclasses.replace(untyped, **changes)
    return (
        attr.evolve(untyped, **changes) if attr.has(type(record)) else untyped._replace(**changes)
    )


def is_config(value: object) -> bool:
    """True if the value is a config."""
    # ConfigBase itself is made with this module.
    return hasattr(type(value), "__callable_field__") and attr.has(type(value))


def field_names(cfg: object) -> list[str]:
    """The names of a config's fields, sorted; also where a field hides its `keys`."""
    return sorted(field_names_of(type(cfg)) or ())


def children(key: str, value: object) -> Children | None:
    """Keys and values one level below, or None for a leaf."""
    if is_config(value):
        prefix = f"{key}." if key else ""
        return [(f"{prefix}{name}", getattr(value, name)) for name in field_names(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _entries(key, dataclasses.asdict(value))
    fields = record_fields(value)
    if fields is not None:
        return _entries(key, fields)
    if isinstance(value, dict):
        return _entries(key, value)
    if isinstance(value, list | tuple | range):
        return [(f"{key}[{i}]", child) for i, child in enumerate(value)]
    return None


def _entries(key: str, values: Mapping[Any, object]) -> Children:
    return [(f"{key}[{name!r}]", child) for name, child in values.items()]


def walk(
    key: str,
    value: object,
    *,
    visit_fn: VisitFn,
    enter_fn: EnterFn | None,
    exit_fn: VisitFn | None,
) -> None:
    """See `ConfigBase.visit`."""
    below = children(key, value)
    if enter_fn is not None:
        below = enter_fn(key, value, below)
    if below is None:
        visit_fn(key, value)
        return
    for child_key, child in below:
        walk(child_key, child, visit_fn=visit_fn, enter_fn=enter_fn, exit_fn=exit_fn)
    if exit_fn is not None:
        exit_fn(key, value)


def flat_dict(cfg: object, omit_default_values: Collection[object]) -> dict[str, Any]:
    """See `ConfigBase.to_flat_dict`."""
    flat: dict[str, Any] = {}

    def enter(key: str, value: Any, default: Children | None) -> Children | None:
        if is_config(value) and key:
            # A nested config may have a form of its own.
            below = value.to_flat_dict(omit_default_values=omit_default_values)
            flat.update({f"{key}.{name}": child for name, child in below.items()})
            return []
        if is_config(value):
            defaults = attr.fields_dict(type(value))
            return [
                (name, child)
                for name, child in default or []
                if not _is_omitted(child, defaults[name].default, omit_default_values)
            ]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return [
                (f"{key}[{field.name!r}]", getattr(value, field.name))
                for field in dataclasses.fields(value)
                if not field.metadata.get("skip_serialization")
                and not _is_omitted(getattr(value, field.name), field.default, omit_default_values)
            ]
        return default

    walk("", cfg, visit_fn=flat.__setitem__, enter_fn=enter, exit_fn=None)
    return flat


def _is_omitted(value: object, default: object, omit_default_values: Collection[object]) -> bool:
    # Of one type: `numpy.dtype("float64") == None` is true.
    return value is default and any(
        default is x or (type(default) is type(x) and default == x) for x in omit_default_values
    )


def plain(value: Any) -> object:
    """The value as plain data; see `ConfigBase.to_dict`."""
    if is_config(value):
        return value.to_dict()
    fields = record_fields(value)
    if fields is not None:
        return {name: plain(child) for name, child in fields.items()}
    if isinstance(value, collections.defaultdict):
        return {name: plain(child) for name, child in value.items()}
    if isinstance(value, dict):
        return type(value)({name: plain(child) for name, child in value.items()})
    if isinstance(value, list | tuple):
        return type(value)([plain(child) for child in value])
    if isinstance(value, range):
        return list(value)
    if isinstance(value, type | types.FunctionType):
        return dotted_name(value)
    return value


def dotted_name(value: object) -> str:
    """`module.name` of a class or function; the repr of anything else that is called."""
    name = getattr(value, "__name__", None)
    return f"{value.__module__}.{name}" if isinstance(name, str) else repr(value)


def leaf_text(value: object) -> str:
    """The text of a leaf in `debug_string`."""
    named = isinstance(value, type | types.FunctionType) or (
        callable(value)
        and not isinstance(value, types.MethodType)
        and hasattr(value, "__name__")
        and " at 0x" in repr(value)  # an address, other in each run
    )
    return repr(dotted_name(value)) if named else repr(value)


def by_name(name: str) -> Any:
    """The class or function of this name in the modules that are imported; else the name."""
    module, _, attribute = name.rpartition(".")
    value = getattr(sys.modules.get(module), attribute, None) if module else None
    return value if callable(value) and leaf_text(value) == repr(name) else name
