"""Pins of a Flax that still has flax.optim: pointed out, never changed."""

import re
from pathlib import Path

_FILES = re.compile(
    r"requirements[\w.-]*\.(txt|in)|setup\.(cfg|py)|pyproject\.toml|environment[\w.-]*\.ya?ml|constraints[\w.-]*\.txt|Pipfile"
)
_PIN = re.compile(
    r"""(?<![\w.-])flax\s*["']?\s*(?:==|<=|<|~=|=)\s*["']?\s*v?(\d+(?:\.\d+)*)""", re.IGNORECASE
)
_LAST_WITH_OPTIM = (0, 5, 3)


def is_project_file(path: Path) -> bool:
    """Whether a file is one that names the versions of dependencies."""
    return _FILES.fullmatch(path.name) is not None


def old_pins(text: str) -> list[tuple[int, str]]:
    """Line numbers and messages for pins that today's Flax does not satisfy."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        match = _PIN.search(line.partition("#")[0])
        if match is None:
            continue
        version = tuple(int(part) for part in match.group(1).split("."))
        below = "<" in match.group() and "=" not in match.group() and version <= (0, 6)
        if version[:3] <= _LAST_WITH_OPTIM or below:
            found.append(
                (number, f"{line.strip()!r} keeps the old Flax: after the rewrite, flax>=0.8.5")
            )
    return found
