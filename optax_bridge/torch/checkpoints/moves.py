"""The planners between a checkpoint of PyTorch and the layout of a legacy one, both ways."""

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.checkpoints.formats import put
from optax_bridge.checkpoints.formats.pytorch import as_tensor, as_tree
from optax_bridge.checkpoints.locate import at_path
from optax_bridge.checkpoints.moves import Item, Misfit, Move, Plan, Side, Unpaired
from optax_bridge.checkpoints.trees import is_array, is_state, plain, state_dict, state_dict_of
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.states import extract, nodes_of
from optax_bridge.torch.checkpoints.layout import TorchCheckpoint, torch_checkpoint
from optax_bridge.torch.checkpoints.names import MEND, NamesFile, Rule, described
from optax_bridge.torch.checkpoints.order import Order
from optax_bridge.torch.checkpoints.rearrangement import Rearrangement

PARAMS, _STATES = "params", "param_states"
_STEP = "step"  # PyTorch counts steps for each parameter
_HOMES = {
    PARAMS: ("optimizer", "target"),
    _STATES: ("optimizer", "state", _STATES),
    _STEP: ("optimizer", "state", _STEP),
}
_LARGEST = "exp_inf"  # Adamax's, where Adam has a mean of squares


def plan_from_torch(
    checkpoint: TorchCheckpoint, rules: Sequence[Rule], place: Place, order: Order | None = None
) -> Plan:
    """The plan from a file of PyTorch to parameters and, if their order is given, moments."""
    items: list[Item] = []
    indices = {name: index for index, name in order.names.items()} if order else {}
    for rule in rules:
        tensor = checkpoint.tensors[rule.name]
        source = (*checkpoint.model, checkpoint.file_names[rule.name])
        items += _items(rule, source, tensor, tensor.shape)
        index = indices.get(rule.name, -1) if rule.paths[0][0] == PARAMS else -1
        for field, value in checkpoint.states.get(index, {}).items():
            source = (*(checkpoint.optimizer or ()), "state", str(index), field)
            if field == _STEP:
                items.append(Move(source, (_STEP,), leaf=value))
            elif is_array(value):
                items += _items(rule, source, value, tensor.shape, (field,))
    return Plan(place, tuple(items))


def _items(
    rule: Rule, source: Names, array: np.ndarray, shape: tuple[int, ...], field: Names = ()
) -> Iterator[Move | Misfit]:
    """The moves of a parameter of a shape, or of a field of its state."""
    layouts, requirement, remedy = rule.layouts(), rule.requirement(array.shape), MEND
    if array.shape != shape:
        layouts, requirement = dict.fromkeys(rule.paths), ""
        if array.ndim and (rule.rearrangement or rule.paths[1:]):
            requirement = f"{source[-1]} of the parameter's shape"
            remedy = (
                "These are statistics along axes of PyTorch, which another arrangement lacks: "
                "start again, --params-only, or keep the parameter as it lies."
            )
    if requirement:
        yield Misfit((rule.name,), requirement, described(array), remedy)
        return
    for path, layout in layouts.items():
        target = (_STATES, *path[1:], *field) if field else path
        yield Move(source, target, leaf=array, layout=layout)


def as_legacy(
    checkpoint: TorchCheckpoint,
    names: NamesFile,
    *,
    like: PyTree = None,
    params_only: bool = False,
    step: int | None = None,
) -> tuple[PyTree, dict[Names, Move]]:
    """A checkpoint of PyTorch as `flax.optim` would have laid it out, and where each leaf was."""
    place, rules = checkpoint.place, names.rules(list(checkpoint.tensors))
    if params_only:
        return _laid_out(plan_from_torch(checkpoint, rules, names.path), {})
    if not checkpoint.groups:
        raise CheckpointError(
            place, "a model and its optimizer", "a model alone",
            "Convert it with --params-only in place of --like.",
        )  # fmt: skip
    order = _certain_order(checkpoint, names)
    more: dict[Names, PyTree] = {(_STEP,): np.int32(checkpoint.step(order, step))}
    is_new = not checkpoint.is_stepped and more[_STEP,] == 0
    plan = plan_from_torch(checkpoint, rules, names.path, None if is_new else order)
    path, state = ((), None) if like is None else _one_state(like, "template")
    if is_new:
        more["opt_state",] = plain(state_dict(state_in(like, place).opt_state))
    else:
        _check_fields(checkpoint, state)
        more |= _empty_states(checkpoint, rules, order)
    tree, origins = _laid_out(plan, more, path, {} if is_new else _HOMES)
    fields = {} if like is None else state_dict(like)
    used = {*fields, *checkpoint.model[:1], *(checkpoint.optimizer or ())[:1]}
    rest = {  # an entry that is left over as a whole is one leaf
        name: "" if isinstance(value, Mapping) and name not in used else value
        for name, value in checkpoint.rest.items()
    }
    return rest | tree, origins


def _laid_out(
    plan: Plan, more: Mapping[Names, PyTree], path: Names = (), homes: Mapping[str, Names] = {}
) -> tuple[dict[str, PyTree], dict[Names, Move]]:
    """The nested tree that a plan makes, with more in it, and where each leaf was."""
    plan.check()

    def place_of(target: Names) -> Names:
        return (*path, *homes.get(target[0], target[:1]), *target[1:])

    tree: dict[str, PyTree] = {}
    for target, leaf in {**more, **plan.apply(), **more}.items():  # a state before its fields
        put(tree, place_of(target), leaf, str(plan.place))
    return tree, {place_of(move.target): move for move in plan.moves}


def _empty_states(
    checkpoint: TorchCheckpoint, rules: Sequence[Rule], order: Order
) -> dict[Names, PyTree]:
    """The parameters' states before any field: nothing of a trained one, None of a frozen one."""
    indices = {name: index for index, name in order.names.items()}
    trained = {*checkpoint.states, *checkpoint.stateless}
    of_params = [rule for rule in rules if rule.paths[0][0] == PARAMS]
    frozen = [r.name for r in of_params if r.name in indices and indices[r.name] not in trained]
    if frozen:
        warnings.warn(
            f"{checkpoint.place}: {listing(frozen)}: no state, as of parameters without gradients. "
            "They are taken for frozen, as optax.partition with optax.set_to_zero() has them",
            stacklevel=4,
        )
    return {
        (_STATES, *path[1:]): {} if indices.get(rule.name) in trained else None
        for rule in of_params
        for path in rule.paths
    }


def _check_fields(checkpoint: TorchCheckpoint, state: PyTree) -> None:
    """Refuses Adamax's state for a state that may be Adam's: their types in Optax are the same."""
    if state is None or not any(_LARGEST in fields for fields in checkpoint.states.values()):
        return
    if "ScaleByAdamState" in {type(node).__name__ for node in nodes_of(state.opt_state)}:
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


def back(
    base: PyTree, state: PyTree, names: NamesFile, place: Place
) -> tuple[Mapping[str, PyTree], list[str]]:
    """Puts a state into what `torch.load` returned; returns its entries and tensors that stay."""
    checkpoint = torch_checkpoint(as_tree(base, str(place)), place, names.model, names.optimizer)
    rules = names.rules(list(checkpoint.tensors))
    order = _certain_order(checkpoint, names) if checkpoint.groups else None
    forward = plan_from_torch(checkpoint, rules, names.path, order)
    forward.check()
    plan = plan_to_torch(forward, _values(state, forward, bool(checkpoint.groups)), place)
    plan.check()
    for path, value in plan.apply().items():
        _replace(base, path, value)
    model = at_path(base, checkpoint.model)
    for name, first in checkpoint.tied.items():
        if name not in names.entries:
            model[checkpoint.file_names[name]] = model[checkpoint.file_names[first]]
    moved = {*names.entries, *checkpoint.tied}
    return checkpoint.rest, [name for name in checkpoint.tensors if name not in moved]


def plan_to_torch(forward: Plan, values: Mapping[Names, Leaf], place: Place) -> Plan:
    """The plan back to where the leaves of a plan came from, whose arrays are taken anew."""
    moves: dict[Names, list[Move]] = {}
    for move in forward.moves:
        moves.setdefault(move.source, []).append(move)
    targets = {move.target for move in forward.moves}
    items: list[Item] = [Unpaired(path, Side.SURPLUS) for path in values if path not in targets]
    items += [Unpaired(path, Side.MISSING) for path in targets if path not in values]
    if not items:
        items = [_move_back(those, values) for those in moves.values()]
    return Plan(
        place,
        tuple(items),
        remedy="Mend the names file.",
        requirement="a line for each array of the state, and no other",
        if_missing="",
    )


def _move_back(moves: list[Move], values: Mapping[Names, Leaf]) -> Move | Misfit:
    """The move of the arrays that one of PyTorch was taken apart to."""
    first, old = moves[0], np.asarray(moves[0].leaf)
    arrays = [np.asarray(values[move.target]) for move in moves]
    layout = first.layout if isinstance(first.layout, Rearrangement) else None
    is_joined = layout is not None and layout.index is not None
    array = np.stack(arrays) if is_joined else arrays[0]
    if first.target == (_STEP,):
        array = array.astype(old.dtype)
    shape = old.shape if layout is None else layout.shape(old.shape)
    if array.shape != shape or array.dtype != old.dtype:
        return Misfit(
            first.source, f"{described(array)}, as the state has it", f"{old.dtype}{list(shape)}",
            "Give a base of the same model.",
        )  # fmt: skip
    return Move(first.target, first.source, leaf=array, layout=layout and layout.inverse)


def _values(state: PyTree, forward: Plan, has_moments: bool) -> dict[Names, Leaf]:
    """The leaves of a state by the paths that a plan has for them."""
    paths = {move.target: move.leaf for move in forward.moves}
    collections = {path[0] for path in paths} - {_STEP, _STATES}
    values: dict[Names, Leaf] = {
        path: leaf
        for path, leaf in leaves(plain(state_dict(state)))
        if is_array(leaf) and path[0] in collections
    }
    fields = {path[1:]: leaf for path, leaf in paths.items() if path[0] == _STATES}
    if (_STEP,) in paths:
        values[_STEP,] = state.step
    if not has_moments:
        return values
    try:
        rows = extract(state.opt_state, fields)
    except ValueError as error:
        raise CheckpointError(
            "opt_state", "the state of the base's optimizer", str(error).removeprefix("found "),
            "Give the template of the state, and a base of the same optimizer after a step.",
        ) from None  # fmt: skip
    return values | {(_STATES, *row): leaf for row, leaf in rows.items()}


def _replace(base: PyTree, path: Names, array: np.ndarray) -> None:
    """Puts an array in the place of a tensor or a number."""
    name, *below = path
    key = name if isinstance(base, dict) and name in base else int(name)  # as PyTorch counts
    if below:
        _replace(base[key], tuple(below), array)
    else:
        base[key] = as_tensor(array) if hasattr(base[key], "untyped_storage") else array.item()
