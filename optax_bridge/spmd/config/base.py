"""`ConfigBase`: named fields that are read, set, copied, compared and walked; `@config_class`."""

import contextlib
import copy
import enum
import functools
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar, dataclass_transform, overload

import attr

from optax_bridge.spmd.config import walking
from optax_bridge.spmd.config.values import (
    REQUIRED,
    InvalidConfigClassError,
    InvalidConfigValueError,
    MissingConfigClassDecoratorError,
    NonConfigFieldError,
    RequiredFieldMissingError,
    RequiredFieldValue,
    UnknownFieldError,
    UnreadableFieldError,
    is_frozen_mapping,
    is_function_object,
    unknown_name,
    validate_config_field_name,
    validate_config_field_value,
)

T = TypeVar("T", bound=type)
T_co = TypeVar("T_co", covariant=True)


@overload
def config_class(cls: T, /, **kwargs: object) -> T: ...
@overload
def config_class(**kwargs: object) -> Callable[[T], T]: ...
@dataclass_transform(kw_only_default=True, field_specifiers=(attr.field, attr.ib))
def config_class(cls: Any = None, /, **kwargs: Any) -> Any:
    """Makes a config class: every annotated attribute of the body becomes a field.

    Args:
      cls: a subclass of ConfigBase.
      **kwargs: arguments of `attr.define`.

    Returns:
      An attrs class, with slots, in place of the given one.

    Raises:
      InvalidConfigClassError: cls is not a subclass of ConfigBase.
      InvalidConfigNameError: a field's name is not in lower_case_with_underscores.
      NonConfigFieldError: an attribute has no annotation. Methods of the base may be overridden.
    """
    if cls is None:
        return functools.partial(config_class, **kwargs)
    if not isinstance(cls, type) or not hasattr(cls, "__callable_field__"):
        raise InvalidConfigClassError(
            f"@config_class is for subclasses of ConfigBase, which {cls!r} is not."
        )
    qualname = cls.__qualname__
    _check_body(cls)
    options: dict[str, Any] = {"slots": True, "kw_only": True, "init": False, "auto_attribs": True}
    options["on_setattr"] = attr.setters.NO_OP  # ConfigBase.__setattr__ is the hook
    new: Any = attr.define(cls, **options | kwargs)
    for field in attr.fields(new):
        validate_config_field_name(field.name)
    if "__getattr__" in vars(new):
        new.__getattr__ = _reading(vars(new)["__getattr__"])
    new.__original_qualname__ = qualname
    rename(new, f"config_class({cls.__module__}.{qualname})")
    return new


def rename(cls: type, name: str) -> None:
    """Gives a config class the name that is shown."""
    cls.__name__ = cls.__qualname__ = name


def _check_body(cls: type) -> None:
    annotated = vars(cls).get("__annotations__", {})
    for name, value in vars(cls).items():
        if name.startswith("__") and name.endswith("__"):
            continue
        if name in annotated or _is_own_method(cls, name, value):
            continue
        raise NonConfigFieldError(
            f"{cls.__module__}.{cls.__qualname__}.{name} is not a field: a field needs a type "
            f"({name}: Any = ...), and other attributes do not belong into a config class."
        )


def _is_own_method(cls: type, name: str, value: object) -> bool:
    """True if the value is a function that was defined in the body of the class or of a base."""
    if not isinstance(value, types.FunctionType):
        return False
    bodies = {vars(base).get("__original_qualname__", base.__qualname__) for base in cls.__mro__}
    return value.__qualname__ in {f"{body}.{name}" for body in bodies}


def _check_instantiable(cls: type) -> None:
    """Checks a config class when a config is made of it."""
    if "__attrs_attrs__" not in vars(cls):  # a base may have them
        raise MissingConfigClassDecoratorError(
            f"{cls.__module__}.{cls.__qualname__} must be decorated with @config_class."
        )
    fields = {field.name for field in attr.fields(cls)}
    for name in dir(cls):
        if name.startswith("__") or name in fields or name in _ALLOWED_ATTRIBUTES:
            continue
        raise NonConfigFieldError(
            f"{cls.__name__}.{name} is not a field. A config holds values; put functions "
            "of them outside of it."
        )


_Getter = Callable[[object, str], Any]


def _reading(getter: _Getter) -> _Getter:
    """A `__getattr__` whose KeyErrors are AttributeErrors too."""

    @functools.wraps(getter)
    def __getattr__(self: object, name: str) -> Any:
        try:
            return getter(self, name)
        except UnreadableFieldError:
            raise
        except KeyError as error:
            raise UnreadableFieldError(*error.args) from None

    return __getattr__


_FACTORY: Any = attr.Factory  # a function to type checkers, a class to Python
_NOT_COPIED = (type(None), RequiredFieldValue, type, int, float, str, enum.Enum)


class ConfigBase:
    """The base of all configs. Subclasses are decorated with `@config_class`.

    Values are stored by value: an assigned value, like a default, is checked and copied, so two
    configs never share anything that can change.
    """

    __slots__ = ()
    # The field, if any, that is called when the config is instantiated. Its value may be
    # any callable, and is never copied: it may be a proxy that refuses to be.
    __callable_field__: str | None = None

    def __init__(self, /, **values: object) -> None:
        cls = type(self)
        _check_instantiable(cls)
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


class InstantiableConfig(ConfigBase, Generic[T_co]):
    """A config that makes an object. Configs inside it are not instantiated by themselves."""

    __slots__ = ()

    def instantiate(self, **kwargs: object) -> T_co:
        """Makes the object.

        Args:
          **kwargs: arguments beyond the config, such as the parent of a module.

        Raises:
          RequiredFieldMissingError: a required field is not set.
        """
        del kwargs
        raise NotImplementedError(f"{type(self).__name__} does not say what it instantiates.")


_ALLOWED_ATTRIBUTES = frozenset(dir(InstantiableConfig))  # that any config class may have


def missing_fields(cfg: ConfigBase) -> list[str]:
    """The names of the fields that must be set but are not, sorted."""
    names = walking.field_names(cfg)
    return [name for name in names if isinstance(getattr(cfg, name), RequiredFieldValue)]


def raise_for_missing(names: Sequence[str], cls: object) -> None:
    """Raises RequiredFieldMissingError if there are names."""
    if names:
        plural = "s" if len(names) > 1 else ""
        raise RequiredFieldMissingError(
            f"missing value for required field when instantiating {walking.dotted_name(cls)}: "
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
