"""`.npz` files with '/'-joined names: parameters, or an optimizer under `opt/`."""

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, leaf_name, shown
from optax_bridge.checkpoints.msgpack_format import is_shape

_MAX_MEMBERS = 1_000_000
# DEFLATE cannot pack tighter than this, so a larger promise is a lie.
_MAX_RATIO = 1032
# What NumPy's parser raises; the last two for a header of brackets only.
_BAD_HEADER = (
    *(ValueError, KeyError, TypeError, SyntaxError, tokenize.TokenError),
    *(RecursionError, MemoryError),
)


def read_npz(path: Path) -> Any:
    """Reads the arrays of an npz file into nested dicts.

    Args:
      path: the file. Names are cut at '/'. An array of 2-byte void is bfloat16, which NumPy's
        format has no name for.

    Returns:
      Nested dicts with arrays.

    Raises:
      CheckpointError: it is damaged, promises more than it holds, or has objects in it.
    """
    tree: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            if not 0 < len(infos) <= _MAX_MEMBERS:
                raise CheckpointError(path, "arrays by name", f"{len(infos)} of them", DAMAGED)
            if sum(info.compress_size for info in infos) > path.stat().st_size:
                raise CheckpointError(
                    path, "members side by side", "more of them than the file has bytes", DAMAGED
                )
            for info in infos:
                names = tuple(info.filename.removesuffix(".npy").split("/"))
                _put(tree, names, _array(archive, info, path, names), path)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise CheckpointError(path, "an npz file", shown(str(error)), DAMAGED) from None
    except (NotImplementedError, UnicodeDecodeError, OverflowError) as error:
        raise CheckpointError(path, "an npz file", shown(str(error)), DAMAGED) from None
    return _optimizer_under_opt(tree)


def _array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, names: tuple[str, ...]
) -> np.ndarray:
    where = f"{path}, {leaf_name(names)}"
    if info.file_size > 64 + _MAX_RATIO * max(info.compress_size, 1):
        raise CheckpointError(
            where, f"at most {_MAX_RATIO} times {info.compress_size} bytes", f"{info.file_size}",
            DAMAGED,
        )  # fmt: skip
    with archive.open(info) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, fortran, dtype = read(file)
        except _BAD_HEADER as error:
            raise CheckpointError(
                where, "an array of NumPy's format", shown(str(error)), DAMAGED
            ) from None
        if dtype.hasobject or dtype.names is not None or dtype.kind not in "biufcV":
            raise CheckpointError(
                where, "an array of numbers", str(dtype),
                "Pickled objects are never loaded; save the numbers alone.",
            )  # fmt: skip
        count = math.prod(shape) if is_shape(shape) else -1
        if count < 0 or count * dtype.itemsize != info.file_size - file.tell():
            raise CheckpointError(
                where, f"{info.file_size - file.tell()} bytes of data", f"{dtype}{list(shape)}",
                DAMAGED,
            )  # fmt: skip
        data = file.read()
    if len(data) != count * dtype.itemsize:
        raise CheckpointError(where, f"{count * dtype.itemsize} bytes", f"{len(data)}", DAMAGED)
    if dtype.kind == "V":
        if dtype.itemsize != 2:
            raise CheckpointError(where, "an array of numbers", str(dtype), "Save it as numbers.")
        dtype = np.dtype(ml_dtypes.bfloat16)
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    return np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False)).reshape(shape)


def _put(tree: dict[str, Any], names: tuple[str, ...], array: np.ndarray, path: Path) -> None:
    if len(names) > 100:
        raise CheckpointError(path, "names of at most 100 parts", shown("/".join(names)), DAMAGED)
    node = tree
    for name in names[:-1]:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            break
    if not isinstance(node, dict) or names[-1] in node:
        raise CheckpointError(
            f"{path}, {leaf_name(names)}", "each name once", "an array and a folder of that name",
            DAMAGED,
        )  # fmt: skip
    node[names[-1]] = array


def _optimizer_under_opt(tree: dict[str, Any]) -> dict[str, Any]:
    """Puts back the empty dicts of states without arrays, for which npz has no name."""
    for holder in (tree, tree.get("opt"), tree.get("optimizer")):
        if not isinstance(holder, dict) or "target" not in holder:
            continue
        state = holder.get("state")
        if isinstance(state, dict) and "step" in state:
            state["param_states"] = _completed(holder["target"], state.get("param_states", {}))
    return tree


def _completed(target: Any, state: Any) -> Any:
    if not isinstance(target, dict) or not isinstance(state, dict):
        return state
    return state | {name: _completed(value, state.get(name, {})) for name, value in target.items()}
