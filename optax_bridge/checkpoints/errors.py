# pyright: strict
"""The error and the warnings of this package: the fault of a file or tree, and the remedy."""

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from optax_bridge._text import brief as brief
from optax_bridge.metadata.paths import Names, leaf_name

Place = Path | str  # a file or a folder, perhaps with a place in it
_PACKAGE = Path(__file__).parents[1]
DAMAGED = "The file is damaged or was cut short: copy it again, or take an earlier checkpoint."


def place_of(place: Place, path: Names) -> str:
    """The name of a leaf of a checkpoint in errors."""
    return f"{place}, {leaf_name(path)}" if path else str(place)


class CheckpointError(ValueError):
    """A checkpoint that cannot be read, converted or written.

    Attributes:
      place: the file, and within it the leaf or the byte.
      expected: the expectation, in words.
      found: the actual content, in words.
      remedy: how to mend or avoid it.
    """

    def __init__(self, place: Place, expected: str, found: object, remedy: str = DAMAGED):
        """Takes `found` in words, or as a value or an error to show."""
        if isinstance(found, Exception):
            found = brief(str(found) or type(found).__name__, 200)
        found = found if isinstance(found, str) else brief(found)
        self.place, self.expected, self.found, self.remedy = str(place), expected, found, remedy
        super().__init__(f"{place}: expected {expected}, found {found}. {remedy}")


class LeftOverWarning(UserWarning):
    """A checkpoint holds leaves that the restored tree has no place for; they are listed.

    Attributes:
      paths: of all leaves left over, where restoring found them; the text names the first.
    """

    def __init__(self, text: str, paths: Sequence[tuple[str, ...]] = ()):
        self.paths = tuple(paths)
        super().__init__(text)


class ConvertedWarning(UserWarning):
    """A leaf has another type in a checkpoint than in the template that it was restored into."""


def warn(warning: LeftOverWarning | ConvertedWarning) -> None:
    """Warns at the line that called this package."""
    level, frame = 2, sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back and _is_of_this_package(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


def _is_of_this_package(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE) and not file.endswith("_test.py")
