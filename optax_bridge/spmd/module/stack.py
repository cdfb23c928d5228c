# pyright: strict
"""The stack that contexts of modules are on: one in each thread."""

import contextlib
import threading
from collections.abc import Generator
from typing import Any


class _ContextStack(threading.local):
    """The contexts entered, and the thread that they belong to.

    A thread that has installed no stack sees the main thread's list.
    """

    def __init__(self, stack: list[Any], thread_id: int | None) -> None:
        self.stack = stack
        self.thread_id = thread_id


_global_context_stack = _ContextStack([], threading.main_thread().ident)


def in_own_thread() -> bool:
    """True if this thread has a stack of its own."""
    return _global_context_stack.thread_id == threading.get_ident()


def clone_context_stack() -> list[Any]:
    """A copy of the stack, for another thread to install."""
    return list(_global_context_stack.stack)


def install_context_stack(stack: list[Any]) -> None:
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
def own_stack() -> Generator[None, None, None]:
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
