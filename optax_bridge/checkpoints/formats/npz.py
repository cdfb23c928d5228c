"""`.npz` files with '/'-joined names: parameters, or an optimizer under `opt/`."""

import math
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.lib import format as npy

from optax_bridge.checkpoints.errors import CheckpointError, brief, place_of
from optax_bridge.checkpoints.formats import Contents, Format, head_of, put
from optax_bridge.checkpoints.lazy import LazyArray, is_shape
from optax_bridge.metadata.trees import Params, PyTree

_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def _read(path: Path) -> Contents:
    """Reads the names of an npz file into nested dicts."""
    tree: dict[str, PyTree] = {}
    archive = zipfile.ZipFile(path)  # open as long as its arrays are in use
    infos = archive.infolist()
    if not infos:
        raise CheckpointError(path, "arrays by name", "none")
    for info in infos:
        names = tuple(info.filename.removesuffix(".npy").split("/"))
        if len(names) > 100:
            raise CheckpointError(path, "names of at most 100 parts", brief(info.filename))
        place = place_of(path, names)
        put(tree, names, _array(archive, info, place), place)
    return Contents(_optimizer_under_opt(tree))


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: str) -> LazyArray:
    if info.compress_type not in _PACKED:
        raise CheckpointError(
            place, "an array stored or deflated, as NumPy writes it",
            f"compression of type {info.compress_type}", "Save it by numpy.savez.",
        )  # fmt: skip
    with archive.open(info) as file:
        try:
            shape, _, dtype = _HEADERS[npy.read_magic(file)](file)
        except Exception as error:  # of NumPy's parser, for brackets alone even a MemoryError
            raise CheckpointError(place, "an array of NumPy's format", error) from None
        size = info.file_size - file.tell()
    if dtype.kind not in "biufc" and dtype != np.dtype("V2"):  # which bfloat16 becomes
        remedy = "Pickled objects are never loaded; save the numbers alone."
        raise CheckpointError(place, "an array of numbers", str(dtype), remedy)
    if not is_shape(shape) or math.prod(shape) * dtype.itemsize != size:
        raise CheckpointError(place, f"{size} bytes of data", f"{dtype}{list(shape)}")
    native = np.dtype(ml_dtypes.bfloat16) if dtype.kind == "V" else dtype.newbyteorder("=")

    def read() -> np.ndarray:
        with archive.open(info) as file:
            array = npy.read_array(file, allow_pickle=False)
        array = array.view(native) if array.dtype.kind == "V" else array
        return array.astype(native, copy=False)

    return LazyArray(place, tuple(shape), native, read)


def _optimizer_under_opt(tree: dict[str, PyTree]) -> dict[str, PyTree]:
    """Puts back the empty dicts of states without arrays, for which npz has no name."""
    for holder in (tree, tree.get("opt"), tree.get("optimizer")):
        match holder:
            case {"target": target, "state": {"step": _} as state}:
                state["param_states"] = _fill_gaps(target, state.get("param_states", {}))
    return tree


def _fill_gaps(target: Params, state: PyTree) -> PyTree:
    if not isinstance(target, dict) or not isinstance(state, dict):
        return state
    return state | {name: _fill_gaps(value, state.get(name, {})) for name, value in target.items()}


def _find(path: Path) -> Path | None:
    return path if head_of(path, 4) in (b"PK\x03\x04", b"PK\x05\x06") else None


# PyTorch's files are zips, too.
FORMAT = Format("npz", "npz", find=_find, read=_read, is_general=True)
