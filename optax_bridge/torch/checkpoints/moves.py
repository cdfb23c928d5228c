"""Moves a checkpoint of PyTorch into the layout of a legacy checkpoint, and a state back."""

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.formats.format import put
from optax_bridge.checkpoints.formats.pytorch import as_tensor, as_tree
from optax_bridge.checkpoints.locate import at_path
from optax_bridge.checkpoints.trees import is_array, is_state, plain, state_dict, state_dict_of
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.states import extract, nodes_of
from optax_bridge.torch.checkpoints.layout import TorchCheckpoint, torch_checkpoint
from optax_bridge.torch.checkpoints.names import NamesFile, Rule
from optax_bridge.torch.checkpoints.order import Order

PARAMS = "params"
_STEP = "step"  # PyTorch counts steps for each parameter
_LARGEST = "exp_inf"  # Adamax's, where Adam has a mean of squares


def as_legacy(
    checkpoint: TorchCheckpoint,
    names: NamesFile,
    *,
    like: PyTree = None,
    params_only: bool = False,
    step: int | None = None,
) -> PyTree:
    """A checkpoint of PyTorch as `flax.optim` would have laid it out."""
    place, rules = checkpoint.place, names.rules(list(checkpoint.tensors))
    collections: dict[str, PyTree] = {}
    for rule in rules:
        for path, array in rule.to_flax(checkpoint.tensors[rule.name]).items():
            put(collections, path, array, rule.place)
    if params_only:
        return collections
    if not checkpoint.groups:
        raise CheckpointError(
            place, "a model and its optimizer", "a model alone",
            "Convert it with --params-only in place of --like.",
        )  # fmt: skip
    params = collections.pop(PARAMS, {})
    order = _certain_order(checkpoint, names)
    number = np.int32(checkpoint.step(order, step))
    if not checkpoint.is_stepped and number == 0:
        opt_state = plain(state_dict(state_in(like, place).opt_state))
        state = {"step": number, PARAMS: params, "opt_state": opt_state}
    else:
        _check_fields(checkpoint, like)
        param_states = _param_states(checkpoint, rules, order)
        part = {"target": params, "state": {"step": number, "param_states": param_states}}
        state = {"optimizer": part}
    return _place_in(like, {**state, **collections}, checkpoint.rest)


def _check_fields(checkpoint: TorchCheckpoint, like: PyTree) -> None:
    """Refuses Adamax's state for a state that may be Adam's: their types in Optax are the same."""
    has_largest = any(_LARGEST in fields for fields in checkpoint.states.values())
    if not has_largest or like is None:
        return
    opt_state = state_in(like, checkpoint.place).opt_state
    if "ScaleByAdamState" in {type(node).__name__ for node in nodes_of(opt_state)}:
        raise CheckpointError(
            checkpoint.place, "the state of Adam, exp_avg_sq", f"that of Adamax, {_LARGEST}",
            "optax.adam and optax.adamax have one type of state, so the template does not tell "
            "them apart: take optax_bridge.torch.adamax(...) there.",
        )  # fmt: skip


def _certain_order(checkpoint: TorchCheckpoint, names: NamesFile) -> Order:
    """The order of the parameters; it must be certain where there are states."""
    order = checkpoint.order(names.order)
    if order.doubt and checkpoint.is_stepped:
        raise CheckpointError(
            checkpoint.place, "states that belong to one parameter each", order.doubt,
            "List the names of the parameters as the optimizer was given them, group after group: "
            'order = ["...", ...] in the names file; `inspect --names` drafts it. A file of '
            "torch.optim.AdamW(model.named_parameters()) has the names itself.",
        )  # fmt: skip
    return order


def _param_states(checkpoint: TorchCheckpoint, rules: Sequence[Rule], order: Order) -> PyTree:
    """The fields of each parameter, nested as the parameters; None where it has no state."""
    states: dict[str, PyTree] = {}
    frozen: list[str] = []
    of_sgd = [g for g in checkpoint.groups if "dampening" in g.settings]
    stateless = {i for g in of_sgd if not g.settings["momentum"] for i in g.indices}
    for rule, index in _parameters(rules, order):
        is_held = index is not None and (index in checkpoint.states or index in stateless)
        frozen += [] if is_held or index is None else [rule.name]
        fields: dict[Names, PyTree] = {path: {} if is_held else None for path in rule.paths}
        for field, value in _state(checkpoint, index).items():
            if field != _STEP and is_array(value):
                for path, array in _field(rule, field, value, checkpoint).items():
                    fields[path][field] = array
        for path in rule.paths:
            put(states, path[1:], fields[path], rule.place)
    if frozen:
        warnings.warn(
            f"{checkpoint.place}: {listing(frozen)}: no state, as of parameters without gradients. "
            "They are taken for frozen, as optax.partition with optax.set_to_zero() has them",
            stacklevel=4,
        )
    return states


def _state(checkpoint: TorchCheckpoint, index: int | None) -> Mapping[str, PyTree]:
    return {} if index is None else checkpoint.states.get(index, {})


def _parameters(rules: Sequence[Rule], order: Order) -> Iterator[tuple[Rule, int | None]]:
    """The rules of parameters, each with its index in the optimizer, or None."""
    indices = {name: index for index, name in order.names.items()}
    return ((rule, indices.get(rule.name)) for rule in rules if rule.paths[0][0] == PARAMS)


def _field(
    rule: Rule, field: str, value: np.ndarray, checkpoint: TorchCheckpoint
) -> dict[Names, np.ndarray]:
    """A field of a parameter's state, by the paths of the parameter."""
    if value.shape == checkpoint.tensors[rule.name].shape:
        return rule.to_flax(value)
    if value.ndim == 0 or (rule.rearrangement is None and len(rule.paths) == 1):
        return dict.fromkeys(rule.paths, value)
    raise CheckpointError(
        rule.place, f"{field} of the parameter's shape", f"{list(value.shape)}",
        "These are statistics along axes of PyTorch, which another arrangement lacks: start "
        "again, --params-only, or keep the parameter as it lies.",
    )  # fmt: skip


def state_in(like: PyTree, place: Place) -> PyTree:
    """The one `TrainState` in what a program saves."""
    return _one_state(like, place)[1]


def _one_state(like: PyTree, place: Place) -> tuple[Names, PyTree]:
    states = [each for each in leaves(state_dict_of(like)) if is_state(each[1])]
    if len(states) != 1:
        raise CheckpointError(
            place, "a template with one TrainState, which a file of PyTorch goes into",
            f"{len(states)} of them", "Name a function that makes the one that is meant.",
        )  # fmt: skip
    return states[0]


def _place_in(like: PyTree, state: PyTree, rest: Mapping[str, PyTree]) -> PyTree:
    """The tree that a template is filled with: the state where it has one, and the rest."""
    path = () if like is None else _one_state(like, "template")[0]
    if not path:
        return {**{name: value for name, value in rest.items() if name not in state}, **state}
    tree = {name: value for name, value in rest.items() if name != path[0]}
    put(tree, path, state, "template")
    return tree


def back(base: PyTree, state: PyTree, names: NamesFile, place: Place) -> list[str]:
    """Puts parameters, moments and step of a state into what `torch.load` returned."""
    checkpoint = torch_checkpoint(as_tree(base, str(place)), place, names.model, names.optimizer)
    rules = names.rules(list(checkpoint.tensors))
    used = {path for rule in rules for path in rule.paths}
    collections = {path[0] for path in used}
    values = {
        path: np.asarray(leaf)
        for path, leaf in leaves(plain(state_dict(state)))
        if is_array(leaf) and path[0] in collections
    }
    differing = ["/".join(path) for path in used ^ values.keys()]
    if differing:
        raise CheckpointError(
            place, "a line for each array of the state, and no other", listing(sorted(differing)),
            "Mend the names file.",
        )  # fmt: skip
    model = at_path(base, checkpoint.model)
    for rule in rules:
        array = rule.to_torch([values[path] for path in rule.paths])
        _replace(model, checkpoint.file_names[rule.name], array, place)
    for name, first in checkpoint.tied.items():
        if name not in names.entries:
            model[checkpoint.file_names[name]] = model[checkpoint.file_names[first]]
    if checkpoint.groups:
        _put_states(at_path(base, checkpoint.optimizer or ()), checkpoint, rules, names, state)
    moved = {rule.name for rule in rules} | {*checkpoint.tied}
    return [*checkpoint.rest, *(name for name in checkpoint.tensors if name not in moved)]


def _put_states(
    saved: PyTree,
    checkpoint: TorchCheckpoint,
    rules: Sequence[Rule],
    names: NamesFile,
    state: PyTree,
) -> None:
    """Puts moments and step into the state dict of an optimizer."""
    if not checkpoint.is_stepped:
        raise CheckpointError(
            checkpoint.place, "an optimizer after a step, whose fields are filled",
            "one without a state", "Take a step in PyTorch before saving it, with any gradients.",
        )  # fmt: skip
    order = _certain_order(checkpoint, names)
    fields = dict(leaves(_param_states(checkpoint, rules, order)))
    try:
        rows = extract(state.opt_state, {p: leaf for p, leaf in fields.items() if is_array(leaf)})
    except ValueError as error:
        raise CheckpointError(
            "opt_state", "the state of the base's optimizer", str(error).removeprefix("found "),
            "Give the template of the state, and the base of the same optimizer.",
        ) from None  # fmt: skip
    for rule, index in _parameters(rules, order):
        for field, old in _state(checkpoint, index).items():
            entry = saved["state"][index]
            if field == _STEP:
                count = np.asarray(np.asarray(state.step), np.asarray(old).dtype)
                entry[field] = as_tensor(count) if is_array(old) else count.item()
            elif is_array(old):
                values = [np.asarray(rows[*path[1:], field]) for path in rule.paths]
                is_whole = old.shape == checkpoint.tensors[rule.name].shape
                array = rule.to_torch(values) if is_whole else values[0]
                _replace(entry, field, array, checkpoint.place)


def _replace(holder: PyTree, name: str, array: np.ndarray, place: Place) -> None:
    old, new = holder[name], as_tensor(array)
    if old.shape != new.shape or old.dtype != new.dtype:
        raise CheckpointError(
            f"{place}, {name}", f"{new.dtype}{list(new.shape)}, as the state has it",
            f"{old.dtype}{list(old.shape)}", "Give a base of the same model.",
        )  # fmt: skip
    holder[name] = new
