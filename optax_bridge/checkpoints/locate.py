"""Finds optimizers and states in a `plain` tree: the parts that are converted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.tree_util import KeyPath

from optax_bridge.checkpoints.errors import CheckpointError, Place, brief, place_of
from optax_bridge.checkpoints.trees import fill_outline, is_array, is_floating
from optax_bridge.checkpoints.values import STEPS, is_number_of_steps, one_copy
from optax_bridge.metadata.axis_metadata import leaves_with_path
from optax_bridge.metadata.paths import Names, by_index, key_names, leaf_name, leaves
from optax_bridge.metadata.trees import Leaf, Params, PyTree

_EXTRA_ENTRY = (
    "The program added it, or its own OptimizerDef keeps it. Give the state to restore into, made "
    "with optax_bridge.wrap_definition(Own(...)) for such a definition: `optax-bridge convert "
    "--like new.py:make_state`, or optax_bridge.checkpoints.from_state_dict, lists extra leaves."
)
Row = tuple[Names, Leaf, PyTree]  # path of a parameter, the parameter, its fields or None


@dataclass(frozen=True)
class Part:
    """One legacy optimizer within a checkpoint, the place that errors name."""

    place: Place
    path: Names
    target: Params
    param_states: PyTree  # a list of groups in MultiOptimizer's layout up to flax 0.3.2
    steps: np.ndarray  # one number, or one for each copy that was left
    copies: int | None = None
    surplus: tuple[Names, ...] = ()  # entries that flax.optim did not put there

    @property
    def step(self) -> int:
        """The number of steps taken."""
        return int(self.steps.flat[0])

    def name_of(self, *names: str) -> str:
        """The name in errors of a leaf in it."""
        return place_of(self.place, (*self.path, *names))

    @property
    def rows(self) -> list[Row]:
        """Each parameter with its state; empty where it is not known which group has which."""
        return [] if self.is_grouped else [*_rows(self, self.target, self.param_states, ())]

    @property
    def is_grouped(self) -> bool:
        """True if this is MultiOptimizer's layout up to flax 0.3.2."""
        return isinstance(self.param_states, list)

    @property
    def dtypes(self) -> set[str]:
        """The names of the types in floating point that its parameters have."""
        every = (leaf.dtype for _, leaf in leaves(self.target) if is_array(leaf))
        return {str(dtype) for dtype in every if is_floating(dtype)}

    @property
    def name(self) -> str:
        """The path as the command line takes it: `models/generator`."""
        return "/".join(self.path)


def shapes_of(params: Params) -> Params:
    """Shapes and dtypes in place of arrays, which files may hold."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)


def is_train_state(tree: PyTree) -> bool:
    """True if this is the state dict of a TrainState."""
    return isinstance(tree, Mapping) and {"step", "params", "opt_state"} <= set(tree)


def find_states(tree: PyTree, path: Names = ()) -> Iterator[Names]:
    """Yields the paths of the state dicts of TrainStates in a `plain` tree."""
    if isinstance(tree, Mapping):
        inner = [p for name, value in tree.items() for p in find_states(value, (*path, name))]
        # What holds one may itself have fields of these names.
        yield from inner or ([path] if is_train_state(tree) else [])


def at_path(tree: PyTree, path: Names) -> PyTree:
    """The part of a tree at a path."""
    for name in path:
        tree = tree[int(name)] if isinstance(tree, list | tuple) else tree[name]
    return tree


def legacy_states(tree: PyTree) -> list[Mapping[str, PyTree]] | None:
    """The states of a legacy optimizer's state dict, one for each group up to flax 0.3.2."""
    state = tree.get("state") if isinstance(tree, Mapping) and "target" in tree else None
    if isinstance(state, Mapping) and {"step", "param_states"} <= set(state):
        return [state]
    states = by_index(state) or []
    fits = all(isinstance(s, Mapping) and {"step", "param_states"} <= set(s) for s in states)
    return states if states and fits else None


def optimizers(tree: PyTree, path: Names = ()) -> Iterator[Names]:
    """Yields the paths of legacy optimizers in a `plain` tree, in its order."""
    if legacy_states(tree) is not None:
        yield path
    elif isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from optimizers(value, (*path, name))


def find_parts(tree: PyTree, place: Place) -> list[Part]:
    """Returns every legacy optimizer in a `plain` tree, in the order of the tree."""
    parts = [part_of(at_path(tree, path), path, place) for path in optimizers(tree)]
    for part in parts:
        if part.surplus:
            raise CheckpointError(
                place_of(place, part.surplus[0]), "an optimizer's target, step and param_states",
                "another entry", _EXTRA_ENTRY,
            )  # fmt: skip
    return parts


def part_of(
    tree: Mapping[str, PyTree], path: Names, place: Place, *, keeps_copies: bool = False
) -> Part:
    """A legacy optimizer that stands at a path; of copies for devices the first, or all."""
    states = legacy_states(tree) or []
    surplus = [(*path, name) for name in tree if name not in ("target", "state")]
    for state in states:
        surplus += [(*path, "state", n) for n in state if n not in ("step", "param_states")]
    steps = [_steps(s["step"], (*path, "state", "step"), place, keeps_copies) for s in states]
    if any(not np.array_equal(other, steps[0]) for other in steps):
        raise CheckpointError(
            place_of(place, (*path, "state")), "one step for all groups",
            brief([other.tolist() for other in steps]),
            "The groups were not trained together: convert each.",
        )  # fmt: skip
    is_list = tree["state"] is not states[0]
    target, param_states = tree["target"], [state["param_states"] for state in states]
    copies = steps[0].size if steps[0].ndim and not keeps_copies else None
    if copies is not None:
        steps = [steps[0][0]]
        target = _first(target, copies, (*path, "target"), place)
        for number, state in enumerate(param_states):
            home = (*path, "state", *([str(number)] if is_list else []), "param_states")
            param_states[number] = _first(state, copies, home, place)
    param_states = param_states if is_list else param_states[0]
    return Part(place, path, target, param_states, np.asarray(steps[0]), copies, tuple(surplus))


def _steps(value: Leaf, path: Names, place: Place, keeps_copies: bool) -> np.ndarray:
    array = np.asarray(value) if is_array(value) or type(value) is int else np.asarray(None)
    wrong = array.ndim > 1 or array.size == 0 or not is_number_of_steps(array)
    if wrong or not (keeps_copies or (array == array.flat[0]).all()):
        raise CheckpointError(
            place_of(place, path), STEPS,
            brief(np.asarray(value).tolist() if is_array(value) else value),
            "An optimizer's state has its step there; is this one?",
        )  # fmt: skip
    return array


def _first(tree: PyTree, copies: int, path: Names, place: Place) -> PyTree:
    """The first device's copy; all must be the same, bit for bit."""

    def first(keys: KeyPath, leaf: Leaf) -> Leaf:
        if not is_array(leaf):
            return leaf
        has_axis = leaf.shape[:1] == (copies,)
        copy = one_copy(leaf) if has_axis else None
        if copy is None:
            raise CheckpointError(
                place_of(place, (*path, *key_names(keys))),
                f"the same array {copies} times, as the step is replicated",
                "different values" if has_axis else f"shape {leaf.shape}",
                "Unreplicate it in the program that wrote it, and save again. A population made "
                "by jax.vmap is restored into a template with as many members, by "
                "restore_checkpoint or convert --like.",
            )  # fmt: skip
        return copy

    return jax.tree_util.tree_map_with_path(first, tree)


def _rows(part: Part, target: Params, state: PyTree, path: Names) -> Iterator[Row]:
    if not isinstance(target, Mapping):
        if is_array(target) and not (state is None or isinstance(state, Mapping)):
            raise CheckpointError(
                part.name_of("state", "param_states", *path), "the fields of a parameter's state",
                brief(type(state).__name__), "Target and state do not belong together.",
            )  # fmt: skip
        yield path, target, state
        return
    if not isinstance(state, Mapping) or set(state) != set(target):
        names = set(state) if isinstance(state, Mapping) else {type(state).__name__}
        raise CheckpointError(
            part.name_of("state", "param_states", *path),
            f"the names of the target, {brief(sorted(target))}", brief(sorted(names)),
            "Leaves are missing or too many: target and state do not belong together.",
        )  # fmt: skip
    for name, value in target.items():
        yield from _rows(part, value, state[name], (*path, str(name)))


def with_groups(part: Part, groups: Sequence[Params]) -> Part:
    """A part whose groups hold these parameters, in the layout of flax 0.3.3 and later."""
    if not part.is_grouped:
        return part
    if len(groups) != len(part.param_states):
        raise CheckpointError(
            part.name_of("state"), f"as many groups as the transformation has, {len(groups)}",
            f"{len(part.param_states)}", "Give the optimizer that wrote the checkpoint: the list "
            "of states that flax wrote up to 0.3.2 does not say which group holds which leaves.",
        )  # fmt: skip
    fields = dict[Names, PyTree].fromkeys(path for path, _ in leaves(part.target))
    for number, (params, group) in enumerate(zip(groups, part.param_states, strict=True)):
        paths = sorted(key_names(path) for path, _ in leaves_with_path(params))
        if not jax.tree.leaves(group):
            continue  # a group that keeps nothing
        if not isinstance(group, Mapping) or set(group) != {str(i) for i in range(len(paths))}:
            count = len(group) if isinstance(group, Mapping) else type(group).__name__
            raise CheckpointError(
                f"{part.name_of('state')}, group {number}", f"states of {len(paths)} leaves",
                f"{count}", "The group holds other leaves than it did when this was written.",
            )  # fmt: skip
        fields |= {path: group[str(i)] for i, path in enumerate(paths)}
    return replace(part, param_states=fill_outline(part.target, fields))


def choose_part(tree: PyTree, place: Place, name: str | None = None) -> Part:
    """The optimizer to convert."""
    parts = find_parts(tree, place)
    fitting = [part for part in parts if name is None or part.name == name.strip("/")]
    if len(fitting) == 1:
        check_parameters(fitting[0].target, fitting[0].name_of("target"))
        return fitting[0]
    if not parts:
        is_new = any(True for _ in find_states(tree))
        names = brief(sorted(tree)) if isinstance(tree, Mapping) else brief(tree)
        raise CheckpointError(
            place, "an optimizer: {'target', 'state': {'step', 'param_states'}}",
            "a TrainState, which is converted already" if is_new else names,
            "optax_bridge.checkpoints.restore_checkpoint reads it; --to legacy converts it back."
            if is_new
            else "A file of parameters has no state to convert, and bytes within one are not "
            "decoded; `optax-bridge inspect` lists them.",
        )  # fmt: skip
    raise CheckpointError(
        place, "one optimizer to convert" if name is None else f"an optimizer at {name!r}",
        f"{', '.join(part.name or '(the whole)' for part in parts)}",
        "Name one: --part NAME, or part= in Python; or convert all of them in place: "
        '--optimizer "NAME=Adam(...)" for each.',
    )  # fmt: skip


def select_paths(paths: Iterable[Names], part: str | None) -> list[Names]:
    """The paths that a user means by `part`; all of them if it is None."""
    name = part and part.strip("/")
    return [path for path in paths if not name or not path or name == "/".join(path)]


def check_parameters(params: Params, home: str) -> None:
    """Checks that parameters are arrays of floating-point numbers only."""
    for path, leaf in leaves(params):
        where = f"{home}{leaf_name(path)}"
        if not is_array(leaf):
            raise CheckpointError(where, "an array", brief(leaf), "Parameters must be arrays.")
        is_wide = is_floating(leaf.dtype) and leaf.dtype.itemsize > 1
        if not is_wide and leaf.dtype.kind != "c":
            raise CheckpointError(
                where, "a parameter in floating point of 16 bits or more", str(leaf.dtype),
                "flax.optim never trained such a leaf; remove it from the optimizer's target.",
            )  # fmt: skip
