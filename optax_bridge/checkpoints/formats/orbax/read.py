"""Reads Orbax checkpoints: the tree from their metadata, each array when it is asked for.

Orbax restores a checkpoint as a whole, and prints the tracebacks of what fails in its threads. Here
arrays are read one by one, so that a large one need not fit into memory, and damage is one error.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorstore as ts

from optax_bridge.checkpoints.errors import CheckpointError, brief, place_of
from optax_bridge.checkpoints.formats import put
from optax_bridge.checkpoints.lazy import LazyArray, size_of_files
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import Leaf, PyTree

METADATA = "_METADATA"
_STRINGS = "_strings.json"
# A block of zstd holds 128 KiB and takes 4 bytes at least, so a larger promise is a lie.
_MAX_RATIO = 2**15
_ARRAYS = ("scalar", "jax.Array", "np.ndarray")
_EMPTY = ("Dict", "List", "Tuple", "NamedTuple")


class ArrayFolder:
    """The arrays of a checkpoint: a folder of zarr for each, or one store for all."""

    def __init__(self, folder: Path):
        self.folder, self.size = folder, size_of_files(folder)
        self.has_one_store = (folder / "manifest.ocdbt").is_file()
        self.context = ts.Context({"cache_pool": {"total_bytes_limit": 2**26}})

    def open(self, name: str, place: str, spec: Mapping[str, PyTree]) -> LazyArray:
        """Opens an array, which is read when it is asked for."""
        parts = Path(name).parts
        if not parts or os.path.isabs(name) or ".." in parts or "\0" in name or len(name) > 4096:
            raise CheckpointError(
                place, "a path within the checkpoint's folder", brief(name),
                "Nothing outside the checkpoint is ever read.",
            )  # fmt: skip
        base = {"driver": "file", "path": f"{self.folder.resolve()}/"}
        store = base | {"path": f"{base['path']}{name}/"}
        if self.has_one_store:
            store = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
        try:
            opened = ts.open(
                {"driver": "zarr", "kvstore": store, **spec}, open=True, read=True,
                context=self.context, assume_metadata="metadata" in spec,
            ).result()  # fmt: skip
        except Exception as error:  # of tensorstore
            raise CheckpointError(place, "an array in zarr format", error) from None
        dtype = np.dtype(opened.dtype.numpy_dtype)
        array = LazyArray(place, tuple(opened.shape), dtype, lambda: opened.read().result())
        chunk = math.prod(length or 1 for length in opened.chunk_layout.read_chunk.shape or ())
        size = max(array.nbytes, chunk * array.dtype.itemsize)
        if size > _MAX_RATIO * self.size:
            expected = f"an array that {self.size} bytes may hold"
            raise CheckpointError(place, expected, f"{size} bytes")
        return array


def read_orbax(folder: Path) -> PyTree:
    """Reads a checkpoint."""
    arrays, metadata = ArrayFolder(folder), _json(folder / METADATA)
    spec = {
        "driver": "zarr3" if metadata.get("use_zarr3") else "zarr",
        # Zeros may have been left out, but only where the metadata do not say otherwise.
        "fill_missing_data_reads": not metadata.get("store_array_data_equal_to_fill_value"),
    }
    entries = metadata.get("tree_metadata")
    if not isinstance(entries, Mapping):
        raise CheckpointError(folder / METADATA, "a tree", brief(entries))
    tree: dict[str, PyTree] = {}
    for entry in entries.values():
        names, kind = _entry(entry, folder)
        place = place_of(folder, names)
        if kind in _ARRAYS:
            leaf: Leaf = arrays.open(".".join(names), place, spec)
            leaf = np.asarray(leaf).item() if kind == "scalar" and leaf.size == 1 else leaf
        elif kind == "string":
            leaf = _json(folder / _STRINGS).get(".".join(names))
        elif kind == "None" or kind in _EMPTY:
            leaf = None if kind == "None" else {}
        else:
            expected = "an array, a number or text"
            raise CheckpointError(place, expected, brief(kind), "Nothing else is read.")
        put(tree, names, leaf, place)
    return tree


def _entry(entry: PyTree, folder: Path) -> tuple[Names, str]:
    """The names on the way to a leaf, and what it is."""
    try:
        names = tuple(str(key["key"]) for key in entry["key_metadata"])
        kind = entry["value_metadata"]["value_type"]
    except (LookupError, TypeError):
        names, kind = (), None
    if not 0 < len(names) <= 100 or not isinstance(kind, str):
        raise CheckpointError(folder / METADATA, "a leaf's path and type", brief(entry))
    return names, kind


def _json(path: Path) -> Mapping[str, PyTree]:
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, "metadata in JSON", error) from None
    if not isinstance(metadata, Mapping):
        raise CheckpointError(path, "metadata in JSON", brief(metadata))
    return metadata
