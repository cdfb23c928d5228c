# pyright: strict
"""Errors for wrong calls of an optimizer: they name the argument and its expected values."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

from optax_bridge._hyper_params import other_name
from optax_bridge._text import describe

P = ParamSpec("P")
R = TypeVar("R")


def explained(optimizer: Callable[P, R]) -> Callable[P, R]:
    """Decorates the function that makes an optimizer with errors for wrong calls."""

    @functools.wraps(optimizer)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        problem = _problem(optimizer, args, kwargs)
        if problem:
            raise TypeError(problem)
        return optimizer(*args, **kwargs)

    return call


def _problem(
    optimizer: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
) -> str:
    """The problem with a call, or ""."""
    name = getattr(optimizer, "__name__", "")
    parameters = inspect.signature(optimizer).parameters
    by_position = [
        key
        for key, parameter in parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    takes = f"It takes {', '.join(parameters)}."
    for key in kwargs:
        if key not in parameters:
            meant = other_name(key, parameters)
            if key == "betas" and meant:
                meant = "b1 and b2"
            advice = f": here it is {meant}" if meant else ""
            return f"{name} has no argument {key}{advice}. {takes}"
    if len(args) > len(by_position):
        return f"{name} takes {len(by_position)} arguments by position, found {len(args)}. {takes}"
    arguments = [*zip(by_position, args, strict=False), *kwargs.items()]
    twice = [key for key, _ in arguments[len(args) :] if key in by_position[: len(args)]]
    if twice:
        return f"{name} got {twice[0]} twice, by position and by name. {takes}"
    for key, value in arguments:
        if _is_number(parameters[key]) and is_no_number(value):
            return f"{name}({key}=): {_EXPECTED}, found {_describe(key, value)}"
        if isinstance(parameters[key].default, bool) and not _is_flag(value):
            return f"{name}({key}=): {_EXPECTED_FLAG}, found {_describe(key, value)}"
    return ""


_EXPECTED = "expected a number, an array or a schedule"
_EXPECTED_FLAG = "expected True or False"


def is_no_number(value: object) -> bool:
    """True if no hyper-parameter can take a value, though arithmetic may go on with it."""
    return isinstance(value, bool | str | bytes | Mapping | list | tuple | set | type | Iterator)


def check_flag(value: object, name: str) -> None:
    """Checks that an argument is True or False: a string would count as True, even "False"."""
    if not _is_flag(value):
        raise TypeError(f"{name}: {_EXPECTED_FLAG}, found {_describe(name, value)}")


def _is_flag(value: object) -> bool:
    """True if a value is a boolean; 0 and 1, which old programs have in such places, are ones."""
    if str(getattr(value, "dtype", "")) == "bool":
        return getattr(value, "shape", None) == ()
    return isinstance(value, int) and value in (0, 1)


def _is_number(parameter: inspect.Parameter) -> bool:
    default = parameter.default
    by_position = parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    is_numeric = isinstance(default, int | float) and not isinstance(default, bool)
    is_text = "str" in str(parameter.annotation)
    return by_position and (is_numeric or (default is None and not is_text))


def _describe(key: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "a tree. If it is the parameters, pass them to TrainState.create(params=..., tx=...) "
            "or tx.init(params)"
        )
    if key == "b1" and type(value) in (list, tuple) and len(value) == 2:
        return f"{value!r}: pass them separately, b1={value[0]!r}, b2={value[1]!r}"
    return describe(value)
