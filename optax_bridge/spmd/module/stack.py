"""The stack of contexts that calls of modules run in: one in each thread."""

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from optax_bridge.spmd.module.context import InvocationContext


class _ContextStack(threading.local):
    """The contexts entered, and the thread that they belong to.

    A thread that has installed no stack sees the main thread's list.
    """

    def __init__(self, stack: list["InvocationContext"], thread_id: int | None) -> None:
        self.stack = stack
        self.thread_id = thread_id


_global_context_stack = _ContextStack([], threading.main_thread().ident)


def in_own_thread() -> bool:
    """Whether this thread has a stack of its own."""
    return _global_context_stack.thread_id == threading.get_ident()


def current_context() -> "InvocationContext | None":
    """The innermost context, or None."""
    stack = _global_context_stack.stack
    return stack[-1] if stack else None


def clone_context_stack() -> list["InvocationContext"]:
    """A copy of the stack, for another thread to install."""
    return list(_global_context_stack.stack)


def install_context_stack(stack: list["InvocationContext"]) -> None:
    """Makes the list this thread's stack.

    Args:
      stack: of `clone_context_stack` in the thread whose contexts go on here, or an empty list.

    Raises:
      ValueError: this thread has a stack already.
    """
    if in_own_thread():
        raise ValueError("this thread has a stack of contexts already; it cannot have another one.")
    _global_context_stack.stack = stack
    _global_context_stack.thread_id = threading.get_ident()


@contextlib.contextmanager
def own_stack() -> Iterator[None]:
    """A scope with a stack of this thread's own, an empty one if it has none."""
    if in_own_thread():
        yield
        return
    before = _global_context_stack.stack, _global_context_stack.thread_id
    install_context_stack([])
    try:
        yield
    finally:
        _global_context_stack.stack, _global_context_stack.thread_id = before


@contextlib.contextmanager
def set_current_context(
    context: "InvocationContext", *, require_parent: bool = True
) -> Iterator["InvocationContext"]:
    """A scope in which the context is the current one.

    Args:
      context: the context.
      require_parent: whether its parent must be the context that is current now.

    Raises:
      ValueError: it is not, or, where none is current, the context has a parent.
    """
    stack = _global_context_stack.stack
    if stack and require_parent and context.parent is not stack[-1]:
        raise ValueError(
            f"the parent must match the current context: {context.path()} has the parent "
            f"{None if context.parent is None else context.parent.path()}, but "
            f"{stack[-1].path()} is current."
        )
    if not stack and require_parent and context.parent is not None:
        raise ValueError(
            f"{context.path()} must be a root context: it has a parent, but none is current."
        )
    with _scope(context):
        stack.append(context)
        try:
            yield context
        finally:
            stack.pop()


def _scope(context: "InvocationContext") -> Any:
    """The name under which operations appear in profiles."""
    if context.name == "remat":  # of the same module as the context around it
        return contextlib.nullcontext()
    if context.module is None:
        return jax.named_scope(context.name)
    return jax.named_scope(f"{context.name}[{type(context.module).__qualname__}]")


@contextlib.contextmanager
def child_context(name: str, **overrides: Any) -> Iterator["InvocationContext"]:
    """A scope in a child of the current context.

    Args:
      name: the child's name; its random key and the place of its outputs follow from it.
      **overrides: as in `InvocationContext.add_child`.

    Raises:
      RuntimeError: there is no current context in this thread.
    """
    context = current_context()
    if not in_own_thread():
        raise RuntimeError(
            f"child_context({name!r}): this thread has installed no stack of contexts. In the "
            f"thread "
            "that starts it, `stack = clone_context_stack()`; in this one, "
            "`install_context_stack(stack)`."
        )
    if context is None:
        raise RuntimeError(f"child_context({name!r}): there is no current context.")
    with set_current_context(context.add_child(name, **overrides)) as child:
        yield child
