"""Finds the model and the optimizer in a file of PyTorch, and which tensor has which state."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optax_bridge._text import brief, listing
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.layout import without
from optax_bridge.checkpoints.locate import at_path
from optax_bridge.checkpoints.trees import is_array, is_floating, plain
from optax_bridge.checkpoints.values import STEPS
from optax_bridge.metadata.paths import Names, by_index, leaf_name
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.order import Order, parameter_order

# What DistributedDataParallel, torch.compile, FSDP and activation checkpointing add to names.
_ALL_BELOW = "module."
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
# Buffers by the names that PyTorch's own modules give them; a file does not say what is one.
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_SORTED = "tensors by the alphabet, as in safetensors files, which is not the model's order"
_Test = Callable[[Mapping[str, PyTree]], bool]
_OF_STATISTICS = ("row_var", "col_var")  # of Adafactor, which have other shapes than the parameter


@dataclass(frozen=True)
class TorchCheckpoint:
    """A model and its optimizer, as a file of PyTorch has them."""

    place: Place
    model: Names
    optimizer: Names | None
    tensors: Mapping[str, np.ndarray]
    file_names: Mapping[str, str]
    tied: Mapping[str, str]
    groups: Sequence[Mapping[str, PyTree]]  # as PyTorch's state dicts have them
    states: Mapping[int, Mapping[str, PyTree]]
    rest: Mapping[str, PyTree]

    @property
    def indices(self) -> list[int]:
        """The indices of all parameters that the optimizer has, in its order."""
        return [index for group in self.groups for index in group["params"]]

    @property
    def stateless(self) -> set[int]:
        """The indices of parameters that SGD without momentum has, which keeps nothing of them."""
        of_sgd = (group for group in self.groups if "dampening" in group)
        return {i for group in of_sgd if not group["momentum"] for i in group["params"]}

    @property
    def is_stepped(self) -> bool:
        """True if some parameter has a state."""
        return any(self.states.values())

    def order(self, listed_order: Sequence[str] | None = None) -> Order:
        """Returns the name of each index."""
        shapes = {index: _shape(fields) for index, fields in self.states.items()}
        by_name = {
            name: tensor.shape
            for name, tensor in self.tensors.items()
            if name not in self.tied and is_floating(tensor.dtype) and not is_buffer(name)
        }
        names = [group.get("param_names") for group in self.groups]
        if listed_order is None and names and all(names):
            file_names = {_bare(name): name for name in self.tensors}
            flat = [_bare(str(name)) for group in names for name in group or ()]
            listed_order = [file_names.get(name, name) for name in flat]
        groups = [group["params"] for group in self.groups]
        order = parameter_order(groups, shapes, by_name, listed_order, self.place)
        is_sorted = len(by_name) > 1 and [*by_name] == sorted(by_name)
        return Order(order.names, _SORTED) if is_sorted and listed_order is None else order

    def step(self, order: Order, step: int | None = None) -> int:
        """The number of steps that all parameters have taken."""
        steps = {
            index: float(np.asarray(fields["step"]))
            for index, fields in self.states.items()
            if fields.get("step") is not None
        }
        if len(set(steps.values())) > 1:
            ((usual, _),) = Counter(steps.values()).most_common(1)
            others = [f"{order.name(i)} {n:g}" for i, n in steps.items() if n != usual]
            raise CheckpointError(
                self.place, "one number of steps for all parameters",
                f"{usual:g}, but {listing(others)}",
                "PyTorch counts for each parameter; Optax and Flax count once, and cannot go on "
                "alike. Those that have no gradient in some steps need an optimizer of their own.",
            )  # fmt: skip
        number = step if step is not None else next(iter(steps.values()), None)
        if number is None and not self.is_stepped and not self.stateless:
            number = 0
        if number is None:
            raise CheckpointError(
                self.place, "the number of steps taken", "a state without it, as SGD's is",
                "Say it: --step N, step=N in a program; 0 will do where no schedule asks for it.",
            )  # fmt: skip
        if number != int(number) or not 0 <= number < 2**31 - 1:
            raise CheckpointError(self.place, STEPS, brief(number), "Is the file damaged?")
        return int(number)


def is_buffer(name: str) -> bool:
    """True for the statistics of BatchNorm and the like."""
    return name.rpartition(".")[2] in _BUFFERS


def paths_of(is_wanted: _Test, tree: PyTree, path: Names = ()) -> list[Names]:
    """The paths of the state dicts of a kind."""
    if not isinstance(tree, Mapping):
        return []
    if is_wanted(tree) or is_optimizer(tree):
        return [path] * is_wanted(tree)
    return [p for name, t in tree.items() for p in paths_of(is_wanted, t, (*path, str(name)))]


def is_model(tree: Mapping[str, PyTree]) -> bool:
    """True for what may be a model's state dict: arrays by name, and nothing else."""
    values = tree.values()
    return all(map(is_array, values)) and any(is_floating(v.dtype) and v.ndim for v in values)


def is_optimizer(tree: Mapping[str, PyTree]) -> bool:
    """True for the state dict of an optimizer."""
    return {"state", "param_groups"} <= tree.keys()


def torch_checkpoint(
    tree: PyTree, place: Place, model: str | None = None, optimizer: str | None = None
) -> TorchCheckpoint:
    """Finds the model and the optimizer."""
    tree = plain(tree)
    model_path = _choose(paths_of(is_model, tree), model, "model", place)
    optimizers = paths_of(is_optimizer, tree)
    optimizer_path = _choose(optimizers, optimizer, "optimizer", place) if optimizers else None
    file_tensors = at_path(tree, model_path)
    is_parallel = all(_without_wrappers(name).startswith(_ALL_BELOW) for name in file_tensors)
    file_names = {
        (_bare if is_parallel else _without_wrappers)(name): name for name in file_tensors
    }
    tensors = {name: file_tensors[raw] for name, raw in file_names.items()}
    state = at_path(tree, optimizer_path) if optimizer_path is not None else {}
    groups = [_group(g, place) for g in state.get("param_groups", {}).values()]
    states = {
        int(index): {n: v for n, v in fields.items() if v is not None}
        for index, fields in state.get("state", {}).items()
        if str(index).isdecimal() and isinstance(fields, Mapping)
    }
    tied = _tied_names(tensors)
    rest = without(tree, model_path) if model_path else {}
    rest = without(rest, optimizer_path) if optimizer_path else rest
    checkpoint = TorchCheckpoint(
        place, model_path, optimizer_path, tensors, file_names, tied, groups, states, rest
    )
    surplus = sorted(states.keys() - {*checkpoint.indices})
    if surplus or len(state.get("state", {})) != len(states):
        raise CheckpointError(
            f"{place}, {leaf_name(optimizer_path or ())}", "a state for each parameter, by index",
            brief([str(i) for i in surplus] or sorted(map(str, state["state"]))),
            "Save optimizer.state_dict() as PyTorch makes it.",
        )  # fmt: skip
    return checkpoint


def _choose(paths: list[Names], name: str | None, what: str, place: Place) -> Names:
    fitting = [path for path in paths if name is None or "/".join(path) == name.strip("/")]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join("/".join(path) or "(the whole)" for path in paths) or "none"
    raise CheckpointError(
        place, f"one {what}'s state dict" if name is None else f"a {what} at {name!r}", names,
        f'Name it: {what} = "..." in the names file, inspect --part.'
        if paths else f"Save the {what}'s state_dict().",
    )  # fmt: skip


def _without_wrappers(name: str) -> str:
    """A tensor's name without what wrappers of the model, or of a part of it, put into it."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _bare(name: str) -> str:
    """The same, and without what DistributedDataParallel puts in front of every name."""
    return _without_wrappers(name).removeprefix(_ALL_BELOW)


def _group(group: Mapping[str, PyTree], place: Place) -> dict[str, PyTree]:
    """The group, with lists in the place of dicts by index."""
    params = list(group.get("params", {}).values())
    if not all(type(index) is int for index in params):
        raise CheckpointError(
            place, "a group's parameters by index", brief(params),
            "Save optimizer.state_dict() as PyTorch makes it.",
        )  # fmt: skip
    return {**{name: by_index(value) or value for name, value in group.items()}, "params": params}


def _tied_names(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Tensors that lie where another one does: one parameter of two names."""
    first: dict[object, str] = {}
    tied = {}
    for name, tensor in tensors.items():
        where = tensor.__array_interface__
        key = (where["data"][0], tensor.shape, tensor.strides)
        if tensor.size and key in first:
            tied[name] = first[key]
        first.setdefault(key, name)
    return tied


def _shape(fields: Mapping[str, PyTree]) -> tuple[int, ...] | None:
    shapes = (v.shape for n, v in fields.items() if is_array(v) and n not in _OF_STATISTICS)
    return next((shape for shape in shapes if shape), None)
