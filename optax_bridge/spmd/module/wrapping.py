# pyright: strict
"""Public methods of modules enter a context of their own when they are called."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import TypeVar

import jax

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.module.context import (
    InvocationContext,
    ModuleNode,
    child_context,
    current_context,
)
from optax_bridge.spmd.module.outputs import InvalidDescendantError, OutputCollection

Method = Callable[..., PyTree]
F = TypeVar("F", bound=Method)


def nowrap(fn: F) -> F:
    """Marks a public method as one that enters no context; overriding methods are marked too."""
    fn._nowrap = True  # type: ignore[attr-defined]
    return fn


def is_marked(cls: type, name: str, mark: str) -> bool:
    """True if the class's method, or one of that name in a base, has the mark."""
    return any(getattr(vars(base).get(name), mark, False) for base in cls.__mro__)


def public_methods(cls: type, *, base: type) -> dict[str, Method]:
    """The methods of a class that enter a context: by name, not bound.

    Args:
      cls: the class.
      base: a base whose own methods enter none.
    """
    return {
        name: method
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
        and not hasattr(base, name)
        and "self" in inspect.signature(method).parameters
        and not is_marked(cls, name, "_nowrap")
    }


def in_context(module: ModuleNode, method: Method) -> Method:
    """The method, bound to the module, entering the module's context when it is called."""
    bound = method.__get__(module)

    @functools.wraps(bound)
    def call(*args: object, **kwargs: object) -> object:
        context = current_context()
        try:
            if context is None or context.module is None or context.module is module:
                return bound(*args, **kwargs)
            with contextlib.ExitStack() as entered:
                _enter(context, module, entered)
                return bound(*args, **kwargs)
        except Exception as error:
            if not hasattr(error, "__notes__"):  # the innermost call says it
                error.add_note(f"In {method.__name__}{_types(args, kwargs)} of {module!r}.")
            raise

    return call


def _enter(context: InvocationContext, module: ModuleNode, entered: contextlib.ExitStack) -> None:
    assert context.module is not None
    try:
        path = context.module.path_to_descendant_module(module)
    except InvalidDescendantError:
        pass
    else:
        for name in path[:-1]:
            entered.enter_context(_passing_through(name))
        entered.enter_context(child_context(path[-1]))
        return
    try:
        shared = context.module.get_shared_module(module)
    except InvalidDescendantError as error:
        raise InvalidDescendantError(
            f"{module!r} is not below {context.module!r}, in whose context {context.path()} it was "
            f"called, and not shared with it: {error}"
        ) from None
    entered.enter_context(child_context(shared.name, module=shared.module, state=shared.state))


def _passing_through(name: str) -> contextlib.AbstractContextManager[InvocationContext]:
    """A scope in a child's context on the way to one below it; again, for another one below it."""
    context = current_context()
    assert context is not None
    passed: dict[str, OutputCollection] = vars(context).setdefault("_passed_through", {})
    if name not in passed:
        passed[name] = context.output_collection.add_child(name)
    return child_context(name, output_collection=passed[name])


def _types(args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    def one(value: object) -> str:
        if isinstance(value, jax.Array):
            return f"{value.dtype}{list(value.shape)}"
        return type(value).__name__

    types = [one(value) for value in args]
    types += [f"{name}={one(value)}" for name, value in kwargs.items()]
    return f"({', '.join(types)})"
