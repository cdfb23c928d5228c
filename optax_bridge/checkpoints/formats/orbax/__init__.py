# pyright: strict
"""Orbax checkpoints, as `optax-bridge convert` writes a `TrainState` unless told otherwise."""

import gc
import re
from pathlib import Path

import jax

from optax_bridge.checkpoints.devices import on_device
from optax_bridge.checkpoints.formats.format import Contents, Format
from optax_bridge.checkpoints.formats.orbax.read import METADATA, read_orbax
from optax_bridge.checkpoints.lazy import BLOCK
from optax_bridge.checkpoints.trees import is_array
from optax_bridge.metadata.trees import PyTree

_SEVERAL_ITEMS = re.compile(rb'"item_handlers":\s*\{\s*"')


def _find(path: Path) -> Path | None:
    """The folder of a tree, also if its metadata are lost; None for one of several items."""
    of_folder = path / "_CHECKPOINT_METADATA"
    is_whole = of_folder.is_file() and not _SEVERAL_ITEMS.search(of_folder.read_bytes())
    return path if is_whole or (path / METADATA).is_file() else None


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
    "Orbax", "orbax", find=_find, read=lambda path: Contents(read_orbax(path)), write=_write,
    file_pattern=OWN, is_general=True,
)  # fmt: skip
