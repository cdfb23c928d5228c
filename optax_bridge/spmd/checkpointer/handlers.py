"""Orbax handlers for positions of iterators and checksums of all files."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeGuard

import jax
import msgpack
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint import args as ocp_args

from optax_bridge.checkpoints.formats.trainer import CHECKSUMS
from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.checkpointer.checksums import checksum_lines
from optax_bridge.spmd.trees import flatten_items


class SavableIterator(Iterator[PyTree], Protocol):
    """An iterator that can continue from another one's position."""

    def get_state(self) -> PyTree:
        """Returns its position, as msgpack can write it."""
        ...

    def set_state(self, state: PyTree) -> None:
        """Continues from a position."""
        ...


def is_iterator(leaf: object) -> TypeGuard[SavableIterator]:
    """True if a leaf of a state is an iterator that can be saved."""
    return hasattr(leaf, "get_state") and hasattr(leaf, "set_state")


class MissingPositionError(ValueError):
    """A checkpoint has no position of an iterator: it was saved without."""


def iterators_of(state: PyTree) -> dict[str, SavableIterator]:
    """Path -> iterator, of a state."""
    return {path: leaf for path, leaf in flatten_items(state) if is_iterator(leaf)}


class IteratorHandler(ocp.CheckpointHandler):
    """Orbax's handler of an item with iterators: one file each under `python_<process>/`."""

    def save(self, directory: epath.Path, args: "SaveIterators") -> None:
        """Writes the states, which were taken when the arguments were made."""
        for path, data in args.states.items():
            file = directory / f"python_{jax.process_index()}" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def restore(self, directory: epath.Path, args: "RestoreIterators") -> None:
        """Sets the states of the iterators."""
        folders = sorted(entry.name for entry in directory.iterdir() if entry.is_dir())
        as_many = len(folders) == jax.process_count()
        for path, iterator in args.iterators.items():
            for_all = getattr(iterator, "state_of_all_processes", False)
            index = 0 if for_all and not as_many else jax.process_index()
            file = directory / f"python_{index}" / path
            if not file.exists() or not (as_many or for_all):
                raise ValueError(
                    f"{file}: a state of the iterator from {jax.process_count()} processes "
                    f"expected, found {folders}. It was saved by another number of processes: use "
                    "that number, or set save_input_iterator=False to start the input over."
                )
            try:
                iterator.set_state(msgpack.unpackb(file.read_bytes(), strict_map_key=False))
            except Exception as error:  # of an iterator of the program's
                raise ValueError(
                    f"{file}: no position that {type(iterator).__name__} can continue from: "
                    f"{type(error).__name__}: {error}. Use the input that it was saved with, or "
                    "set save_input_iterator=False to start the input over."
                ) from error


class SaveIterators(ocp_args.CheckpointArgs):
    """The arguments of `IteratorHandler.save`."""

    def __init__(self, iterators: Mapping[str, SavableIterator]):
        """Takes the present states of path -> iterator."""
        self.states: dict[str, PyTree] = {
            path: msgpack.packb(iterator.get_state()) for path, iterator in iterators.items()
        }


class RestoreIterators(ocp_args.CheckpointArgs):
    """The arguments of `IteratorHandler.restore`."""

    def __init__(self, iterators: Mapping[str, SavableIterator]):
        self.iterators = dict(iterators)


ocp_args.register_with_handler(IteratorHandler, for_save=True)(SaveIterators)
ocp_args.register_with_handler(IteratorHandler, for_restore=True)(RestoreIterators)


ITEM = Path(CHECKSUMS).parent.name


class DamagedCheckpointError(ValueError):
    """A checkpoint changed after it was written."""


class ChecksumHandler(ocp.CheckpointHandler):
    """Orbax's handler of an item with a checksum for each file of the items before it."""

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


def damage_message(
    folder: Path, problems: Sequence[str], *, whole_steps: Sequence[int], parsed_step: int
) -> str:
    """Returns the text of a `DamagedCheckpointError`."""
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
