"""Where values stand in a JSON text, so that one can be replaced and all else stays as it is."""

import re
from collections.abc import Iterator

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+)')

Path = tuple[str | int, ...]


def spans(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yields the path of each value that is complete, and where it begins and ends.

    Keys are as they are written, without their quotes. The text must be valid JSON, nested as deep
    as it likes.
    """
    # Of each open container: its path, its start, and the key or index of the value to come.
    opened: list[tuple[Path, int, str | int | None]] = []
    position = 0
    while (match := _TOKEN.match(text, position)) is not None:
        token, start, position = match[1], match.start(1), match.end()
        path, begin, key = opened[-1] if opened else ((), 0, None)
        if token in "[{":
            inner = (*path, key) if key is not None else path
            opened.append((inner, start, 0 if token == "[" else None))
        elif token in "]}":
            opened.pop()
            yield path, begin, position
        elif token == ",":
            opened[-1] = (path, begin, key + 1 if isinstance(key, int) else None)
        elif token == ":":
            continue
        elif opened and key is None:
            opened[-1] = (path, begin, token[1:-1])  # a key
        else:
            yield ((*path, key) if key is not None else path), start, position
