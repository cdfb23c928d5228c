"""REQUIRED, the errors of configs, and the values that a config may hold."""

import dataclasses
import enum
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn, TypeVar, Union

import attr

from optax_bridge.spmd.config.walking import record_fields

T = TypeVar("T")


def _refuses(operation: str) -> Any:
    def method(self: object, *operands: object) -> NoReturn:
        raise TypeError(
            f"a required field is not set: {operation} was applied to REQUIRED. Set it first."
        )

    return method


class RequiredFieldValue:
    """The class of `REQUIRED`; `isinstance(v, RequiredFieldValue)` tests for a field without value.

    Any other use of the value raises TypeError, since a field was forgotten; reading an
    attribute raises AttributeError, so that `hasattr` is False.
    """

    def __deepcopy__(self, memo: dict[int, object]) -> "RequiredFieldValue":
        return self

    def __copy__(self) -> "RequiredFieldValue":
        return self

    def __reduce__(self) -> str:
        return "REQUIRED"  # pickle looks the name up in this module

    def __repr__(self) -> str:
        return "REQUIRED"

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"a required field is not set: REQUIRED has no attribute {name!r}. Set the field first."
        )

    __add__ = __radd__ = _refuses("+")
    __sub__ = __rsub__ = _refuses("-")
    __mul__ = __rmul__ = _refuses("*")
    __truediv__ = __rtruediv__ = _refuses("/")
    __floordiv__ = __rfloordiv__ = _refuses("//")
    __mod__ = __rmod__ = _refuses("%")
    __pow__ = __rpow__ = _refuses("**")
    __neg__ = _refuses("unary -")
    __pos__ = _refuses("unary +")
    __abs__ = _refuses("abs()")
    __lt__ = _refuses("<")
    __le__ = _refuses("<=")
    __gt__ = _refuses(">")
    __ge__ = _refuses(">=")
    __getitem__ = _refuses("[]")
    __setitem__ = _refuses("[]=")
    __iter__ = _refuses("iter()")
    __contains__ = _refuses("in")
    __len__ = _refuses("len()")
    __call__ = _refuses("a call")
    __int__ = _refuses("int()")
    __float__ = _refuses("float()")


if TYPE_CHECKING:
    # When a config is made use of, its required fields are set: `Required[int]` is an int then.
    REQUIRED: Any
    Required = Annotated[T, RequiredFieldValue]
else:
    REQUIRED = RequiredFieldValue()
    Required = Union[T, RequiredFieldValue]  # noqa: UP007 (it takes a parameter: Required[int])


class MissingConfigClassDecoratorError(TypeError):
    """A subclass of `ConfigBase` was instantiated that lacks `@config_class`."""


class InvalidConfigClassError(TypeError):
    """`@config_class` decorates a class that is not a subclass of `ConfigBase`."""


class InvalidConfigNameError(ValueError):
    """The name of a field is not in lower_case_with_underscores."""


class InvalidConfigValueError(TypeError):
    """A value is of no type that a config may hold."""


class NonConfigFieldError(ValueError):
    """A config class has an attribute that is not a field."""


class UnknownFieldError(AttributeError):
    """A field was set that the config does not have."""


class RequiredFieldMissingError(ValueError):
    """A config was instantiated before all of its required fields were set."""


class UnreadableFieldError(AttributeError, KeyError):
    """A field was read that the config does not have."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would quote the message


_LENGTH = 3  # of the substrings by which names are compared
_ENOUGH = 0.5  # a name is similar if more than this fraction of its substrings is in it


def similar_names(name: str, candidates: Iterable[str]) -> list[str]:
    """The candidates that share more than half of the 3-character substrings of `name`.

    Returns:
      The most similar first; alphabetically where two are equally similar.
    """
    parts = [name[i : i + _LENGTH] for i in range(len(name) - _LENGTH + 1)]
    if not parts:
        return []
    scores = {other: sum(part in other for part in parts) / len(parts) for other in candidates}
    return sorted(
        (other for other, score in scores.items() if score > _ENOUGH),
        key=lambda other: (-scores[other], other),
    )


def unknown_name(name: str, names: Iterable[str]) -> str:
    """The message for a name that is not among `names`: similar ones, or else all there are."""
    names = sorted(names)
    similar = similar_names(name, names)
    if similar:
        return f"{name} (did you mean: [{', '.join(similar)}])"
    return f"{name} (keys are {names})"


_NAME = re.compile(r"[a-z][a-z0-9_]*")


class _Validator(NamedTuple):
    match_fn: Callable[[Any], bool]
    validate_fn: Callable[[Any], None]


_VALIDATORS: list[_Validator] = []


def register_validator(
    *, match_fn: Callable[[Any], bool], validate_fn: Callable[[Any], None]
) -> None:
    """Makes values legal in configs.

    Args:
      match_fn: returns True for a value that the validator covers.
      validate_fn: called with such a value; raises InvalidConfigValueError if it is not legal after
        all.
    """
    _VALIDATORS.append(_Validator(match_fn, validate_fn))


def validate_config_field_name(name: str) -> None:
    """Raises InvalidConfigNameError unless the name is in lower_case_with_underscores."""
    if not _NAME.fullmatch(name):
        raise InvalidConfigNameError(
            f"{name!r} cannot be the name of a config's field: it must match '^{_NAME.pattern}$'."
        )


def validate_config_field_value(value: object) -> None:
    """Runs every registered validator that is about the value, in order of registration.

    Raises:
      InvalidConfigValueError: none is about the value, or one refuses it.
    """
    is_leaf = False
    for validator in _VALIDATORS:
        if validator.match_fn(value):
            is_leaf = True
            validator.validate_fn(value)
    if not is_leaf:
        raise InvalidConfigValueError(
            f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be in a "
            f"config: {value!r}. Say how to make it (config_for_function, config_for_class), or "
            "make the type legal with register_validator."
        )


def _allow(value: object) -> None:
    """Validates values that are always legal."""


def _each(values: Iterable[object]) -> None:
    for value in values:
        validate_config_field_value(value)


def _check_record(value: object) -> None:
    # The field of a config that is called may hold any callable.
    called = getattr(type(value), "__callable_field__", None)
    _each(part for name, part in (record_fields(value) or {}).items() if name != called)


def _is_pretrained(value: object) -> bool:
    if hasattr(type(value), "__callable_field__"):  # a config, which looks for similar names
        return False
    return (
        not isinstance(value, type | RequiredFieldValue)
        and hasattr(value, "from_pretrained")
        and callable(getattr(value, "to_dict", None))
    )


def _instance_of(module: str, name: str) -> Callable[[object], bool]:
    """A test for instances of a class; False where its module is not imported."""

    def is_instance(value: object) -> bool:
        loaded = sys.modules.get(module)
        return loaded is not None and isinstance(value, getattr(loaded, name))

    return is_instance


def _is_remat_marker(value: object) -> bool:
    # Returned by checkpoint policies. JAX exports neither the objects nor their classes.
    cls = type(value)
    return cls.__name__ in ("RecomputeType", "SaveableType") and cls.__module__.startswith("jax.")


def is_function_object(value: object) -> bool:
    """True if the value is a function in all but its type: `jax.nn.relu`, `jax.nn.sigmoid`."""
    cls = type(value)
    if cls.__name__ in ("custom_jvp", "custom_vjp"):
        return cls.__module__.startswith("jax.")
    return cls.__name__ == "PjitFunction" and str(value.__module__).startswith("jax.")


_is_frozen_dict = _instance_of("flax.core.frozen_dict", "FrozenDict")


def is_frozen_mapping(value: object) -> bool:
    """True if the value is a read-only mapping; a config holds it as a dict."""
    return isinstance(value, types.MappingProxyType) or _is_frozen_dict(value)


_PLAIN = (
    type(None),
    RequiredFieldValue,
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    int,
    float,
    str,
    enum.Enum,
)

for _match, _validate in (
    (lambda v: isinstance(v, _PLAIN), _allow),
    (lambda v: isinstance(v, list | tuple), _each),
    (lambda v: isinstance(v, dict), lambda v: _each(v.values())),
    (
        lambda v: dataclasses.is_dataclass(type(v)) or attr.has(type(v)),
        _check_record,
    ),
    (_is_pretrained, lambda v: validate_config_field_value(v.to_dict())),
    (_instance_of("numpy", "dtype"), _allow),
    (_instance_of("jax.sharding", "PartitionSpec"), _allow),
    (_is_remat_marker, _allow),
    (is_function_object, _allow),
    (_instance_of("legacy_optim", "OptimizerDef"), _allow),
    (is_frozen_mapping, lambda v: _each(v.values())),
):
    register_validator(match_fn=_match, validate_fn=_validate)
