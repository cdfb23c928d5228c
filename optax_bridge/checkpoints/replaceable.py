# pyright: strict
"""What `--force` may replace: a checkpoint, and nothing that somebody else put there."""

import os
import re
import stat
from pathlib import Path

from optax_bridge.checkpoints.errors import CheckpointError, shown
from optax_bridge.checkpoints.formats import registry
from optax_bridge.checkpoints.recognise import is_array, leaves

_REMEDY = (
    "Only a checkpoint is replaced: name another destination, or take away what is there yourself."
)


def check_replaceable(destination: Path) -> None:
    """Checks that what is at a path is a checkpoint and nothing else, by its content.

    Args:
      destination: a path at which there is something.

    Raises:
      CheckpointError: it is a link, a device or the like; no checkpoint, or a damaged one; or there
        are other files in its folder.
    """
    mode = os.lstat(destination).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a link" if stat.S_ISLNK(mode) else "a device, a pipe or a socket"
        raise _refused(destination, kind)
    if stat.S_ISDIR(mode) and not any(destination.iterdir()):
        return
    located = registry.located(destination)
    if located is None or located[1] != destination:
        is_folder = stat.S_ISDIR(mode)
        what = shown(sorted(os.listdir(destination))) if is_folder else "a file of another kind"
        raise _refused(destination, what)
    format, _ = located
    try:
        tree = registry.contents(format, destination).tree
    except CheckpointError as error:
        raise _refused(destination, f"a damaged one ({error.place}: {error.found})") from None
    if not any(is_array(leaf) for _, leaf in leaves(tree)):
        raise _refused(destination, f"a file of {format.name} without an array in it")
    if stat.S_ISDIR(mode):
        foreign = _foreign(destination, format.own)
        if foreign:
            raise _refused(destination, f"one with other files in its folder: {shown(foreign)}")


def _foreign(folder: Path, own: str | None) -> list[str]:
    pattern = re.compile(own) if own is not None else None
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_file = path.is_symlink() or not path.is_dir()
        if is_file and (pattern is None or not pattern.fullmatch(name)):
            found.append(name)
    return found


def _refused(destination: Path, found: str) -> CheckpointError:
    return CheckpointError(destination, "a checkpoint to replace", found, _REMEDY)
