"""`.safetensors` files: arrays by name, parameters as a rule, read without PyTorch."""

from pathlib import Path

import ml_dtypes
import numpy as np

from optax_bridge.checkpoints.errors import DAMAGED, CheckpointError, brief
from optax_bridge.checkpoints.formats.format import Contents, Format
from optax_bridge.metadata.paths import leaf_name

_DTYPES = {
    **{f"F{8 * np.dtype(d).itemsize}": d for d in (np.float16, np.float32, np.float64)},
    **{f"I{8 * np.dtype(d).itemsize}": d for d in (np.int8, np.int16, np.int32, np.int64)},
    **{f"U{8 * np.dtype(d).itemsize}": d for d in (np.uint8, np.uint16, np.uint32, np.uint64)},
    "BF16": ml_dtypes.bfloat16,
    "BOOL": np.bool_,
}


def _find(path: Path) -> Path | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        head = file.read(9)
    is_header = len(head) == 9 and head[8:] == b"{"  # its length, and then JSON
    return path if is_header and int.from_bytes(head[:8], "little") < 2**32 else None


def _read(path: Path) -> Contents:
    try:
        from safetensors import SafetensorError, deserialize
    except ImportError:
        raise CheckpointError(
            path, "the package safetensors, which reads such files", "none installed",
            "pip install safetensors, or 'optax-bridge[torch]'.",
        ) from None  # fmt: skip
    try:
        tensors = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise CheckpointError(path, "a safetensors file", brief(str(error)), DAMAGED) from None
    tree = {}
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        if tensor["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{path}, {leaf_name((name,))}", "numbers of 8 bits or more", tensor["dtype"],
                "Save it in another type.",
            )  # fmt: skip
        array = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]])
        tree[name] = array.reshape(tensor["shape"])
    return Contents(tree)


FORMAT = Format("safetensors", "safetensors", find=_find, read=_read)
