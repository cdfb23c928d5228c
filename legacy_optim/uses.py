"""The old names that a program used, with their places."""

import collections
import json
import os
import sys
import types
from collections.abc import Iterable
from typing import NamedTuple

from legacy_optim import settings

# Modules whose frames are never "where the program used a name".
_OWN = ("legacy_optim", "importlib")


class Use(NamedTuple):
    """A use of an old name."""

    name: str
    file: str
    line: int


_uses: collections.Counter[Use] = collections.Counter()


def uses() -> list[tuple[Use, int]]:
    """The old names that were used since `install`: where, and how many times, sorted."""
    return sorted(_uses.items())


def note(name: str) -> None:
    """Counts a use at the innermost frame that is not this package's or the import system's."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        if not str(module).startswith(_OWN):
            star = f"{name.rpartition('.')[0]}.*"  # of a star import that alone is told
            if Use(star, file, frame.f_lineno) not in _uses:
                _count(Use(name, file, frame.f_lineno))
            return
        frame = frame.f_back


def _count(use: Use) -> None:
    _uses[use] += 1
    if _uses[use] > 1 or settings.is_first():
        return
    # Another process than the program's own says it at once: it may be killed, or fork without end.
    with open(os.environ[settings.USES], "a", encoding="utf-8") as file:
        file.write(json.dumps(use) + "\n")


def of_other_processes() -> Iterable[Use]:
    """The uses that the program's other processes have written down; removes their file."""
    path = os.environ.get(settings.USES, "")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        uses = [Use(*json.loads(line)) for line in file]
    os.remove(path)
    return uses
