"""Checks of names and values: a config holds what can be copied, compared and written as text."""

import dataclasses
import enum
import re
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import attr

from optax_bridge.spmd.config.errors import InvalidConfigNameError, InvalidConfigValueError
from optax_bridge.spmd.config.required import RequiredFieldValue
from optax_bridge.spmd.config.walking import record_fields

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
      match_fn: tells whether the validator is about a value.
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


def _accept(value: object) -> None:
    """Validates values that are always legal."""


def _each(values: Iterable[object]) -> None:
    for value in values:
        validate_config_field_value(value)


def _is_record(value: object) -> bool:
    return dataclasses.is_dataclass(type(value)) or attr.has(type(value))


def _check_record(value: object) -> None:
    # Of a config, what is called may be any callable.
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


def _is_numpy_dtype(value: object) -> bool:
    numpy = sys.modules.get("numpy")  # without numpy there are no dtypes
    return numpy is not None and isinstance(value, numpy.dtype)


def _is_partition_spec(value: object) -> bool:
    sharding = sys.modules.get("jax.sharding")
    return sharding is not None and isinstance(value, sharding.PartitionSpec)


def _is_remat_marker(value: object) -> bool:
    # What checkpoint policies return. JAX exports neither the objects nor their classes.
    cls = type(value)
    return cls.__name__ in ("RecomputeType", "SaveableType") and cls.__module__.startswith("jax.")


def is_function_object(value: object) -> bool:
    """True if the value is a function in all but its type: `jax.nn.relu`, `jax.nn.sigmoid`.

    Functions with derivatives of their own are; functions that JAX itself offers compiled are.
    """
    cls = type(value)
    if cls.__name__ in ("custom_jvp", "custom_vjp"):
        return cls.__module__.startswith("jax.")
    return cls.__name__ == "PjitFunction" and str(value.__module__).startswith("jax.")


def is_frozen_mapping(value: object) -> bool:
    """True if the value is a read-only mapping; a config holds it as a dict."""
    frozen = sys.modules.get("flax.core.frozen_dict")
    return isinstance(value, types.MappingProxyType) or (
        frozen is not None and isinstance(value, frozen.FrozenDict)
    )


def _is_legacy_definition(value: object) -> bool:
    legacy_optim = sys.modules.get("legacy_optim")  # not imported: no definitions either
    return legacy_optim is not None and isinstance(value, legacy_optim.OptimizerDef)


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
    (lambda v: isinstance(v, _PLAIN), _accept),
    (lambda v: isinstance(v, list | tuple), _each),
    (lambda v: isinstance(v, dict), lambda v: _each(v.values())),
    (_is_record, _check_record),
    (_is_pretrained, lambda v: validate_config_field_value(v.to_dict())),
    (_is_numpy_dtype, _accept),
    (_is_partition_spec, _accept),
    (_is_remat_marker, _accept),
    (is_function_object, _accept),
    (_is_legacy_definition, _accept),
    (is_frozen_mapping, lambda v: _each(v.values())),
):
    register_validator(match_fn=_match, validate_fn=_validate)
