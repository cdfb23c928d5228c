"""From a model and an optimizer of PyTorch, in the middle of their training, to a `TrainState`."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import legacy_optim
from optax_bridge._text import listing
from optax_bridge.checkpoints.devices import as_arrays
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats.pytorch import as_tree
from optax_bridge.checkpoints.to_train_state import convert_tree, train_state
from optax_bridge.legacy import from_legacy
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import torch_checkpoint
from optax_bridge.torch.checkpoints.moves import PARAMS, as_legacy
from optax_bridge.torch.checkpoints.names import Rule, read_names
from optax_bridge.torch.definition import ScalarOrSchedule
from optax_bridge.torch.from_torch import torch_definition

if TYPE_CHECKING:
    import torch

State = TypeVar("State")
_PLACE = "optimizer"


def state_from_torch(
    cls: type[State],
    optimizer: "torch.optim.Optimizer",
    params: PyTree,
    names: Path | str | Mapping[str, PyTree],
    apply_fn: Callable[..., Any] | None,
    *,
    lr: ScalarOrSchedule | Sequence[ScalarOrSchedule] | None,
    step: int | None,
    exact: bool,
    fields: dict[str, PyTree],
) -> State:
    """See `TrainState.from_torch`."""
    tensors = params.state_dict() if hasattr(params, "state_dict") else dict(params)
    file = read_names(names)
    saved = {"model": tensors, "optimizer": optimizer.state_dict()}
    tree = as_tree(saved, _PLACE)  # views, which a further step in PyTorch would change
    checkpoint = torch_checkpoint(tree, _PLACE, "model", "optimizer")
    tensors = {name: tensors[raw] for name, raw in checkpoint.file_names.items()}
    groups = _names_of_groups(optimizer, tensors)
    order = [name for group in groups for name in group]
    file = dataclasses.replace(file, model="model", optimizer="optimizer", order=order)
    rules = file.rules(list(checkpoint.tensors))
    if second := [name for name in checkpoint.tied if name in file.entries]:
        raise CheckpointError(
            file.path, "a line for the first name of each tied tensor", listing(second),
            "Such a tensor is one parameter: give the first name its line, and drop the others.",
        )  # fmt: skip
    traversals = [_traversal({*group}, rules) for group in groups]
    definition = torch_definition(optimizer, lr=lr, groups=traversals if groups[1:] else None)
    if saved["optimizer"]["state"] or step:
        legacy = as_arrays(as_legacy(checkpoint, file, step=step)[0])
        converted = convert_tree(legacy, definition, exact=exact, place=_PLACE)
        return train_state(cls, converted, apply_fn, fields=fields, place=_PLACE)
    state_class: Any = cls
    collections = as_arrays(as_legacy(checkpoint, file, params_only=True)[0])
    tx = from_legacy(definition, exact)
    return state_class.create(apply_fn=apply_fn, tx=tx, **{**collections, **fields})


def _names_of_groups(
    optimizer: "torch.optim.Optimizer", tensors: Mapping[str, "torch.Tensor"]
) -> list[list[str]]:
    """The names of the parameters that each group has: where a tensor lies says which it is."""
    by_place: dict[object, str] = {}
    for name, tensor in tensors.items():
        by_place.setdefault((tensor.data_ptr(), tensor.shape), name)
    groups = [
        [by_place.get((p.data_ptr(), p.shape), "") for p in group["params"]]
        for group in optimizer.param_groups
    ]
    unnamed = sum(group.count("") for group in groups)
    if unnamed:
        raise CheckpointError(
            _PLACE, "the model whose parameters it has", f"{unnamed} parameters of another",
            "Give params=model, the very module that the optimizer trains.",
        )  # fmt: skip
    return groups


def _traversal(group: set[str], rules: list[Rule]) -> legacy_optim.ModelParamTraversal:
    """The parameters of Flax that come from a group of PyTorch."""
    paths = {p[1:] for rule in rules if rule.name in group for p in rule.paths if p[0] == PARAMS}
    return legacy_optim.ModelParamTraversal(lambda path, _: tuple(path.split("/")[1:]) in paths)
