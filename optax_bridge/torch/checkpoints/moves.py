"""Moves a checkpoint of PyTorch into the layout of a legacy checkpoint, and a state back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flax import serialization

from optax_bridge._text import listed, shown
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.formats.format import put
from optax_bridge.checkpoints.trees import (
    Names,
    is_array,
    is_state,
    leaves,
    plain,
    state_dict_of,
    with_indices,
)
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import TorchCheckpoint, torch_checkpoint
from optax_bridge.torch.checkpoints.names import NamesFile, Rule
from optax_bridge.torch.checkpoints.order import Order

PARAMS = "params"
_STEP = "step"  # PyTorch counts steps for each parameter
_NEVER_STEPPED = (
    "It has taken no step, so that there is nothing to move but parameters: --params-only, or "
    "--like, which makes a new state."
)


def as_legacy(
    tree: PyTree,
    names: NamesFile,
    place: Path | str,
    *,
    like: Any = None,
    params_only: bool = False,
    step: int | None = None,
) -> PyTree:
    """A checkpoint of PyTorch as `flax.optim` would have laid it out.

    Args:
      tree: what a reader returned.
      names: where each tensor goes.
      place: how errors call the file.
      like: what the program saves, which has a `TrainState` somewhere.
      params_only: the model alone, its collections by name.
      step: steps taken, where the file does not say.

    Returns:
      `{'optimizer': {'target', 'state'}}`, and beside it collections and what else the file has;
      where `like` has its state, if it holds it somewhere.

    Raises:
      CheckpointError: something is missing, left over, or not certain.
    """
    checkpoint = torch_checkpoint(tree, place, names.model, names.optimizer)
    rules = names.rules(list(checkpoint.tensors))
    collections: dict[str, PyTree] = {}
    for rule in rules:
        arrays = rule.to_flax([checkpoint.tensors[name] for name in rule.torch])
        for path, array in arrays.items():
            put(collections, path, array, rule.place)
    if params_only:
        return collections
    if not checkpoint.groups:
        raise CheckpointError(
            place, "a model and its optimizer", "a model alone", "Convert it with --params-only.",
        )  # fmt: skip
    params = collections.pop(PARAMS, {})
    order = _certain_order(checkpoint, names)
    number = checkpoint.step(order, step)
    if not checkpoint.is_stepped and number == 0:
        state = {"step": np.int32(0), "params": params, "opt_state": _initial(like, place)}
        return _around(like, {**state, **collections}, checkpoint.rest)
    state = {
        "step": np.int32(number),
        "param_states": _param_states(checkpoint, rules, order, params),
    }
    return _around(
        like, {"optimizer": {"target": params, "state": state}, **collections}, checkpoint.rest
    )


def _certain_order(checkpoint: TorchCheckpoint, names: NamesFile) -> Order:
    """Which parameter is which, where that matters: without states it does not."""
    order = checkpoint.order(names.order)
    if order.doubt and checkpoint.is_stepped:
        raise CheckpointError(
            checkpoint.place, "states that belong to one parameter each", order.doubt,
            "List the names of the parameters as the optimizer was given them, group after group: "
            'order = ["...", ...] in the names file; `inspect --names` drafts it. A file of '
            "torch.optim.AdamW(model.named_parameters()) has the names itself.",
        )  # fmt: skip
    return order


def _param_states(
    checkpoint: TorchCheckpoint, rules: Sequence[Rule], order: Order, params: PyTree
) -> PyTree:
    """The fields of each parameter, nested as the parameters; None where no group holds one."""
    index_of = {name: index for index, name in order.names.items()}
    states: dict[str, PyTree] = {}
    for rule in rules:
        if rule.flax[0][0] != PARAMS:
            continue
        each = [
            checkpoint.states.get(index_of[name], {}) if name in index_of else None
            for name in rule.torch
        ]
        kinds = {None if fields is None else frozenset(fields) for fields in each}
        if len(kinds) > 1:
            raise CheckpointError(
                rule.place, "the same fields for all that become one", shown(kinds),
                "Keep them apart in Flax, too.",
            )  # fmt: skip
        by_path: dict[Names, Any] = {path: None if None in kinds else {} for path in rule.flax}
        for field in each[0] or {}:
            values = [fields[field] for fields in each if fields is not None]
            if field != _STEP and all(map(is_array, values)):
                tensors = [checkpoint.tensors[name] for name in rule.torch]
                for path, value in _field(rule, field, values, tensors).items():
                    by_path[path][field] = value
        for path, fields in by_path.items():
            put(states, path[1:], fields, rule.place)
    return states


def _field(
    rule: Rule, field: str, values: Sequence[np.ndarray], tensors: Sequence[np.ndarray]
) -> dict[Names, np.ndarray]:
    """A field of a parameter's state, by the paths of the parameter."""
    if all(value.shape == tensor.shape for value, tensor in zip(values, tensors, strict=True)):
        return rule.to_flax(values)
    if all(value.ndim == 0 and value == values[0] for value in values):
        return dict.fromkeys(rule.flax, values[0])
    if rule.rearrangement is None and len(rule.torch) == len(rule.flax) == 1:
        return {rule.flax[0]: values[0]}
    raise CheckpointError(
        rule.place, f"{field} of the parameter's shape", shown([v.shape for v in values]),
        "These are statistics along axes of PyTorch, which another arrangement has not: start "
        "them anew, --params-only, or keep the parameter as it lies.",
    )  # fmt: skip


def _initial(like: Any, place: Path | str) -> PyTree:
    states = _states_in(like)
    if len(states) != 1:
        raise CheckpointError(
            place, "an optimizer after its first step", "one without a state", _NEVER_STEPPED
        )
    return plain(serialization.to_state_dict(state_in(like, place).opt_state))


def state_in(like: Any, place: Path | str) -> Any:
    """The one `TrainState` in what a program saves.

    Raises:
      CheckpointError: there is none, or there are several.
    """
    states = _states_in(like)
    if len(states) != 1:
        raise CheckpointError(
            place, "a template with one TrainState, which a file of PyTorch goes into",
            f"{len(states)} of them", "Name a function that makes the one that is meant.",
        )  # fmt: skip
    return states[0][1]


def _states_in(like: Any) -> list[tuple[Names, Any]]:
    return (
        []
        if like is None
        else [(path, leaf) for path, leaf in leaves(state_dict_of(like)) if is_state(leaf)]
    )


def _around(like: Any, state: PyTree, rest: Mapping[str, PyTree]) -> PyTree:
    """The tree that a template is filled with: the state where it has one, and the rest."""
    states = _states_in(like)
    path = states[0][0] if len(states) == 1 else ()
    if not path:
        return {**{n: v for n, v in rest.items() if n not in state}, **state}
    tree = {name: value for name, value in rest.items() if name != path[0]}
    put(tree, path, state, "template")
    return tree


def back(base: Any, state: Any, names: NamesFile, place: Path | str) -> list[str]:
    """Puts parameters, moments and step of a state into what `torch.load` returned.

    Args:
      base: what a program of PyTorch saved, after a step at least; it is changed.
      state: the `TrainState`.
      names: where each tensor went.
      place: how errors call the base.

    Returns:
      The names of the base's other entries, which stay as they are.

    Raises:
      CheckpointError: the base has other parameters, or another optimizer.
    """
    from optax_bridge.checkpoints.formats.pytorch import as_tensor, as_tree
    from optax_bridge.states import extract

    checkpoint = torch_checkpoint(as_tree(base, str(place)), place, names.model, names.optimizer)
    rules = names.rules(list(checkpoint.tensors))
    values = {
        path: np.asarray(leaf)
        for path, leaf in leaves(plain(serialization.to_state_dict(state)))
        if is_array(leaf) and path[0] != "opt_state"
    }
    model: Any = _at(base, checkpoint.model)
    _check_all_used(values, rules, checkpoint)
    for rule in rules:
        for name, array in rule.to_torch(
            [_value(values, path, rule) for path in rule.flax]
        ).items():
            _replace(model, checkpoint.file_names[name], array, place, as_tensor)
    if checkpoint.groups:
        if not checkpoint.is_stepped:
            raise CheckpointError(
                place, "an optimizer after a step, whose fields are filled", "one without a state",
                "Take a step in PyTorch before saving it, with any gradients.",
            )  # fmt: skip
        order = _certain_order(checkpoint, names)
        param_states = _param_states(checkpoint, rules, order, {})
        fields = {path: leaf for path, leaf in leaves(param_states) if leaf is not None}
        try:
            rows = extract(state.opt_state, fields)
        except ValueError as error:
            raise CheckpointError(
                "opt_state", "the state of the base's optimizer", str(error),
                "Give the template of the state, and the base of the same optimizer.",
            ) from None  # fmt: skip
        states = _at(base, checkpoint.optimizer or ())["state"]
        _put_states(states, checkpoint, rules, order, rows, state.step, as_tensor)
    return [*checkpoint.rest]


def _put_states(
    states: Any,
    checkpoint: TorchCheckpoint,
    rules: Sequence[Rule],
    order: Order,
    rows: Mapping[Names, Any],
    step: Any,
    as_tensor: Any,
) -> None:
    index_of = {name: index for index, name in order.names.items()}
    for rule in rules:
        for name in rule.torch if rule.flax[0][0] == PARAMS else ():
            for field, old in checkpoint.states.get(index_of.get(name, -1), {}).items():
                entry = states[index_of[name]]
                if field == _STEP:
                    count = np.asarray(np.asarray(step), np.asarray(old).dtype)
                    entry[field] = as_tensor(count) if is_array(old) else count.item()
                elif is_array(old):
                    values = [np.asarray(rows[*path[1:], field]) for path in rule.flax]
                    is_whole = old.shape == checkpoint.tensors[name].shape
                    array = rule.to_torch(values)[name] if is_whole else values[0]
                    _replace(entry, field, array, checkpoint.place, as_tensor)


def _replace(holder: Any, name: str, array: np.ndarray, place: Path | str, as_tensor: Any) -> None:
    old, new = holder[name], as_tensor(array)
    if old.shape != new.shape or old.dtype != new.dtype:
        raise CheckpointError(
            f"{place}, {name}", f"{new.dtype}{list(new.shape)}, as the state has it",
            f"{old.dtype}{list(old.shape)}", "Give a base of the same model.",
        )  # fmt: skip
    holder[name] = new


def _value(values: Mapping[Names, np.ndarray], path: Names, rule: Rule) -> np.ndarray:
    if path not in values:
        raise CheckpointError(
            rule.place, "a path of the state", "/".join(path), "Mend the line in the names file."
        )
    return values[path]


def _check_all_used(
    values: Mapping[Names, Any], rules: Sequence[Rule], checkpoint: TorchCheckpoint
) -> None:
    """Checks that every parameter and every statistic of the state goes somewhere."""
    used = {path for rule in rules for path in rule.flax}
    collections = {path[0] for path in used}
    unused = ["/".join(p) for p in values if p[0] in collections and p not in used]
    if unused:
        raise CheckpointError(
            checkpoint.place, "a name of PyTorch for every array of the state",
            f"none for {listed(unused)}", "Add it to the names file.",
        )  # fmt: skip


def _at(tree: Any, path: Names) -> Any:
    """What stands at a path of what `torch.load` returned, whose keys may be numbers."""
    for name in path:
        tree = with_indices(tree)
        tree = tree[name] if name in tree else tree[int(name)]
    return tree
