# pyright: strict
"""Where values stand in a JSON text, so that one can be replaced and all else stays as it is."""

import re
from collections.abc import Iterator

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+)')

Path = tuple[str | int, ...]


def spans(text: str, deepest: int = 3) -> Iterator[tuple[Path, int, int]]:
    """Yields the path of each value that is complete, and where it begins and ends.

    Args:
      text: valid JSON, nested as deep as it likes.
      deepest: the length of the longest paths that are looked for.

    Yields:
      The path, of indices and of keys as they are written, without their quotes; start; end.
    """
    # Of each open container: its path, None where it is too long; its start; the key or index of
    # the value to come.
    opened: list[tuple[Path | None, int, str | int | None]] = []
    position = 0
    while (match := _TOKEN.match(text, position)) is not None:
        token, start, position = match[1], match.start(1), match.end()
        path, begin, key = opened[-1] if opened else ((), 0, None)
        if token in "[{":
            opened.append((_below(path, key, deepest), start, 0 if token == "[" else None))
        elif token in "]}":
            opened.pop()
            if path is not None:
                yield path, begin, position
        elif token == ",":
            opened[-1] = (path, begin, key + 1 if isinstance(key, int) else None)
        elif token == ":":
            continue
        elif opened and key is None:
            opened[-1] = (path, begin, token[1:-1])  # a key
        elif (whole := _below(path, key, deepest)) is not None:
            yield whole, start, position


def _below(path: Path | None, key: str | int | None, deepest: int) -> Path | None:
    if path is None or key is None:
        return path
    return (*path, key) if len(path) < deepest else None
