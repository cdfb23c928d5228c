"""Checksums of the files of a checkpoint, and what a run says when they do not hold."""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import args as ocp_args

ITEM = "checksums"
_FILE = "crc32.txt"
_BLOCK = 2**24


class DamagedCheckpointError(ValueError):
    """A checkpoint is not as it was written."""


class ChecksumHandler(ocp.CheckpointHandler):
    """Orbax's handler of an item with a checksum for each file of the items before it.

    It must be the last item, as Orbax finishes items in the order in which they are registered.
    """

    def save(self, directory: epath.Path, args: "SaveChecksums") -> None:
        """Does nothing: the other items are not finished yet."""

    def restore(self, directory: epath.Path, args: object = None) -> None:
        """Does nothing: `damage_of` looks at the files before any item is restored."""

    def finalize(self, directory: epath.Path) -> None:
        """Writes a line for each file of the finished items; in process 0."""
        if jax.process_index() != 0:
            return
        folder = Path(directory).parent
        lines = [
            f"{_crc32(file):08x} {file.stat().st_size} {file.relative_to(folder).as_posix()}\n"
            for file in sorted(folder.glob("*/**/*"))
            if file.is_file() and Path(directory) not in file.parents
        ]
        Path(directory, _FILE).write_text("".join([*lines, _last_line(lines)]))


class SaveChecksums(ocp_args.CheckpointArgs):
    """What `ChecksumHandler.save` is given: nothing."""


ocp_args.register_with_handler(ChecksumHandler, for_save=True, for_restore=True)(SaveChecksums)


def damage_of(folder: Path) -> list[str]:
    """Returns what is wrong with the files of a checkpoint, a line each.

    To be called by all processes: each reads its part of the files.
    """
    file = folder / ITEM / _FILE
    try:
        *lines, last = file.read_text().splitlines(keepends=True)
        if not lines or last != _last_line(lines):
            raise ValueError
        entries = [line.rstrip("\n").split(" ", 2) for line in lines]
    except (OSError, ValueError):
        state = "damaged" if file.exists() else "missing"
        return [f"{file.relative_to(folder)}: {state}, which has the checksums of all other files"]
    count, index = jax.process_count(), jax.process_index()
    is_wrong = np.zeros(len(entries), bool)
    for number in range(index, len(entries), count):
        crc, size, name = entries[number]
        is_wrong[number] = _problem(folder / name, int(size), crc) is not None
    if count > 1:
        is_wrong = np.any(multihost_utils.process_allgather(is_wrong), axis=0)
    wrong = [entry for entry, bad in zip(entries, is_wrong, strict=True) if bad]
    return [f"{name}: {_problem(folder / name, int(size), crc)}" for crc, size, name in wrong]


def damage_message(
    folder: Path, problems: Sequence[str], *, whole_steps: Sequence[int], parsed_step: int
) -> str:
    """Returns the text of a `DamagedCheckpointError`.

    Args:
      folder: the checkpoint.
      problems: what is wrong with it.
      whole_steps: the steps of the checkpoints beside it that are whole.
      parsed_step: its step.
    """
    shown = "\n".join(f"  {problem}" for problem in problems[:5])
    more = f"\n  and {len(problems) - 5} more files" if len(problems) > 5 else ""
    text = f"{folder}: the checkpoint is damaged; nothing in it was changed.\n{shown}{more}\n"
    if not whole_steps:
        return text + (
            "No other checkpoint in the folder is whole. Copy this one back from where it is "
            "whole, or start a run in another folder (`dir`)."
        )
    newest = whole_steps[-1]
    others = ", ".join(map(str, whole_steps))
    return text + (
        f"Whole are those of {'step' if len(whole_steps) == 1 else 'steps'} {others}. To go on "
        f"from step {newest}: --resume-from {newest}, or `run(..., restore_step={newest})`; "
        f"with checkpointer.fall_back=True a run does so itself. Checkpoints after it are then "
        f"set aside, that of step {parsed_step} too."
    )


def _problem(file: Path, size: int, crc: str) -> str | None:
    """Returns what is wrong with a file, None if nothing is."""
    try:
        actual_size = file.stat().st_size
        if actual_size != size:
            return f"{size} bytes expected, found {actual_size}"
        return None if f"{_crc32(file):08x}" == crc else "other bytes than were written"
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _crc32(file: Path) -> int:
    value = 0
    for block in _blocks(file):
        value = zlib.crc32(block, value)
    return value


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while block := stream.read(_BLOCK):
            yield block


def _last_line(lines: Sequence[str]) -> str:
    """The checksum of the lines before it."""
    return f"{zlib.crc32(''.join(lines).encode()):08x}\n"
