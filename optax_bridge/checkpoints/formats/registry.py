# pyright: strict
"""Finds the formats in their folder, and the one that a path is of."""

import functools
import importlib
import pkgutil
from pathlib import Path

from optax_bridge.checkpoints import formats as folder
from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, shown
from optax_bridge.checkpoints.formats.format import Contents, Format


@functools.cache
def formats() -> dict[str, Format]:
    """Every format by its option, the general ones last.

    Raises:
      ValueError: two have the same option.
    """
    all_formats: list[Format] = []
    for info in pkgutil.iter_modules(folder.__path__):
        if not info.name.endswith("_test"):
            module = importlib.import_module(f"{folder.__name__}.{info.name}")
            all_formats += [module.FORMAT] if hasattr(module, "FORMAT") else []
    by_option = {f.option: f for f in sorted(all_formats, key=lambda f: (f.is_general, f.option))}
    if len(by_option) < len(all_formats):
        raise ValueError(f"two formats of one option: {sorted(f.option for f in all_formats)}")
    return by_option


def names() -> str:
    """Returns the formats in words: `npz, T5X, Trainer, Flax msgpack and Orbax`."""
    *most, last = (format.name for format in formats().values())
    return f"{', '.join(most)} and {last}"


def writable() -> list[str]:
    """The options of the formats that can be written."""
    return [option for option, format in formats().items() if format.write is not None]


def written_as(option: str) -> Format:
    """The format to write of this option.

    Raises:
      ValueError: no format has it.
    """
    if option not in writable():
        raise ValueError(f"format: expected one of {', '.join(writable())}, found {option!r}")
    return formats()[option]


def locate(path: Path) -> tuple[Format, Path] | None:
    """The format of a path that exists, and the checkpoint it names; None if it is of none."""
    for format in formats().values():
        root = format.find(path)
        if root is not None:
            return format, root
    return None


def contents(format: Format, root: Path) -> Contents:
    """Reads a checkpoint.

    Raises:
      CheckpointError: it is damaged; any error of a library becomes one of these.
    """
    try:
        return format.read(root)
    except (CheckpointError, OSError):
        raise
    except Exception as error:  # of a library, which a hostile file may make raise anything
        raise CheckpointError(
            root, f"a checkpoint of {format.name}", shown(f"{type(error).__name__}: {error}", 200),
            DAMAGED,
        ) from error  # fmt: skip
