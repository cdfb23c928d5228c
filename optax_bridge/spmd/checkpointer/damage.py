"""Checksums of the files of a checkpoint, and what a run says when they do not hold."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.experimental import multihost_utils
from orbax.checkpoint import args as ocp_args

from optax_bridge.checkpoints.formats.trainer import (
    CHECKSUMS,
    checksum_lines,
    problem_of,
    read_checksums,
    without_checksums,
)

ITEM = Path(CHECKSUMS).parent.name


class DamagedCheckpointError(ValueError):
    """A checkpoint changed after it was written."""


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
        files = [
            file
            for file in sorted(folder.glob("*/**/*"))
            if file.is_file() and Path(directory) not in file.parents
        ]
        Path(directory, Path(CHECKSUMS).name).write_text(checksum_lines(folder, files))


class SaveChecksums(ocp_args.CheckpointArgs):
    """The arguments of `ChecksumHandler.save`: none."""


ocp_args.register_with_handler(ChecksumHandler, for_save=True, for_restore=True)(SaveChecksums)


def damage_of(folder: Path) -> list[str]:
    """Returns what is wrong with the files of a checkpoint, a line each.

    To be called by all processes: each reads its part of the files.
    """
    entries = read_checksums(folder)
    if entries is None:
        return [without_checksums(folder)]
    count, index = jax.process_count(), jax.process_index()
    is_wrong = np.zeros(len(entries), bool)
    for number in range(index, len(entries), count):
        is_wrong[number] = problem_of(folder, entries[number]) is not None
    if count > 1:
        is_wrong = np.any(multihost_utils.process_allgather(is_wrong), axis=0)
    wrong = [entry for entry, bad in zip(entries, is_wrong, strict=True) if bad]
    return [problem_of(folder, entry) or f"{entry[2]}: damaged" for entry in wrong]


def damage_message(
    folder: Path, problems: Sequence[str], *, whole_steps: Sequence[int], parsed_step: int
) -> str:
    """Returns the text of a `DamagedCheckpointError`.

    Args:
      folder: the checkpoint.
      problems: what is wrong with it.
      whole_steps: the steps of the other checkpoints that are whole.
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
