"""T5X checkpoints: a msgpack index, and large arrays in the same folder as zarr.

T5X had two writers. Its own put specs of tensorstore into the index, and a version next to the
optimizer; later it was Orbax's, until Orbax gave up that index: no version, `_optimizer`, as the
field of T5X's state was called, and `PLACEHOLDER://name` for each array. Either is read.
"""

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, brief, place_of
from optax_bridge.checkpoints.formats import Contents, Format, head_of
from optax_bridge.checkpoints.formats.flax_msgpack import has_outline, read_msgpack
from optax_bridge.checkpoints.formats.orbax.read import ArrayFolder
from optax_bridge.checkpoints.lazy import LazyArray
from optax_bridge.metadata.paths import Names, by_index
from optax_bridge.metadata.trees import PyTree

INDEX = "checkpoint"
_TENSORFLOW = b"model_checkpoint_path"  # how its file `checkpoint` starts, which clu leaves
_LATEST = 3  # version of the layout
_PLACEHOLDER = "PLACEHOLDER://"


def is_index(tree: PyTree) -> bool:
    """True if a msgpack file is the index of a T5X checkpoint."""
    if not isinstance(tree, Mapping):
        return False
    return _has_version(tree) or "_optimizer" in tree or _has_placeholder(tree)


def _has_version(tree: Mapping[str, PyTree]) -> bool:
    return type(tree.get("version")) is int and ("optimizer" in tree or "_optimizer" in tree)


def _has_placeholder(node: PyTree) -> bool:
    if isinstance(node, Mapping):
        return any(map(_has_placeholder, node.values()))
    return isinstance(node, str) and node.startswith(_PLACEHOLDER)


def _find(path: Path) -> Path | None:
    """The folder; named by itself or by the index in it."""
    index = path / INDEX if path.is_dir() else path
    if index.name != INDEX or not index.is_file() or (index is path and not has_outline(index)):
        return None
    if head_of(index, len(_TENSORFLOW)) == _TENSORFLOW:
        return None
    return index.parent if is_index(read_msgpack(index)) else None


def _read(folder: Path) -> Contents:
    """Reads a checkpoint, `checkpoint_N`, with the index `checkpoint` in it."""
    tree = read_msgpack(folder / INDEX)
    version: int | None = tree.pop("version") if _has_version(tree) else None
    if version is not None and not 1 <= version <= _LATEST:
        raise CheckpointError(
            folder / INDEX, f"T5X's version 1 to {_LATEST}", f"{version}",
            "This layout is not known here.",
        )  # fmt: skip
    arrays = ArrayFolder(folder)
    contents = {
        "optimizer" if name == "_optimizer" else name: _resolve(value, (name,), arrays, version)
        for name, value in tree.items()
    }
    if version is not None:
        return Contents(contents, f"version {version}")
    # What T5X had no use for, in the model at hand, is there without anything in it.
    used = {name: value for name, value in contents.items() if value not in (None, {})}
    return Contents(used, variant="with Orbax's index")


def _resolve(node: PyTree, path: Names, arrays: ArrayFolder, version: int | None) -> PyTree:
    if isinstance(node, str) and node.startswith(_PLACEHOLDER):
        node = {"driver": "zarr", "kvstore": node.removeprefix(_PLACEHOLDER)}
    if isinstance(node, Mapping) and "driver" in node and "kvstore" in node:
        return _array(node, place_of(arrays.folder / INDEX, path), arrays, version)
    if isinstance(node, Mapping):
        return {k: _resolve(v, (*path, k), arrays, version) for k, v in node.items()}
    if isinstance(node, np.ndarray) and path[-1:] == ("step",) and node.size == 1:
        return node.reshape(())
    return node


def _array(
    spec: Mapping[str, PyTree], place: str, arrays: ArrayFolder, version: int | None
) -> LazyArray:
    """An array of the checkpoint, by the spec of tensorstore in the index."""
    name = _name(spec["kvstore"], arrays.folder)
    if spec["driver"] != "zarr" or not name:
        remedy = "No other storage is read."
        raise CheckpointError(place, "a zarr array with a path", brief(spec), remedy)
    options: dict[str, PyTree] = {"fill_missing_data_reads": False}
    if not arrays.has_one_store and not (arrays.folder / name / ".zarray").is_file():
        options["metadata"] = _metadata_in_index(spec, place, arrays.folder / name)
    array = arrays.open(name, place, options)
    if version in (1, 2) and array.dtype == np.uint16:  # the bits of bfloat16
        dtype = np.dtype(ml_dtypes.bfloat16)
        return LazyArray(place, array.shape, dtype, lambda: array.read().view(dtype))
    return array


def _metadata_in_index(spec: Mapping[str, PyTree], place: str, folder: Path) -> PyTree:
    """Returns the content of `.zarray`, which a copy of files without a dot has lost."""
    metadata = spec.get("metadata")
    if not isinstance(metadata, Mapping) or not {"shape", "chunks"} <= set(metadata):
        raise CheckpointError(place, f"metadata in the index or in {folder}/.zarray", "none")
    dtype = metadata.get("dtype") or spec.get("dtype")
    try:
        dtype = dtype if dtype == "bfloat16" else np.dtype(dtype).str
    except TypeError:
        raise CheckpointError(place, "a numeric dtype", brief(dtype)) from None
    return {
        "zarr_format": 2, "dtype": dtype, "compressor": {"id": "gzip", "level": 1}, "order": "C",
        "fill_value": None, "filters": None, **metadata,
        "shape": _lengths(metadata["shape"]), "chunks": _lengths(metadata["chunks"]),
    }  # fmt: skip


def _lengths(value: PyTree) -> PyTree:
    """A list as msgpack may have it: as an array, or by index."""
    return value.tolist() if isinstance(value, np.ndarray) else by_index(value)


def _name(kvstore: PyTree, folder: Path) -> str:
    """The path of an array's folder within the checkpoint's; "" without one."""
    path = kvstore.get("path") if isinstance(kvstore, Mapping) else kvstore
    if not isinstance(path, str):
        return ""
    path = path.rstrip("/")
    *above, last = path.split("/")
    is_below = above and ".." not in above and last not in ("", ".", "..")
    return last if is_below and (folder / last).is_dir() else path


FORMAT = Format("T5X", "t5x", find=_find, read=_read)
