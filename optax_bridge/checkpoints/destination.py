# pyright: strict
"""A destination that appears whole or not at all."""

import contextlib
import os
import re
import stat
from collections.abc import Generator
from pathlib import Path

from optax_bridge._atomic import atomic_write, remove_abandoned
from optax_bridge.checkpoints.errors import CheckpointError, brief
from optax_bridge.checkpoints.read import contents_of, format_of
from optax_bridge.checkpoints.trees import is_array
from optax_bridge.metadata.paths import leaves


@contextlib.contextmanager
def written_whole(destination: Path, *, force: bool = False) -> Generator[Path, None, None]:
    """As `atomic_write`; replaces nothing but a checkpoint, and that with `force` alone."""
    destination = Path(os.path.abspath(destination))  # `.` has no name
    remove_abandoned(destination.parent)
    _check(destination, force)
    with atomic_write(destination) as path:
        yield path
        _check(destination, force)  # something else may be there by now


def _check(destination: Path, force: bool) -> None:
    above = next(path for path in destination.parents if os.path.lexists(path))
    if not above.is_dir():
        kind = "a broken link" if above.is_symlink() and not above.exists() else "a file"
        raise CheckpointError(
            destination, "a folder to write into", f"{kind}, {above}", "Name another place.",
        )  # fmt: skip
    if not os.path.lexists(destination):
        return
    if force:
        check_replaceable(destination)
        return
    kind = "a folder" if destination.is_dir() else "a file"
    raise CheckpointError(
        destination, "nothing at the destination",
        "a link" if destination.is_symlink() else kind,
        "Name another one, or pass --force, which replaces a checkpoint.",
    )  # fmt: skip


_REMEDY = (
    "Only a checkpoint is replaced: name another destination, or take away what is there yourself."
)


def check_replaceable(destination: Path) -> None:
    """Checks that what is at a path is a checkpoint and nothing else, by its content."""
    mode = os.lstat(destination).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        kind = "a link" if stat.S_ISLNK(mode) else "a device, a pipe or a socket"
        raise _refusal(destination, kind)
    if stat.S_ISDIR(mode) and not any(destination.iterdir()):
        return
    located = format_of(destination)
    if located is None or located[1] != destination:
        is_folder = stat.S_ISDIR(mode)
        what = brief(sorted(os.listdir(destination))) if is_folder else "a file of another kind"
        raise _refusal(destination, what)
    format, _ = located
    if format.write is None:
        raise _refusal(destination, f"one of {format.name}, which is only read")
    try:
        tree = contents_of(format, destination).tree
    except CheckpointError as error:
        raise _refusal(destination, f"a damaged one ({error.place}: {error.found})") from None
    if not any(is_array(leaf) for _, leaf in leaves(tree)):
        raise _refusal(destination, f"a file of {format.name} without an array in it")
    files = [p for p in destination.rglob("*") if p.is_symlink() or not p.is_dir()]
    names = sorted(path.relative_to(destination).as_posix() for path in files)
    foreign = [name for name in names if not re.fullmatch(format.file_pattern, name)]
    if foreign:
        raise _refusal(destination, f"one with other files in its folder: {brief(foreign)}")


def _refusal(destination: Path, actual: str) -> CheckpointError:
    return CheckpointError(destination, "a checkpoint to replace", actual, _REMEDY)
