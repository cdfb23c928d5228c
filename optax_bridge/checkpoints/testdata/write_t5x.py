"""Writes a checkpoint in T5X's layout, with tensorstore, as T5X did: an index, arrays next to it.

T5X itself needs a Python and a JAX of its time, so its files cannot be recorded here; what is
written follows its layout: version 3, one folder of zarr for each large array, named by the
dotted path, gzip, chunks that need not divide the shape, and tensorstore's own spec in the index.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tensorstore as ts
from flax import serialization

from optax_bridge.metadata.trees import PyTree

STORES = ("file", "gcs", "gfile", "absolute_gcs", "url")


def write_t5x(
    folder: Path,
    tree: PyTree,
    *,
    version: int | None = 3,
    key: str = "optimizer",
    least_size: int = 8,
    largest_chunk: int = 3,
    with_metadata: bool = True,
    store: str = "file",
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Writes a tree."""
    folder.mkdir(parents=True)

    def move_arrays(node: PyTree, names: tuple[str, ...]) -> Any:
        if isinstance(node, dict):
            return {name: move_arrays(value, (*names, name)) for name, value in node.items()}
        if not isinstance(node, np.ndarray) or node.size < least_size:
            return node
        if version in (1, 2) and node.dtype == ml_dtypes.bfloat16:
            node = node.view(np.uint16)
        name = ".".join(names)
        metadata = {
            "shape": list(node.shape),
            "chunks": [min(largest_chunk, dim) or 1 for dim in node.shape],
            "compressor": {"id": "gzip", "level": 1},
        }
        spec: dict[str, Any] = {"driver": "zarr", "dtype": node.dtype.name, "metadata": metadata}
        kvstore = {"driver": "file", "path": f"{folder / name}/"}
        opened: Any = ts.open(spec | {"kvstore": kvstore}, create=True)
        opened.result().write(node).result()
        if not with_metadata:
            (folder / name / ".zarray").unlink()
        if key == "_optimizer":
            return f"PLACEHOLDER://{name}"
        return spec | {"kvstore": _kvstore(store, folder, name)}

    index = {key: move_arrays(tree, ()), **(extra or {})}
    if version is not None:
        index = {"version": version, **index}
    (folder / "checkpoint").write_bytes(serialization.msgpack_serialize(index))


def _kvstore(store: str, folder: Path, name: str) -> Any:
    remote = f"runs/base/{folder.name}/{name}"
    return {
        "file": {"driver": "file", "path": name},
        "gcs": {"driver": "gcs", "bucket": "t5-data", "path": name},
        "gfile": {"driver": "gfile", "path": f"{name}/"},
        "absolute_gcs": {"driver": "gcs", "bucket": "t5-data", "path": remote},
        "url": f"gs://t5-data/{remote}/",
    }[store]
