# pyright: strict
"""Parts of messages; imports nothing that is slow."""

import re
from collections.abc import Iterable

_NAMED = 8  # names that a message has before it counts the rest


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that is most like a word, in any case, or "" if there is no such name."""
    import difflib  # where it is needed alone

    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[close[0]] if close else ""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns "; is NAME meant?" for the name that is most like a word, or ""."""
    near = nearest(word, names)
    return f"; is {near} meant?" if near else ""


def brief(value: object, limit: int = 80) -> str:
    """A value's `repr`, cut to a length that fits a line."""
    if isinstance(value, memoryview):  # bytes of a file that is mapped
        return f"bytes, {value.nbytes:,} of them"
    text = repr(value[: limit + 1] if isinstance(value, str | bytes) else value)
    text = re.sub(r"<memory at 0x\w+>", "<bytes>", text)
    return text if len(text) <= limit else text[:limit] + "..."


def describe(value: object) -> str:
    """A value that was not expected: the class or function that it is, or its type and `repr`."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    return f"{type(value).__name__} {brief(value)}"


def listing(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
