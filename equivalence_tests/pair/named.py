"""Sides that a user names on the command line, with the arguments that they are made with."""

import ast
import functools
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import legacy_optim
from equivalence_tests.pair.settings import settings_of, with_settings
from equivalence_tests.sides import frameworks
from equivalence_tests.sides.adapt import EquivalenceError, SideLike, as_side, side_maker
from equivalence_tests.sides.frameworks import arguments_text
from optax_bridge._hyper_params import RATES
from optax_bridge._literals import NO_LITERAL, expression, literal
from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.cli.errors import error_text
from optax_bridge.cli.programs import (
    in_program,
    load_object,
    takes_nothing,
    with_own_arguments,
)
from optax_bridge.correspondence import TORCH, entries_by_class
from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.correspondence.recipe import resolve

_SYNTAX = 'written as in a call, e.g. "learning_rate=1e-3, nesterov=True"'

# Whose constructors may be written as calls: nothing else is called by a text.
_LIBRARIES = ("optax", "optax_bridge", TORCH.origin)


@dataclass(frozen=True)
class NamedSide:
    """A side by its name."""

    name: str
    function: Callable[..., object] | None
    value: Any = None
    args: Sequence[object] = ()
    kwargs: Mapping[str, object] | None = None
    text: str = ""
    is_port: bool = False  # this project's, in place of PyTorch's own

    def __str__(self) -> str:
        if self.text or self.function is None or not (self.args or self.kwargs):
            return self.text or self.name
        return f"{self.name}({self.arguments})"

    @property
    def arguments(self) -> str:
        """The arguments as text."""
        return arguments_text(self.args, self.kwargs or {})

    @property
    def parameters(self) -> dict[str, object]:
        """The function's arguments by name: those that are given, else their defaults."""
        if self.function is None:
            return {}
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return {}
        tensors = [None] if frameworks.is_torch_optimizer(self.function) else []
        bound = signature.bind_partial(*tensors, *self.args, **(self.kwargs or {}))
        bound.apply_defaults()
        skipped = next(iter(signature.parameters)) if tensors else None
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {
            name: value
            for name, value in bound.arguments.items()
            if name != skipped and signature.parameters[name].kind not in kinds
        }

    def build(self, **changes: object) -> SideLike:
        """Returns the side, with some keyword arguments changed."""
        if changes:
            return replace(self, args=(), kwargs={**self.parameters, **changes}).build()
        value = self.value if self.function is None else self._call()
        try:
            side = as_side(value)
        except EquivalenceError as error:
            raise EquivalenceError(f"{self}: {error}") from error
        # As for PyTorch's own, whose state has another layout, only the parameters are compared.
        return self._in_its_program(replace(side, definition=None) if self.is_port else value)

    def _call(self) -> SideLike:
        """Calls the function with its arguments."""
        assert self.function is not None
        try:
            with with_own_arguments(self.name.rpartition(":")[0]):
                return side_maker(self.function)(*self.args, **(self.kwargs or {}))
        except (Exception, SystemExit) as error:
            hint = ""
            if not self.arguments and not takes_nothing(self.function):
                hint = "; give its arguments with --args LEFT RIGHT"
            raise EquivalenceError(
                f"{self.name}({self.arguments}): {error_text(error)}{hint}"
            ) from error

    @property
    def takes(self) -> list[str]:
        """The names of the function's arguments, those without a value included."""
        try:
            return list(inspect.signature(self.function).parameters) if self.function else []
        except (TypeError, ValueError):
            return []

    def call(self, changes: Mapping[str, object]) -> str:
        """The call with some arguments changed, as text."""
        explicit = dict(self.kwargs or {})
        if self.args:  # by their names, as a change may be to one of them
            explicit = dict(zip(self.parameters, self.args, strict=False)) | explicit
        return f"{self.name.replace(':', '.')}({arguments_text((), explicit | dict(changes))})"

    def _in_its_program(self, value: SideLike) -> SideLike:
        """Returns the side; functions of a pair run with the flags of the program they are of."""
        if (
            self.text
            or type(value) is not tuple
            or len(value) != 2
            or not all(map(callable, value))
        ):
            return value
        return tuple(in_program(self.name.rpartition(":")[0], each) for each in value)


@dataclass(frozen=True)
class ObjectSide:
    """A side that is an object: a definition, a transformation, a pair of functions."""

    name: str
    value: object

    @property
    def parameters(self) -> dict[str, object]:
        """The numbers that it holds, by name."""
        return settings_of(self.value)

    @property
    def takes(self) -> list[str]:
        """The names of its parameters."""
        return list(self.parameters)

    def build(self, **changes: object) -> SideLike:
        """Returns the side, or a copy of it with some settings changed."""
        return with_settings(self.value, self.parameters, changes) if changes else self.value

    def call(self, changes: Mapping[str, object]) -> str:
        """The side with some settings changed, as text."""
        return f"{arguments_text((), changes)} in {self.name}" if changes else self.name


def named_pair(left: tuple[str, str], right: tuple[str, str]) -> tuple[NamedSide, NamedSide]:
    """Returns both sides of names or calls and their arguments."""
    first, second = _unchecked_side(*left), _unchecked_side(*right)
    return _check(_with_rate_of(first, second)), _check(_with_rate_of(second, first))


def named_side(name: str, arguments: str = "") -> NamedSide:
    """Returns the side of a name or a call and its arguments."""
    return _check(_unchecked_side(name, arguments))


def _with_rate_of(side: NamedSide, other: NamedSide) -> NamedSide:
    """Returns the side with the other's learning rate, if it needs one that it was not given."""
    try:
        there, here = other.parameters, side.parameters
    except TypeError:  # arguments that do not fit, as making the side will say
        return side
    rate = next((there[name] for name in RATES if there.get(name) is not None), None)
    needed = next((name for name in RATES if name in side.takes and name not in here), None)
    if rate is None or needed is None:
        return side
    return replace(side, kwargs={**(side.kwargs or {}), needed: rate})


def _unchecked_side(name: str, arguments: str) -> NamedSide:
    if "(" in name or ":" not in name:
        if arguments.strip():
            raise EquivalenceError(
                f"{name}: expected its arguments in its brackets, found --args {arguments!r}"
            )
        return _call_side(name)
    args, kwargs = parsed_arguments(arguments, f"--args {arguments!r} for {name}")
    value, is_port = _object_of(name)
    if callable(value):
        return NamedSide(name, value, None, args, kwargs, is_port=is_port)
    if arguments.strip():
        raise EquivalenceError(
            f"{name}: it is a side already and takes no arguments, found --args {arguments!r}"
        )
    return NamedSide(name, None, value)


def _object_of(name: str) -> tuple[Any, bool]:
    """Returns the object of a name, and True if it is this project's port of PyTorch's."""
    module, _, attribute = name.partition(":")
    entry = entries_by_class(TORCH).get(attribute) if module == TORCH.origin else None
    if entry is not None and importlib.util.find_spec("torch") is None:
        return resolve(entry.legacy.dotted), True
    return load_object(name), False


def _check(side: NamedSide) -> NamedSide:
    """Returns the side, if it can be made."""
    side.build()
    return side


def _call_side(text: str) -> NamedSide:
    """Returns the side of a constructor call as text."""
    try:
        call = expression(text)
    except ValueError as error:
        raise EquivalenceError(
            f"{text}: expected module:name, or a constructor call such as Adam(1e-3) or "
            f"optax.adamw(1e-3); {error}"
        ) from None
    if isinstance(call, ast.Call) and _library(ast.unparse(call.func)):
        return _library_side(call, text)
    try:
        definition = parse_definition(text)
    except ExpressionError as error:
        raise EquivalenceError(
            f"{error}. Calls may be written of flax.optim and of {', '.join(_LIBRARIES)}; name "
            "anything else as module:name, with --args LEFT RIGHT"
        ) from None
    name = type(definition).__name__
    assert isinstance(call, ast.Call)  # nothing but a call makes a definition
    head = ast.unparse(call.func)
    if head.rpartition(".")[2] != name:
        raise EquivalenceError(
            f"{text}: expected {name}(...) of flax.optim, or the library's name in front, e.g. "
            f"optax.{head}(...)"
        )
    try:
        args, kwargs = _literal_arguments(call, text)
    except EquivalenceError:  # optimizers within it
        return NamedSide(f"legacy_optim:{name}", None, definition, text=text)
    return NamedSide(
        f"legacy_optim:{name}", getattr(legacy_optim, name), None, args, kwargs, text=text
    )


def _library(function: str) -> bool:
    return function.startswith(tuple(f"{library}." for library in _LIBRARIES))


def _library_side(call: ast.Call, text: str) -> NamedSide:
    """Returns the side of a library's constructor; calls of such are taken as arguments too."""
    module, _, attribute = ast.unparse(call.func).rpartition(".")
    name = f"{module}:{attribute}"
    function, is_port = _object_of(name)
    if not callable(function):
        raise EquivalenceError(f"{text}: {name} is a side already and is not called")
    try:
        args, kwargs = _literal_arguments(call, text)
        return NamedSide(name, function, None, args, kwargs, text, is_port)
    except EquivalenceError:
        args, kwargs = _arguments(call, text, functools.partial(_call_value, text=text))
    side = NamedSide(name, function, None, args, kwargs, text=text).build()
    return NamedSide(name, None, side, text=text)


def _call_value(node: ast.expr, text: str) -> object:
    def call(node: ast.Call) -> object:
        if not _library(ast.unparse(node.func)):
            raise ValueError(NO_LITERAL)
        return _library_side(node, ast.unparse(node)).build()

    return _literal(node, text, call)


def parsed_arguments(text: str, where: str) -> tuple[list[object], dict[str, object]]:
    """Returns arguments from text such as `1e-3, nesterov=True`."""
    try:
        call = expression(f"f({text})")
    except ValueError as error:
        raise EquivalenceError(f"{where}: expected arguments {_SYNTAX}; {error}") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise EquivalenceError(f"{where}: expected arguments {_SYNTAX}")
    return _literal_arguments(call, where)


def _literal_arguments(call: ast.Call, where: str) -> tuple[list[object], dict[str, object]]:
    return _arguments(call, where, functools.partial(_literal, where=where))


def _arguments(
    call: ast.Call, where: str, value: Callable[[ast.expr], object]
) -> tuple[list[object], dict[str, object]]:
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in kwargs:
            raise EquivalenceError(f"{where}: expected each argument once, {_SYNTAX}")
        kwargs[keyword.arg] = value(keyword.value)
    return [value(arg) for arg in call.args], kwargs


def _literal(
    node: ast.expr, where: str, call: Callable[[ast.Call], object] | None = None
) -> object:
    try:
        return literal(node, call=call)
    except EquivalenceError:
        raise
    except (ValueError, TypeError):
        raise EquivalenceError(
            f"{where}: {ast.unparse(node)} is not a literal, and nothing is evaluated. For values "
            "other than numbers, strings, True, False, None, tuples, lists and dicts, write a "
            "function that makes the side, and name that"
        ) from None
