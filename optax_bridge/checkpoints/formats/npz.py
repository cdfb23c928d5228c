"""`.npz` files with '/'-joined names: parameters, or an optimizer under `opt/`."""

import lzma
import math
import tokenize
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, brief
from optax_bridge.checkpoints.formats.format import Contents, Format, put
from optax_bridge.checkpoints.lazy import LazyArray, is_shape
from optax_bridge.metadata.paths import leaf_name
from optax_bridge.metadata.trees import Params, PyTree

_MAX_MEMBERS = 1_000_000
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes
# What NumPy's parser raises; the last two for a header of brackets only.
_BAD_HEADER = (
    *(ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError),
    *(RecursionError, MemoryError),
)
_BAD_ZIP = (
    *(OSError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError),
    *(NotImplementedError, UnicodeDecodeError, OverflowError),
)


@dataclass(frozen=True)
class NpzArray(LazyArray):
    """An array of an npz file."""

    archive: zipfile.ZipFile
    member: zipfile.ZipInfo

    def read(self) -> np.ndarray:
        """Reads the array."""
        with self.archive.open(self.member) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            file.read(1)  # the end, where the checksum is compared
        if array.dtype.kind == "V":
            array = array.view(self.dtype)
        return array.astype(self.dtype, copy=False)


def _read(path: Path) -> Contents:
    """Reads the names of an npz file into nested dicts."""
    tree: dict[str, PyTree] = {}
    try:
        archive = zipfile.ZipFile(path)  # open as long as its arrays are in use
        infos = archive.infolist()
        if not 0 < len(infos) <= _MAX_MEMBERS:
            raise CheckpointError(path, "arrays by name", f"{len(infos)} of them", DAMAGED)
        for info in infos:
            names = tuple(info.filename.removesuffix(".npy").split("/"))
            if len(names) > 100:
                raise CheckpointError(
                    path, "names of at most 100 parts", brief("/".join(names)), DAMAGED
                )
            put(tree, names, _array(archive, info, path, names), f"{path}, {leaf_name(names)}")
    except _BAD_ZIP as error:
        raise CheckpointError(path, "an npz file", brief(str(error)), DAMAGED) from None
    return Contents(_optimizer_under_opt(tree))


def _array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, names: tuple[str, ...]
) -> NpzArray:
    where = f"{path}, {leaf_name(names)}"
    if info.compress_type not in _PACKED:
        raise CheckpointError(
            where, "an array stored or deflated, as NumPy writes it",
            f"compression of type {info.compress_type}", "Save it by numpy.savez.",
        )  # fmt: skip
    with archive.open(info) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read(file)
        except _BAD_HEADER as error:
            raise CheckpointError(
                where, "an array of NumPy's format", brief(str(error)), DAMAGED
            ) from None
        start = file.tell()
    if dtype.hasobject or dtype.names is not None or dtype.kind not in "biufcV":
        raise CheckpointError(
            where, "an array of numbers", str(dtype),
            "Pickled objects are never loaded; save the numbers alone.",
        )  # fmt: skip
    count = math.prod(shape) if is_shape(shape) else -1
    if count < 0 or count * dtype.itemsize != info.file_size - start:
        raise CheckpointError(
            where, f"{info.file_size - start} bytes of data", f"{dtype}{list(shape)}", DAMAGED
        )
    if dtype.kind == "V" and dtype.itemsize != 2:
        raise CheckpointError(where, "an array of numbers", str(dtype), "Save it as numbers.")
    native = np.dtype(ml_dtypes.bfloat16) if dtype.kind == "V" else dtype.newbyteorder("=")
    return NpzArray(where, tuple(shape), native, archive, info)


def _optimizer_under_opt(tree: dict[str, PyTree]) -> dict[str, PyTree]:
    """Puts back the empty dicts of states without arrays, for which npz has no name."""
    for holder in (tree, tree.get("opt"), tree.get("optimizer")):
        if not isinstance(holder, dict) or "target" not in holder:
            continue
        state = holder.get("state")
        if isinstance(state, dict) and "step" in state:
            state["param_states"] = _fill_gaps(holder["target"], state.get("param_states", {}))
    return tree


def _fill_gaps(target: Params, state: PyTree) -> PyTree:
    if not isinstance(target, dict) or not isinstance(state, dict):
        return state
    return state | {name: _fill_gaps(value, state.get(name, {})) for name, value in target.items()}


def _find(path: Path) -> Path | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return path if file.read(4) in (b"PK\x03\x04", b"PK\x05\x06") else None


# PyTorch's files are zips, too.
FORMAT = Format("npz", "npz", find=_find, read=_read, is_general=True)
