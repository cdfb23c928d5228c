"""From a file of PyTorch to one of Flax and back, and what a file of PyTorch holds, in words."""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optax_bridge._text import brief
from optax_bridge.checkpoints.conversions import as_template
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats import pytorch, safetensors
from optax_bridge.checkpoints.read import Read, read_checkpoint
from optax_bridge.checkpoints.write import compare, written_whole
from optax_bridge.metadata.paths import leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import (
    TorchCheckpoint,
    is_model,
    is_optimizer,
    paths_of,
    torch_checkpoint,
)
from optax_bridge.torch.checkpoints.moves import as_legacy, back, state_in
from optax_bridge.torch.checkpoints.names import read_names

_FORMATS = {pytorch.FORMAT.name, safetensors.FORMAT.name}


def is_torch(read: Read) -> bool:
    """True for a checkpoint with PyTorch's names, for which a names file is needed."""
    return read.format in _FORMATS


def moved_to_flax(
    read: Read, like: PyTree, *, names: Path | None, step: int | None, program: str | None = None
) -> Read:
    """A checkpoint of PyTorch as one of `flax.optim`, without `like` its parameters alone."""
    if is_torch(read) != (names is not None):
        template = ["--names", "--like", program or "train.py:make_state"]
        draft = shlex.join(["optax-bridge", "inspect", str(read.path), *template])
        raise CheckpointError(
            read.path, "a names file for a checkpoint of PyTorch, and for no other",
            "none" if names is None else f"{names} for {read.description}",
            f"Make it: {draft} > names.toml; convert with --names names.toml."
            if names is None else "Leave --names out.",
        )  # fmt: skip
    if names is None:
        return read
    file = read_names(names)
    checkpoint = torch_checkpoint(read.tree, read.path, file.model, file.optimizer)
    tree, origins = as_legacy(checkpoint, file, like=like, params_only=like is None, step=step)
    return dataclasses.replace(read, tree=tree, variant=summary(checkpoint), origins=origins)


@dataclass(frozen=True)
class Returned:
    """The result of `to_torch_file`."""

    read: Read
    step: int
    arrays: int
    nbytes: int
    entries: Mapping[str, PyTree]  # of the program's own, which stay those of the base
    tensors: Sequence[str]  # of the model, that have no counterpart


def to_torch_file(
    source: Path,
    destination: Path,
    *,
    like: PyTree,
    names: Path,
    base: Path,
    allow_nan: bool = False,
    force: bool = False,
) -> Returned:
    """Writes a state of Flax as a file that PyTorch goes on from."""
    read = read_checkpoint(source)
    state = state_in(as_template(read, like, allow_nan).tree, read.path)
    file = read_names(names)
    found_format = read_checkpoint(base)
    if found_format.format != pytorch.FORMAT.name or not base.is_file():
        raise CheckpointError(
            base, "a file that torch.save wrote", found_format.format,
            "Give one that the program of PyTorch saved.",
        )  # fmt: skip
    saved = pytorch.load(base)
    entries, tensors = back(saved, state, file, base)
    tree = pytorch.as_tree(saved, str(destination))
    with written_whole(destination, force=force) as path:
        import torch

        torch.save(saved, path)
        compare(path, tree, destination, pytorch.FORMAT)
    arrays = [leaf for _, leaf in leaves(tree) if hasattr(leaf, "nbytes")]
    size = sum(leaf.nbytes for leaf in arrays)
    step = int(np.asarray(state.step))
    return Returned(read, step, len(arrays), size, entries, tensors)


def summary(checkpoint: TorchCheckpoint) -> str:
    """Model, optimizer and step in a few words."""
    words = f"{len(checkpoint.tensors)} tensors"
    words += f" at {'/'.join(checkpoint.model)}" if checkpoint.model else ""
    if not checkpoint.groups:
        return words
    count = len(checkpoint.groups)
    words += f", an optimizer of {count} group{'s' * (count > 1)}"
    return words + (f" at {'/'.join(checkpoint.optimizer)}" if checkpoint.optimizer else "")


def description_of(
    read: Read, model: str | None = None, optimizer: str | None = None
) -> Iterator[str]:
    """Yields lines on what a file of PyTorch holds."""
    models, optimizers = (paths_of(kind, read.tree) for kind in (is_model, is_optimizer))
    for what, paths, chosen in (("models", models, model), ("optimizers", optimizers, optimizer)):
        if len(paths) > 1 and chosen is None:
            yield f"{what}: {', '.join(map('/'.join, paths))}; name one: --part MODEL,OPTIMIZER"
            return
    if not models:
        yield "no state dict of a model in it"
        return
    checkpoint = torch_checkpoint(read.tree, read.path, model, optimizer)
    yield summary(checkpoint)
    order = checkpoint.order()
    fields = sorted({name for state in checkpoint.states.values() for name in state})
    for number, group in enumerate(checkpoint.groups):
        settings = [
            f"{name}={brief(value)}"
            for name, value in group.items()
            if name not in ("params", "param_names") and value is not None and value is not False
        ]
        indices = group["params"]
        names = ", ".join([*map(order.name, indices[:3]), *["..."] * (len(indices) > 3)])
        count = f"{len(indices)} parameter{'s' * (len(indices) != 1)}"
        yield f"group {number}: {count} ({names}), {', '.join(settings)}"
    if checkpoint.groups:
        yield f"state of each parameter: {', '.join(fields) or 'none, as before the first step'}"
    if order.doubt and checkpoint.is_stepped:
        yield f"which state is whose is not certain: {order.doubt}"
