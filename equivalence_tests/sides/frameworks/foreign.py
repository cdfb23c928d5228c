"""Parts that sides of other frameworks have in common."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equivalence_tests.sides.errors import EquivalenceError


def arguments_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Arguments as in a call."""
    named = (f"{name}={value!r}" for name, value in kwargs.items())
    return ", ".join([*map(repr, args), *named])


def make_instance(make: Callable[[], Any], kind: type, expected: str, what: str) -> Any:
    """Makes an object and returns it, if it is of a class.

    Args:
      make: makes it.
      kind: the class.
      expected: its name, for messages.
      what: the side and the optimizer, `torch_side: AdamW`, for messages.

    Raises:
      EquivalenceError: it cannot be made, or is something else.
    """
    try:
        result = make()
    except Exception as error:
        raise EquivalenceError(f"{what} raised {type(error).__name__}: {error}") from None
    if not isinstance(result, kind):
        raise EquivalenceError(f"{what} made a {type(result).__name__}; expected a {expected}")
    return result


def import_framework(module: str, title: str, where: str) -> Any:
    """Imports a framework.

    Raises:
      EquivalenceError: it is not installed; `where` begins the message.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EquivalenceError(
            f"{where}: {title} cannot be imported ({error}); install it with `pip install {module}`"
        ) from None


def has_base(value: Any, module: str, name: str) -> bool:
    """True if this is a class with a base of that name; imports nothing."""
    return isinstance(value, type) and any(
        base.__module__.startswith(module) and base.__name__ == name for base in value.__mro__
    )
