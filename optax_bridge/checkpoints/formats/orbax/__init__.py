# pyright: strict
"""Orbax checkpoints, as `optax-bridge convert` writes a `TrainState` unless told otherwise."""

import gc
import json
from pathlib import Path

import jax

from optax_bridge.checkpoints.devices import on_device
from optax_bridge.checkpoints.formats.format import Contents, Format
from optax_bridge.checkpoints.formats.orbax.read import METADATA, read_orbax
from optax_bridge.checkpoints.lazy import BLOCK
from optax_bridge.checkpoints.trees import is_array
from optax_bridge.metadata.trees import PyTree


def _find(path: Path) -> Path | None:
    if (path / METADATA).is_file():
        return path
    return path if _handlers_of(path) is not None else None


def _handlers_of(path: Path) -> str | None:
    """Returns the handler of a folder that was saved whole; None for one of several items."""
    file = path / "_CHECKPOINT_METADATA"
    if not file.is_file():
        return None
    try:
        handlers = json.loads(file.read_text(encoding="utf-8"))["item_handlers"]
    except (OSError, ValueError, LookupError, TypeError):
        return ""  # damaged, as the reader will say of what else there is
    return None if handlers and isinstance(handlers, dict) else str(handlers)


def _read(path: Path) -> Contents:
    return Contents(read_orbax(path))


def _write(path: Path, tree: PyTree, name: Path) -> None:
    from optax_bridge.checkpoints.formats.orbax.write import write_orbax  # slow to import

    # Arrays that JAX holds are restored as such, NumPy's as NumPy's.
    placed = jax.tree.map(on_device, tree)
    write_orbax(path, placed, name)
    del placed
    if sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if is_array(leaf)) > BLOCK:
        gc.collect()  # Orbax leaves the arrays in circles of references


# Metadata; one store for all arrays, or a folder of zarr 2 or 3 for each.
OWN = (
    r"_METADATA|_CHECKPOINT_METADATA|_sharding|_strings\.json|commit_success\.txt|checkpoint"
    r"|array_metadatas/process_\d+"
    r"|(ocdbt\.process_\d+/)?(manifest\.ocdbt|d/[0-9a-f]{32})"
    r"|[^/]+/(\.zarray|zarr\.json|c|(c/)?\d+([./]\d+)*)"
)

# Steps of a trainer have its outline as well.
FORMAT = Format(
    "Orbax", "orbax", find=_find, read=_read, write=_write, file_pattern=OWN, is_general=True
)
