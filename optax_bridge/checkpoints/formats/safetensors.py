"""`.safetensors` files: arrays by name, parameters as a rule, read without PyTorch."""

from pathlib import Path

import ml_dtypes
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, place_of
from optax_bridge.checkpoints.formats import Contents, Format, head_of

_DTYPES = {
    **{f"F{8 * size}": np.dtype(f"f{size}") for size in (2, 4, 8)},
    **{f"I{8 * size}": np.dtype(f"i{size}") for size in (1, 2, 4, 8)},
    **{f"U{8 * size}": np.dtype(f"u{size}") for size in (1, 2, 4, 8)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BOOL": np.dtype(bool),
}


def _find(path: Path) -> Path | None:
    head = head_of(path, 9)
    is_header = head[8:] == b"{"  # its length, and then JSON
    return path if is_header and int.from_bytes(head[:8], "little") < 2**32 else None


def _read(path: Path) -> Contents:
    try:
        from safetensors import deserialize
    except ImportError:
        raise CheckpointError(
            path, "the package safetensors, which reads such files", "none installed",
            "pip install safetensors, or 'optax-bridge[torch]'.",
        ) from None  # fmt: skip
    tree = {}
    for name, tensor in sorted(deserialize(path.read_bytes()), key=lambda pair: pair[0]):
        dtype = _DTYPES.get(tensor["dtype"])
        if dtype is None:
            raise CheckpointError(
                place_of(path, (name,)), "numbers of 8 bits or more", tensor["dtype"],
                "Save it in another type.",
            )  # fmt: skip
        tree[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return Contents(tree)


FORMAT = Format("safetensors", "safetensors", find=_find, read=_read)
