"""Records in configs: instances of dataclasses, of attrs classes, and named tuples."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import attr

T = TypeVar("T")


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
