"""Reads Orbax checkpoints: the tree from their metadata, each array when it is asked for.

Orbax restores a checkpoint as a whole, and prints the tracebacks of what fails in its threads. Here
arrays are read one by one, so that a large one need not fit into memory, and damage is one error.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, brief, leaf_name
from optax_bridge.checkpoints.fit import LAYOUT
from optax_bridge.checkpoints.formats.format import put
from optax_bridge.checkpoints.layout import read_layout
from optax_bridge.checkpoints.lazy import ERRORS, LazyArray, own_files
from optax_bridge.metadata.trees import Leaf, PyTree

METADATA = "_METADATA"
_OCDBT = "manifest.ocdbt"
_STRINGS = "_strings.json"
# A block of zstd holds 128 KiB and takes 4 bytes at least, so a larger promise is a lie.
_MAX_RATIO = 2**15
_ARRAYS = ("jax.Array", "np.ndarray")
_EMPTY = ("Dict", "List", "Tuple", "NamedTuple", "None")


@dataclass(frozen=True)
class OrbaxArray(LazyArray):
    """An array of an Orbax checkpoint.

    Attributes:
      store: opened by tensorstore.
    """

    store: Any

    def read(self) -> np.ndarray:
        """Reads the array."""
        return self.store.read().result()


def read_orbax(folder: Path) -> PyTree:
    """Reads a checkpoint.

    Args:
      folder: the checkpoint; it must not be changed while the result is in use.

    Returns:
      Nested dicts, of numbers as text where there were lists or tuples, with an `OrbaxArray` for
      each array; numbers and text as they are.

    Raises:
      CheckpointError: it cannot be read, promises more than it holds, or leads out of its folder.
    """
    size = own_files(folder)
    metadata = _json(folder / METADATA)
    entries = metadata.get("tree_metadata")
    if not isinstance(entries, Mapping):
        raise CheckpointError(folder / METADATA, "a tree", brief(entries), DAMAGED)
    context = ts.Context({"cache_pool": {"total_bytes_limit": 2**26}})
    tree: dict[str, PyTree] = {}
    for entry in entries.values():
        names, kind = _entry(entry, folder)
        place = f"{folder}, {leaf_name(names)}"
        if kind in _EMPTY:
            leaf: Leaf = None if kind == "None" else {}
        elif kind == "string":
            leaf = _json(folder / _STRINGS).get(".".join(names))
        elif kind == "scalar" or kind in _ARRAYS:
            leaf = _open(folder, names, place, metadata, context)
            _check_size(leaf, size)
            leaf = np.asarray(leaf).item() if kind == "scalar" and leaf.size == 1 else leaf
        else:
            raise CheckpointError(
                place, "an array, a number or text", brief(kind), "Nothing else is read."
            )
        put(tree, names, leaf, place)
    remembered = metadata.get("custom_metadata")
    if isinstance(remembered, Mapping) and LAYOUT in remembered:
        tree[LAYOUT] = read_layout(remembered[LAYOUT], folder).tree()
    return tree


def stored_array(folder: Path, names: tuple[str, ...], place: str) -> OrbaxArray:
    """An array of a checkpoint that has no metadata of Orbax.

    Raises:
      CheckpointError: see `read_orbax`.
    """
    leaf = _open(folder, names, place, {}, ts.Context())
    _check_size(leaf, own_files(folder))
    return leaf


def _check_size(leaf: OrbaxArray, size: int) -> None:
    if leaf.nbytes > _MAX_RATIO * size:
        raise CheckpointError(
            leaf.place, f"an array that {size} bytes may hold", f"{leaf.nbytes} bytes", DAMAGED
        )


def _open(
    folder: Path, names: tuple[str, ...], place: str, metadata: Mapping[str, Any], context: Any
) -> OrbaxArray:
    name = ".".join(names)
    store: dict[str, Any] = {"driver": "file", "path": f"{folder.absolute()}/"}
    if (folder / _OCDBT).is_file():
        store = {"driver": "ocdbt", "base": store, "path": f"{name}/"}
    elif folder.resolve() in (folder / name).resolve().parents and "/" not in name:
        store["path"] += f"{name}/"
    else:
        raise CheckpointError(
            place, "a name within the checkpoint's folder", brief(name),
            "Nothing outside the checkpoint is ever read.",
        )  # fmt: skip
    spec = {
        "driver": "zarr3" if metadata.get("use_zarr3") else "zarr",
        "kvstore": store,
        # Zeros may have been left out, but only where the metadata do not say otherwise.
        "fill_missing_data_reads": not metadata.get("store_array_data_equal_to_fill_value"),
    }
    try:
        opened = ts.open(spec, open=True, read=True, context=context).result()
    except ERRORS as error:
        raise CheckpointError(
            place, "an array in zarr format", brief(str(error), 200), DAMAGED
        ) from None
    return OrbaxArray(place, tuple(opened.shape), np.dtype(opened.dtype.numpy_dtype), opened)


def _entry(entry: Any, folder: Path) -> tuple[tuple[str, ...], str]:
    """The names on the way to a leaf, and what it is."""
    try:
        names = tuple(str(key["key"]) for key in entry["key_metadata"])
        kind = entry["value_metadata"]["value_type"]
    except (LookupError, TypeError):
        names, kind = (), None
    if not 0 < len(names) <= 100 or not isinstance(kind, str):
        raise CheckpointError(folder / METADATA, "a leaf's path and type", brief(entry), DAMAGED)
    return names, kind


def _json(path: Path) -> Mapping[str, Any]:
    try:
        metadata = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(path, "metadata in JSON", brief(str(error)), DAMAGED) from None
    if not isinstance(metadata, Mapping):
        raise CheckpointError(path, "metadata in JSON", brief(metadata), DAMAGED)
    return metadata
