# pyright: strict
"""What messages are made of; imports nothing that is slow."""

from collections.abc import Iterable
from typing import Any

_NAMED = 8  # names that a message has before it counts the rest


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that is most like a word, whatever its case, or "" where none is."""
    import difflib  # where it is needed alone

    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lower, n=1)
    return lower[close[0]] if close else ""


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Returns "; is NAME meant?" for the name that is most like a word, or "" where none is."""
    near = nearest(word, names)
    return f"; is {near} meant?" if near else ""


def shown(value: Any, limit: int = 80) -> str:
    """A value's `repr`, cut to a length that fits a line."""
    if isinstance(value, memoryview):  # bytes of a file that is mapped
        return f"bytes, {value.nbytes:,} of them"
    text = repr(value[: limit + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= limit else text[:limit] + "..."


def listed(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
