"""`@config_class`: turns a subclass of `ConfigBase` into an attrs class, and checks its body."""

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, dataclass_transform, overload

import attr

from optax_bridge.spmd.config.errors import (
    InvalidConfigClassError,
    MissingConfigClassDecoratorError,
    NonConfigFieldError,
    UnreadableFieldError,
)
from optax_bridge.spmd.config.validation import validate_config_field_name

T = TypeVar("T", bound=type)
# Attributes that any config class may have; `configurable` adds those of InstantiableConfig.
allowed_attributes: set[str] = set()


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
      InvalidConfigClassError: cls is no subclass of ConfigBase.
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
            f"{cls.__module__}.{cls.__qualname__}.{name} is no field: a field needs a type "
            f"({name}: Any = ...), and other attributes do not belong into a config class."
        )


def _is_own_method(cls: type, name: str, value: object) -> bool:
    """True if the value is a function that was defined in the body of the class or of a base."""
    if not isinstance(value, types.FunctionType):
        return False
    bodies = {vars(base).get("__original_qualname__", base.__qualname__) for base in cls.__mro__}
    return value.__qualname__ in {f"{body}.{name}" for body in bodies}


def check_instantiable(cls: type) -> None:
    """Checks a config class when a config is made of it.

    Raises:
      MissingConfigClassDecoratorError: the class is not decorated.
      NonConfigFieldError: it has an attribute that is neither a field nor one of
        InstantiableConfig.
    """
    if "__attrs_attrs__" not in vars(cls):  # a base may have them
        raise MissingConfigClassDecoratorError(
            f"{cls.__module__}.{cls.__qualname__} must be decorated with @config_class."
        )
    fields = {field.name for field in attr.fields(cls)}
    for name in dir(cls):
        if name.startswith("__") or name in fields or name in allowed_attributes:
            continue
        raise NonConfigFieldError(
            f"{cls.__name__}.{name} is no field. A config holds values; a function that works with "
            "them belongs outside of it."
        )


_Getter = Callable[[Any, str], Any]


def _reading(getter: _Getter) -> _Getter:
    """A `__getattr__` whose KeyErrors are AttributeErrors too."""

    @functools.wraps(getter)
    def __getattr__(self: Any, name: str) -> Any:
        try:
            return getter(self, name)
        except UnreadableFieldError:
            raise
        except KeyError as error:
            raise UnreadableFieldError(*error.args) from None

    return __getattr__
