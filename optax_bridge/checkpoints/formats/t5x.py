"""T5X checkpoints: a msgpack index, and large arrays in the same folder as zarr.

T5X had two writers. Its own put specs of tensorstore into the index, and a version next to the
optimizer; later it was Orbax's, until Orbax gave up that index: no version, `_optimizer`, as the
field of T5X's state was called, and `PLACEHOLDER://name` for each array. Either is read.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, brief, leaf_name
from optax_bridge.checkpoints.formats.flax_msgpack import has_outline, read_msgpack
from optax_bridge.checkpoints.formats.format import Contents, Format
from optax_bridge.checkpoints.formats.orbax.read import stored_array
from optax_bridge.checkpoints.lazy import LazyArray, is_shape
from optax_bridge.metadata.trees import PyTree

INDEX = "checkpoint"
# How many times larger a chunk may be than its file: none packs tighter than this.
_RATIOS = {None: 1, "gzip": 1032, "zlib": 1032, "zstd": 2**15}
_TENSORFLOW = b"model_checkpoint_path"  # how its file `checkpoint` starts, which clu leaves
_LATEST = 3  # version of the layout
_ONE_STORE = "manifest.ocdbt"  # Orbax's, where arrays are no folders of their own
_PLACEHOLDER = "PLACEHOLDER://"


@dataclass(frozen=True)
class ZarrArray(LazyArray):
    """An array in a folder next to the index.

    Attributes:
      folder: its own folder.
      stored: dtype in the file; version 2 stored the bits of bfloat16 as uint16.
      metadata: chunks, compressor and the like, as zarr has them.
    """

    folder: Path
    stored: np.dtype
    metadata: Mapping[str, Any]

    def read(self) -> np.ndarray:
        """Reads the array."""
        self._check_chunks()
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "file", "path": f"{self.folder}{os.sep}"},
            "metadata": dict(self.metadata),
        }
        opened: Any = ts.open(spec, open=True, read=True, assume_metadata=True)
        array: np.ndarray = opened.result().read().result()
        return array if self.dtype == self.stored else array.view(self.dtype)

    def _check_chunks(self) -> None:
        """Every chunk must be there, and be able to hold what it is to hold."""
        chunks = self.metadata["chunks"]
        separator = self.metadata.get("dimension_separator", ".")
        counts = [-(-dim // chunk) for dim, chunk in zip(self.shape, chunks, strict=True)]
        size = math.prod(chunks) * self.stored.itemsize
        compressor = self.metadata["compressor"]
        ratio = _RATIOS[compressor["id"] if compressor else None]
        expected = math.prod(counts)
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        if expected > len(files):
            raise CheckpointError(
                self.place, f"{expected} files of chunks", f"{len(files)} in {self.folder}", DAMAGED
            )
        for index in np.ndindex(*counts):
            path = self.folder / (separator.join(map(str, index)) or "0")
            if not path.is_file() or path.is_symlink():
                raise CheckpointError(self.place, f"a chunk {path}", "no such file", DAMAGED)
            if size > 64 + ratio * path.stat().st_size:
                raise CheckpointError(
                    self.place,
                    f"a chunk of {size} bytes",
                    f"{path.stat().st_size} in {path}",
                    DAMAGED,
                )


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
    if index.name != INDEX or not index.is_file():
        return None
    if not has_outline(index) and (index is path or _is_of_tensorflow(index)):
        return None
    return index.parent if is_index(read_msgpack(index)) else None


def _is_of_tensorflow(index: Path) -> bool:
    with index.open("rb") as file:
        return file.read(len(_TENSORFLOW)) == _TENSORFLOW


def _read(folder: Path) -> Contents:
    """Reads a checkpoint, `checkpoint_N`, with the index `checkpoint` in it.

    Returns:
      The tree `{'optimizer': {'target', 'state'}, ...}`, in which arrays next to the index are
      read when asked for, and the version of the layout, None for Orbax's.

    Raises:
      CheckpointError: it is damaged, of an unknown version, or points outside the folder.
    """
    tree = read_msgpack(folder / INDEX)
    if not is_index(tree):
        raise CheckpointError(
            folder / INDEX, "the index of a T5X checkpoint", brief(sorted(tree)), DAMAGED
        )
    if not _has_version(tree):
        contents = _rename_optimizer(_resolve(tree, (), folder, _LATEST))
        # What T5X had no use for, in the model at hand, is there without anything in it.
        used = {name: value for name, value in contents.items() if value not in (None, {})}
        return Contents(used, variant="with Orbax's index")
    version = tree.pop("version")
    if not 1 <= version <= _LATEST:
        raise CheckpointError(
            folder / INDEX, f"T5X's version 1 to {_LATEST}", f"{version}",
            "This layout is not known here.",
        )  # fmt: skip
    return Contents(_rename_optimizer(_resolve(tree, (), folder, version)), version)


def _rename_optimizer(tree: dict[str, PyTree]) -> dict[str, PyTree]:
    return {"optimizer" if name == "_optimizer" else name: v for name, v in tree.items()}


def _resolve(node: PyTree, path: tuple[str, ...], folder: Path, version: int) -> PyTree:
    if isinstance(node, Mapping) and "driver" in node and "kvstore" in node:
        return _leaf(node, path, folder, version)
    if isinstance(node, Mapping):
        return {k: _resolve(v, (*path, k), folder, version) for k, v in node.items()}
    if isinstance(node, str) and node.startswith(_PLACEHOLDER):
        name = node.removeprefix(_PLACEHOLDER)
        if (folder / _ONE_STORE).is_file():
            return stored_array(folder, (name,), f"{folder / INDEX}, {leaf_name(path)}")
        spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": name}}
        return _leaf(spec, path, folder, version)
    if isinstance(node, np.ndarray) and path[-1:] == ("step",) and node.size == 1:
        return node.reshape(())
    return node


def _leaf(spec: Any, path: tuple[str, ...], folder: Path, version: int) -> ZarrArray:
    place = f"{folder / INDEX}, {leaf_name(path)}"
    name = _name(spec["kvstore"], folder)
    if spec["driver"] != "zarr" or not name:
        raise CheckpointError(
            place, "a zarr array with a path", brief(spec), "No other storage is read."
        )
    # Unlike Path.resolve, this takes links in a circle.
    outer, inside = (Path(os.path.realpath(path)) for path in (folder, folder / name))
    if os.path.isabs(name) or ".." in Path(name).parts or outer not in inside.parents:
        raise CheckpointError(
            place, "a path within the checkpoint's folder", brief(name),
            "Nothing outside the checkpoint is ever read.",
        )  # fmt: skip
    metadata = spec.get("metadata")
    if not isinstance(metadata, Mapping) or "shape" not in metadata or "chunks" not in metadata:
        metadata = _zarray(inside, place)
    elif "compressor" not in metadata or "dtype" not in metadata:
        in_file = _zarray(inside, place) if (inside / ".zarray").is_file() else {}
        metadata = {"compressor": {"id": "gzip", "level": 1}, **in_file, **metadata}
    shape, chunks = (_dims(metadata.get(key), place) for key in ("shape", "chunks"))
    if len(shape) != len(chunks) or not all(chunks):
        raise CheckpointError(place, "a chunk length for each axis", brief(chunks), DAMAGED)
    stored = _dtype(metadata.get("dtype") or spec.get("dtype"), place)
    dtype = np.dtype(ml_dtypes.bfloat16) if version < 3 and stored == np.uint16 else stored
    clean = {
        "zarr_format": 2, "shape": shape, "chunks": chunks, "order": metadata.get("order", "C"),
        "dtype": "bfloat16" if stored.name == "bfloat16" else stored.str,
        "compressor": metadata.get("compressor"), "filters": None,
        "fill_value": None, "dimension_separator": metadata.get("dimension_separator", "."),
    }  # fmt: skip
    compressor = clean["compressor"]
    kind = compressor.get("id") if isinstance(compressor, Mapping) else compressor
    if not isinstance(kind, str | None) or kind not in _RATIOS:
        raise CheckpointError(
            place, f"compression by one of {brief(tuple(_RATIOS))}", brief(compressor),
            "T5X wrote gzip and zstd; others may promise any number of bytes.",
        )  # fmt: skip
    if clean["order"] not in ("C", "F") or clean["dimension_separator"] not in (".", "/"):
        raise CheckpointError(place, "zarr metadata", brief(metadata), DAMAGED)
    return ZarrArray(place, tuple(shape), dtype, inside, stored, clean)


def _name(kvstore: Any, folder: Path) -> str:
    """The path of an array's folder within the checkpoint's; "" without one.

    Checkpoints that were copied from a bucket may still have whole paths or addresses in their
    specs: then the last name counts, if a folder of that name lies here.
    """
    path = kvstore.get("path") if isinstance(kvstore, Mapping) else kvstore
    if not isinstance(path, str) or "\0" in path or len(path) > 4096:
        return ""
    parts = path.rstrip("/").split("/")
    if len(parts) > 1 and not {"", ".", ".."} & {parts[-1]} and (folder / parts[-1]).is_dir():
        return parts[-1] if ".." not in parts else path
    return path


def _zarray(folder: Path, place: str) -> Mapping[str, Any]:
    path = folder / ".zarray"
    fits = path.is_file() and not path.is_symlink() and path.stat().st_size < 100_000
    try:
        metadata = json.loads(path.read_text(encoding="utf-8")) if fits else None
    except (OSError, ValueError, RecursionError):
        metadata = None
    if not isinstance(metadata, Mapping):
        raise CheckpointError(
            place, f"metadata in the index or in {folder}/.zarray", "none", DAMAGED
        )
    return metadata


def _dims(value: Any, place: str) -> list[int]:
    if isinstance(value, Mapping) and set(value) == {str(i) for i in range(len(value))}:
        value = [value[str(index)] for index in range(len(value))]
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iu":
        value = value.tolist()
    if not isinstance(value, list) or not is_shape(value):
        raise CheckpointError(place, "the lengths of the axes", brief(value), DAMAGED)
    return value


def _dtype(name: Any, place: str) -> np.dtype:
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    try:
        dtype = np.dtype(name) if isinstance(name, str) and len(name) < 16 else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.kind not in "biufc":
        raise CheckpointError(place, "a numeric dtype", brief(name), DAMAGED)
    return dtype


_OWN = r"checkpoint|manifest\.ocdbt|d/[0-9a-f]{32}|[^/]+/(\.zarray|\d+([./]\d+)*)"

FORMAT = Format("T5X", "t5x", find=_find, read=_read, file_pattern=_OWN, level="optimizer")
