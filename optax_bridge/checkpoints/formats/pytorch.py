"""Files of `torch.save`, read by PyTorch without running their code.

A folder of Hugging Face's Trainer, `optimizer.pt` next to the model's file, is read as one.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, brief, place_of
from optax_bridge.checkpoints.formats import Contents, Format, head_of
from optax_bridge.checkpoints.formats.safetensors import FORMAT as SAFETENSORS
from optax_bridge.metadata.paths import Names, with_indices
from optax_bridge.metadata.trees import PyTree

if TYPE_CHECKING:
    import torch

SUFFIXES = (".pt", ".pth", ".bin", ".safetensors")  # that programs of PyTorch give to files
_ZIP, _NAME_AT = b"PK\x03\x04", 30  # where the name of a zip's first member begins
_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # PyTorch up to 1.5 begins so
_MODELS, _OPTIMIZER = ("model.safetensors", "pytorch_model.bin"), "optimizer.pt"
_INSTALL = "pip install 'optax-bridge[torch]'. Parameters in a .safetensors file are read without."
_STATE_DICTS = (
    "Code in a file is never run. Where you trust the file, load it in the program that wrote it, "
    "and save its state dicts: torch.save({'model': model.state_dict(), 'optimizer': "
    "optimizer.state_dict()}, path)."
)


def load(path: Path) -> PyTree:
    """Returns the content of a file of `torch.save`, by `torch.load(weights_only=True)`."""
    try:
        import torch
    except ImportError:
        raise CheckpointError(path, "PyTorch to read it", "none installed", _INSTALL) from None
    try:
        is_zip = head_of(path, 4) == _ZIP
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # anything that PyTorch raises for a damaged file
        code = re.search(r"GLOBAL (\S+)", str(error))
        if code is not None:
            found = f"code: {brief(code[1])}"
            raise CheckpointError(path, "tensors, numbers and text", found, _STATE_DICTS) from None
        raise CheckpointError(path, "a file that torch.save wrote", error) from None


def as_tree(value: PyTree, place: str, path: Names = ()) -> PyTree:
    """A `plain` tree of NumPy's arrays, views of the tensors, from what `load` returns."""
    value = with_indices(value)
    if isinstance(value, Mapping):
        return {str(name): as_tree(item, place, (*path, str(name))) for name, item in value.items()}
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if not hasattr(value, "untyped_storage"):
        return str(value)  # a dtype, a device
    import torch

    where, is_bfloat16 = place_of(place, path), value.dtype == torch.bfloat16  # NumPy lacks it
    try:
        tensor = value.detach().resolve_conj().resolve_neg()
        array = (tensor.view(torch.int16) if is_bfloat16 else tensor).numpy()
        array = array.view(ml_dtypes.bfloat16) if is_bfloat16 else array
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise CheckpointError(
            where, "a dense tensor of numbers", brief(str(error).partition("\n")[0], 200),
            "Save it as one: tensor.to_dense(), tensor.dequantize().",
        ) from None  # fmt: skip
    if array.nbytes > value.untyped_storage().nbytes():
        raise CheckpointError(
            where, f"at most the {value.untyped_storage().nbytes()} bytes that it stores",
            f"{array.dtype}{list(array.shape)}", "Save tensor.contiguous().",
        )  # fmt: skip
    return array


def as_tensor(array: np.ndarray) -> "torch.Tensor":
    """An array as a tensor of its own."""
    import torch

    array = np.array(array)
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _find(path: Path) -> Path | None:
    if path.is_dir():
        has_model = any((path / name).is_file() for name in _MODELS)
        return path if has_model and (path / _OPTIMIZER).is_file() else None
    head = head_of(path, 1024)
    length = int.from_bytes(head[26:28], "little")
    is_zip = head.startswith(_ZIP) and head[_NAME_AT : _NAME_AT + length].endswith(b"data.pkl")
    return path if is_zip or head.startswith(_BEFORE_ZIP) else None


def _read(path: Path) -> Contents:
    if path.is_file():
        return Contents(as_tree(load(path), str(path)))
    model = next(path / name for name in _MODELS if (path / name).is_file())
    is_safe = model.suffix == ".safetensors"
    tree = {"model": SAFETENSORS.read(model).tree if is_safe else as_tree(load(model), str(model))}
    for file in (path / _OPTIMIZER, path / "scheduler.pt"):
        if file.is_file():
            tree[file.stem] = as_tree(load(file), str(file))
    return Contents(tree, variant="a folder of Hugging Face's Trainer")


FORMAT = Format("PyTorch", "pytorch", find=_find, read=_read)
