"""Finds the formats in their folder, and reads a checkpoint of any of them."""

import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax

from optax_bridge.checkpoints import formats as folder
from optax_bridge.checkpoints.errors import CheckpointError, brief
from optax_bridge.checkpoints.formats import Contents, Format, head_of
from optax_bridge.checkpoints.lazy import check_unpacked
from optax_bridge.checkpoints.locate import find_states
from optax_bridge.checkpoints.moves import Move
from optax_bridge.checkpoints.trees import plain
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import PyTree

ORBAX = "Orbax"  # which brings arrays to devices itself
T5X = "T5X"  # whose optimizer stands at a level of its own
# `checkpoint_100` of flax.training, `ckpt-7.flax` of clu; the step may be a decimal number.
_NUMBERED = re.compile(
    r"(?P<stem>.*?)[_-](?P<step>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?:\.flax)?", re.ASCII
)
# Other entries of such folders: hidden files, rests of Orbax and T5X, TensorBoard's logs (`w-0`).
_NO_CHECKPOINT = re.compile(r"\.|.*\.(?:orbax-checkpoint-)?tmp\b|events\.out\.tfevents\.")
_LEVELS = 4  # `run_3/checkpoint_100` is two
_USUAL = ("checkpoint", "ckpt")  # the prefixes of flax.training and T5X, and of clu
# What Orbax's manager, and T5X's, called the state within a step's folder.
_ITEMS = ("state", "default")


@dataclass(frozen=True)
class Read:
    """A checkpoint that was read.

    Attributes:
      path: the file or folder itself, the latest of a step-numbered folder.
      format: the format's name: `Flax msgpack`, `npz`, `T5X`, `Orbax`.
      tree: nested dicts, lists by index; arrays, or objects with `shape`, `dtype` and `__array__`,
        at the leaves.
      variant: of the format, in words, where it has several.
      origins: of a tree that was laid out anew, each leaf's move from the file to its place.
    """

    path: Path
    format: str
    tree: PyTree
    variant: str = ""
    origins: Mapping[Names, Move] = field(default_factory=dict[Names, Move], repr=False)

    def from_file(self, move: Move) -> Move:
        """The move with the place in the file itself, and the rearrangement on the way."""
        origin = self.origins.get(move.source)
        return move if origin is None else replace(move, source=origin.source, layout=origin.layout)

    @property
    def description(self) -> str:
        """Format and content in words."""
        states = list(find_states(self.tree))
        if not states:
            return f"{self.format}, {self.variant}" if self.variant else self.format
        where = ", ".join("/".join(path) for path in states if path)
        at, notes = f" at {where}" if where else "", f" ({self.variant})" if self.variant else ""
        return f"{self.format}, a TrainState{at}{notes}"


def read_checkpoint(path: Path | str, requested: int = 0) -> Read:
    """Reads a checkpoint.

    Args:
      path: a file or folder of a known format, see `optax-bridge inspect`; or a folder of
        step-numbered ones, of which the one with the highest number is read.
      requested: bytes that are asked for, those of a template; see `check_unpacked`.

    Raises:
      CheckpointError: nothing is there, nothing that is known, something damaged, or something
        that says it holds far more than its files may.
    """
    path = Path(path)
    try:
        read = _read(path)
        check_unpacked(jax.tree.leaves(read.tree), read.path, requested)
    except OSError as error:
        found = brief(error.strerror or str(error))
        remedy = "Check the path and its permissions."
        raise CheckpointError(path, "a file or folder that can be read", found, remedy) from None
    return read


def _read(path: Path, levels: int = _LEVELS) -> Read:
    if levels == 0:
        expected = f"a checkpoint within {_LEVELS} levels of numbered folders"
        raise CheckpointError(path, expected, "one more level", "Name the file itself.")
    if not path.is_dir() and not path.is_file():
        found = "neither a file nor a folder" if path.exists() else "nothing of that name"
        raise CheckpointError(path, "a checkpoint", found, "Check the path.")
    located = format_of(path)
    if located is None and path.is_dir():
        return _read(item_of(path) or latest(path), levels - 1)
    if located is None:
        raise _unknown_format(path)
    format, root = located
    contents = contents_of(format, root)
    if not isinstance(contents.tree, dict | list):
        remedy = f"{names()} checkpoints are read."
        raise CheckpointError(path, "a tree of names and arrays", brief(contents.tree), remedy)
    return Read(root, format.name, plain(contents.tree), contents.variant)


@functools.cache
def formats() -> dict[str, Format]:
    """Every format by its option, the general ones last."""
    modules = (info.name for info in pkgutil.iter_modules(folder.__path__))
    paths = (f"{folder.__name__}.{name}" for name in modules if not name.endswith("_test"))
    found = (importlib.import_module(path).FORMAT for path in paths)
    return {f.option: f for f in sorted(found, key=lambda f: (f.is_general, f.option))}


def names() -> str:
    """Returns the formats in words: `npz, T5X, Trainer, Flax msgpack and Orbax`."""
    *most, last = (format.name for format in formats().values())
    return f"{', '.join(most)} and {last}"


def writable() -> list[str]:
    """The options of the formats that can be written."""
    return [option for option, format in formats().items() if format.write is not None]


def written_as(option: str) -> Format:
    """The format to write of this option."""
    if option not in writable():
        raise ValueError(f"format: expected one of {', '.join(writable())}, found {option!r}")
    return formats()[option]


def format_of(path: Path) -> tuple[Format, Path] | None:
    """The format of a path that exists, and the checkpoint it names; None if it is of no format."""
    located = ((format, format.find(path)) for format in formats().values())
    return next(((format, root) for format, root in located if root is not None), None)


def contents_of(format: Format, root: Path) -> Contents:
    """Reads a checkpoint."""
    try:
        return format.read(root)
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # of a library, which a hostile file may make raise anything
        found = brief(f"{type(error).__name__}: {error}", 200)
        raise CheckpointError(root, f"a checkpoint of {format.name}", found) from error


def is_checkpoint(folder: Path) -> bool:
    """True if a folder is itself a checkpoint, of Orbax or of T5X, and not one of several."""
    return folder.is_dir() and format_of(folder) is not None


def item_of(folder: Path) -> Path | None:
    """The state within the folder of a step that a manager saved, None without one."""
    return next((folder / item for item in _ITEMS if is_checkpoint(folder / item)), None)


def _series_in(folder: Path) -> dict[str, list[tuple[float, Path]]]:
    """The step-numbered entries of a folder, by their names without the step."""
    series: dict[str, list[tuple[float, Path]]] = {}
    for entry in folder.iterdir():
        match = _NUMBERED.fullmatch(entry.name)
        if match and not _NO_CHECKPOINT.match(entry.name):
            series.setdefault(match["stem"], []).append((float(match["step"]), entry))
    return series


def latest(folder: Path) -> Path:
    """The entry of a folder with the highest step in its name; by number, so 100 is after 20."""
    series = _series_in(folder)
    stems = [stem for stem in _USUAL if stem in series] or ([*series] if len(series) == 1 else [])
    if not stems:
        entries = sorted(entry.name for entry in folder.iterdir())
        raise CheckpointError(
            folder, "one series of step-numbered checkpoints, such as checkpoint_100",
            brief(entries) if entries else "an empty folder", "Name the file itself.",
        )  # fmt: skip
    return max(series[stems[0]])[1]


def count_of_series(path: Path) -> int:
    """The number of checkpoints in a folder that differ from one of them by the step alone."""
    series = ([entry for _, entry in entries] for entries in _series_in(path.parent).values())
    return next((len(entries) for entries in series if path in entries), 1)


def _unknown_format(path: Path) -> CheckpointError:
    head, expected = head_of(path, 8), "a checkpoint of a known format"
    # A pickle of protocol 2 or later starts so; in msgpack that is an empty map and then more.
    if head.startswith(b"\x80") and len(head) > 1:
        return CheckpointError(
            path, expected, "a file that looks like a pickle",
            "Loading a pickle runs code, so pickles are never loaded. Write "
            "flax.serialization.to_bytes of its content to a file, in the program that wrote it, "
            "or in two lines under `optax-bridge run`, which reads pickles of flax.optim.",
        )  # fmt: skip
    found = f"a file that starts with {brief(head)}" if head else "an empty file"
    remedy = f"{names()} checkpoints are read; unpack it if it is packed."
    return CheckpointError(path, expected, found, remedy)
