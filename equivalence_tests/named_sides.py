"""Sides that a user names on the command line, with the arguments that they are made with."""

import ast
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from equivalence_tests.loading import side_or_function
from equivalence_tests.sides import keras, pytorch
from equivalence_tests.sides.adapt import EquivalenceError, adapted
from equivalence_tests.sides.foreign import written
from optax_bridge._named import with_own_arguments

_SYNTAX = 'written as in a call, e.g. "learning_rate=1e-3, nesterov=True"'


@dataclass(frozen=True)
class NamedSide:
    """A side by its name.

    Attributes:
      name: `module:name`.
      function: what makes the side; None if the name is that of a side.
      value: the side, where nothing makes it.
      args: positional arguments.
      kwargs: keyword arguments.
    """

    name: str
    function: Callable[..., Any] | None
    value: Any = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None

    def __str__(self) -> str:
        if self.function is None or not (self.args or self.kwargs):
            return self.name
        return f"{self.name}({self.written})"

    @property
    def written(self) -> str:
        """The arguments as text."""
        return written(self.args, self.kwargs or {})

    @property
    def parameters(self) -> dict[str, Any]:
        """The function's arguments by name: those that are given, else their defaults.

        What has no default and is not given is left out, and so are a torch class's tensors.
        """
        if self.function is None:
            return {}
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return {}
        tensors = [None] if pytorch.is_torch_optimizer(self.function) else []
        bound = signature.bind_partial(*tensors, *self.args, **(self.kwargs or {}))
        bound.apply_defaults()
        skipped = next(iter(signature.parameters)) if tensors else None
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {
            name: value
            for name, value in bound.arguments.items()
            if name != skipped and signature.parameters[name].kind not in kinds
        }

    def made(self, **changed: Any) -> Any:
        """The side, with some keyword arguments changed.

        Raises:
          EquivalenceError: it cannot be made so.
        """
        if self.function is None:
            return self.value
        if changed:
            return replace(self, args=(), kwargs={**self.parameters, **changed}).made()
        try:
            with with_own_arguments(self.name.rpartition(":")[0]):
                return _maker(self.function)(*self.args, **(self.kwargs or {}))
        except (Exception, SystemExit) as error:
            hint = ""
            if isinstance(error, TypeError) and not self.written:
                hint = "; give its arguments with --kwargs LEFT RIGHT"
            raise EquivalenceError(
                f"{self.name}({self.written}): raised {type(error).__name__}: {error}{hint}"
            ) from error


_FRAMEWORKS = {"torch": pytorch, "keras": keras}


def _maker(function: Callable[..., Any]) -> Callable[..., Any]:
    """What makes the side: the function itself, unless it is a class of another framework."""
    if pytorch.is_torch_optimizer(function):
        return functools.partial(pytorch.torch_side, function)
    if keras.is_keras_optimizer(function):
        return functools.partial(keras.keras_side, function)
    return function


def named_side(name: str, arguments: str = "") -> NamedSide:
    """The side that a name stands for, or that what it names makes.

    Args:
      name: of a side; of a function that makes one, `optax:adamw`; or of a class of `torch.optim`.
      arguments: those of the function, written as in a call; parsed, never evaluated.

    Raises:
      EquivalenceError: it is none of these, or does not take the arguments.
    """
    args, kwargs = parsed_arguments(arguments, name)
    framework = _FRAMEWORKS.get(name.partition(":")[0].partition(".")[0])
    if framework is not None:
        framework.imported(name)
    value, is_side = side_or_function(name)
    if is_side:
        if arguments.strip():
            raise EquivalenceError(
                f"{name}: it is a side already and takes no arguments, found --kwargs {arguments!r}"
            )
        return NamedSide(name, None, value)
    side = NamedSide(name, value, None, args, kwargs)
    made = side.made()
    try:
        adapted(made)
    except EquivalenceError as error:
        raise EquivalenceError(f"{side}: {error}") from None
    return side


def parsed_arguments(text: str, name: str) -> tuple[list[Any], dict[str, Any]]:
    """Arguments from text such as `1e-3, nesterov=True`.

    Args:
      text: what stands between the brackets of a call; each value a Python literal.
      name: of what is called, for messages.

    Raises:
      EquivalenceError: it is not that.
    """
    where = f"--kwargs {text!r} for {name}"
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = getattr(error, "msg", error)
        raise EquivalenceError(f"{where}: expected arguments {_SYNTAX}; {why}") from None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise EquivalenceError(f"{where}: expected arguments {_SYNTAX}")

    def value(node: ast.expr) -> Any:
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError):
            raise EquivalenceError(
                f"{where}: {ast.unparse(node)} is no literal, and nothing is evaluated; for "
                "anything but numbers, text, True, False, None, tuples, lists and dicts write a "
                "function that makes the side and name that"
            ) from None

    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg in kwargs:
            raise EquivalenceError(f"{where}: expected each argument once, {_SYNTAX}")
        kwargs[keyword.arg] = value(keyword.value)
    return [value(arg) for arg in call.args], kwargs
