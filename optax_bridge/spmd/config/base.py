"""`ConfigBase`: named fields that are read, set, copied, compared and walked."""

import contextlib
import copy
import enum
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

import attr

from optax_bridge.spmd.config import decorator, walking
from optax_bridge.spmd.config.errors import (
    InvalidConfigValueError,
    RequiredFieldMissingError,
    UnknownFieldError,
    UnreadableFieldError,
    unknown_name,
)
from optax_bridge.spmd.config.required import REQUIRED, RequiredFieldValue
from optax_bridge.spmd.config.validation import (
    is_frozen_mapping,
    is_function_object,
    validate_config_field_name,
    validate_config_field_value,
)

_FACTORY: Any = attr.Factory  # a function to type checkers, a class to Python
_NOT_COPIED = (type(None), RequiredFieldValue, type, int, float, str, enum.Enum)


class ConfigBase:
    """The base of all configs. Subclasses are decorated with `@config_class`.

    Values are stored by value: what is assigned, defaults included, is checked and copied, so two
    configs never share anything that can change.
    """

    __slots__ = ()
    # The field, if any, that holds what is called when the config is instantiated. Its value may be
    # any callable, and is never copied: it may be a proxy that refuses to be.
    __callable_field__: str | None = None

    def __init__(self, /, **values: object) -> None:
        cls = type(self)
        decorator.check_instantiable(cls)
        fields = attr.fields_dict(cls)
        for name in values:
            if name not in fields:
                raise TypeError(f"{cls.__name__} has no field {unknown_name(name, fields)}")
        for name, field in fields.items():
            value: Any = values.get(name, field.default)
            if value is attr.NOTHING:
                raise TypeError(f"{cls.__name__} has no default for its field {name!r}: pass it.")
            if name not in values and type(value) is _FACTORY:
                value = value.factory(self) if value.takes_self else value.factory()
            setattr(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, self.__stored__(name, value))

    def __stored__(self, name: str, value: object) -> object:
        """Returns a checked copy of the value, which is stored in the field."""
        cls = type(self)
        if not any(field.name == name for field in attr.fields(cls)):
            error = UnknownFieldError(unknown_name(name, walking.field_names(self)))
            error.add_note(f"It was set on a {cls.__name__}.")
            raise error
        validate_config_field_name(name)
        if name == self.__callable_field__:
            if not callable(value) and not isinstance(value, RequiredFieldValue):
                raise InvalidConfigValueError(f"{cls.__name__}.{name} is not callable: {value!r}")
            return value
        try:
            validate_config_field_value(value)
        except InvalidConfigValueError as error:
            error.add_note(f"It was to be the field {name!r} of a {cls.__name__}.")
            raise
        return _copy(value, {})

    def __getattr__(self, name: str) -> Any:
        # Called for names that are not there. The error is an AttributeError as well.
        raise UnreadableFieldError(unknown_name(name, walking.field_names(self)))

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in attr.fields(type(self)))

    def __len__(self) -> int:
        return len(attr.fields(type(self)))

    def __str__(self) -> str:
        return self.debug_string()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        new = object.__new__(type(self))
        memo[id(self)] = new
        for field in attr.fields(type(self)):
            value = getattr(self, field.name)
            if field.name != self.__callable_field__:
                value = _copy(value, memo)
            object.__setattr__(new, field.name, value)
        return new

    def __copy__(self) -> Self:
        return copy.deepcopy(self)

    def keys(self) -> list[str]:
        """The names of the fields, sorted."""
        return walking.field_names(self)

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of name and value, sorted by name."""
        return [(name, getattr(self, name)) for name in walking.field_names(self)]

    def set(self, **values: object) -> Self:
        """Sets fields; all of them, or none if one is unknown or its value not legal.

        Returns:
          The config itself.

        Raises:
          UnknownFieldError: for a field that the config does not have.
          InvalidConfigValueError: for a value of no legal type.
        """
        stored = {name: self.__stored__(name, value) for name, value in values.items()}
        as_usual = type(self).__setattr__ is ConfigBase.__setattr__
        for name, value in values.items():
            if as_usual:
                object.__setattr__(self, name, stored[name])
            else:
                setattr(self, name, value)
        return self

    def clone(self, **values: object) -> Self:
        """A copy with some fields set."""
        new = type(self)(**{f.name: getattr(self, f.name) for f in attr.fields(type(self))})
        new.set(**values)
        return new

    def get_recursively(self, path: Sequence[str]) -> Any:
        """The value at a path of fields; the config itself for the empty path.

        Raises:
          AttributeError: a name on the path is unknown.
        """
        value = self
        for i, name in enumerate(path):
            with _locating(path[:i]):
                value = getattr(value, name)
        return value

    def set_recursively(self, path: Sequence[str], *, value: object) -> None:
        """Sets the value at a path of fields.

        Raises:
          ValueError: the path is empty.
          AttributeError: a name on the path is unknown.
        """
        if not path:
            raise ValueError("set_recursively: the path is empty; it must name a field at least.")
        *parents, last = path
        config = self.get_recursively(parents)
        with _locating(parents):
            setattr(config, last, value)

    def visit(
        self,
        visit_fn: walking.VisitFn,
        enter_fn: walking.EnterFn | None = None,
        exit_fn: walking.VisitFn | None = None,
    ) -> None:
        """Walks the config and all in it, depth first.

        Args:
          visit_fn: called with key and value of every leaf. The key of the root is "", of a field
            `parent.field`, of an element `parent[0]`, of a dict's, dataclass's or named tuple's
            entry `parent['name']`.
          enter_fn: called with key, value and the default children of every value; the children
            that it returns are walked instead. Children are a list of keys and values, None for a
            leaf.
          exit_fn: called with key and value after a value's children.
        """
        walking.walk("", self, visit_fn=visit_fn, enter_fn=enter_fn, exit_fn=exit_fn)

    def to_flat_dict(self, *, omit_default_values: Collection[object]) -> dict[str, Any]:
        """Leaves by key, in the order in which `visit` comes to them.

        Args:
          omit_default_values: a field with one of these defaults is left out while it has that
            default.
        """
        return walking.flat_dict(self, omit_default_values)

    def debug_string(
        self,
        *,
        kv_separator: str = ": ",
        field_separator: str = "\n",
        omit_default_values: Collection[object] = (None, REQUIRED),
    ) -> str:
        """The config as text, one leaf a line. `from_debug_string` reads it."""
        flat = self.to_flat_dict(omit_default_values=omit_default_values)
        return field_separator.join(
            f"{key}{kv_separator}{walking.leaf_text(value)}" for key, value in flat.items()
        )

    def to_dict(self) -> dict[str, Any]:
        """The config as nested plain data, nothing left out; classes and functions by name."""
        return {name: walking.plain(getattr(self, name)) for name in walking.field_names(self)}


def missing_fields(cfg: ConfigBase) -> list[str]:
    """The names of the fields that must be set but are not, sorted."""
    names = walking.field_names(cfg)
    return [name for name in names if isinstance(getattr(cfg, name), RequiredFieldValue)]


def raise_for_missing(names: Sequence[str], what: object) -> None:
    """Raises RequiredFieldMissingError if there are names."""
    if names:
        plural = "s" if len(names) > 1 else ""
        raise RequiredFieldMissingError(
            f"missing value for required field when instantiating {walking.dotted_name(what)}: "
            f"{', '.join(names)}. Set the field{plural} in the config first."
        )


def _copy(value: Any, memo: dict[int, object]) -> object:
    if isinstance(value, _NOT_COPIED):
        return value
    if is_frozen_mapping(value):  # which cannot be copied, or is shown on several lines
        value = value.unfreeze() if hasattr(value, "unfreeze") else dict(value)
    for function in _function_objects(value):
        memo[id(function)] = function  # is copied as functions are: not
    return copy.deepcopy(value, memo)


def _function_objects(value: object) -> Iterator[object]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _function_objects(part)
    elif isinstance(value, dict):
        yield from _function_objects(list(value.values()))
    elif is_function_object(value):
        yield value


@contextlib.contextmanager
def _locating(path: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except AttributeError as error:
        if path:
            error.add_note(f"Below {'.'.join(path)!r}.")
        raise
