"""Finds optimizers and states in a tree of names and arrays, and says what they look like."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import ml_dtypes
import numpy as np

import legacy_optim
from legacy_optim.deprecation import describing
from legacy_optim.older_layout import OLDER_WEIGHT_NORM, has_older_weight_norm
from optax_bridge.checkpoints.errors import CheckpointError, Place, brief
from optax_bridge.checkpoints.trees import is_array, is_floating, plain
from optax_bridge.checkpoints.values import STEPS, is_number_of_steps, one_copy
from optax_bridge.correspondence import ENTRIES, Entry, entries_by_class
from optax_bridge.metadata.paths import Names, by_index, leaf_name, leaves
from optax_bridge.metadata.trees import Leaf, Params, PyTree

_PUT_IN = (
    "A program put that in, flax.optim did not: restore there by "
    "optax_bridge.checkpoints.from_state_dict(state, dict_of_the_optimizer), which takes the "
    "optimizer and lists the rest, and save what it gives."
)
_OWN_STATE = (
    "An OptimizerDef of the program's own keeps that. Make the state that it goes into, "
    "TrainState.create(apply_fn, params, optax_bridge.wrap_definition(Own(...))), and restore by "
    "optax_bridge.checkpoints.restore_checkpoint(path, state), or from_state_dict(state, "
    "dict_of_the_optimizer); `optax-bridge convert --like program.py:make_state` converts the file."
)


Row = tuple[Names, Leaf, PyTree]  # path of a parameter, the parameter, its fields or None


@dataclass(frozen=True)
class Part:
    """One legacy optimizer within a checkpoint."""

    path: Names
    target: Params
    param_states: PyTree
    step: int
    copies: int | None = None

    @property
    def is_grouped(self) -> bool:
        """True if this is MultiOptimizer's layout up to flax 0.3.2."""
        return isinstance(self.param_states, list)

    @property
    def dtypes(self) -> set[str]:
        """The names of the types in floating point that its parameters have."""
        every = (leaf.dtype for _, leaf in leaves(self.target))
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


def find_states(tree: PyTree) -> Iterator[Names]:
    """Yields the paths of the state dicts of TrainStates in a tree."""
    return _states(plain(tree), ())


def _states(tree: PyTree, path: Names) -> Iterator[Names]:
    if isinstance(tree, Mapping):
        inner = [p for name, value in tree.items() for p in _states(value, (*path, name))]
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
    """Returns every legacy optimizer in a tree, in the order of the tree."""
    return _parts(plain(tree), place)


def _parts(tree: PyTree, place: Place) -> list[Part]:
    return [_part(at_path(tree, path), path, place) for path in optimizers(tree)]


def _part(tree: Mapping[str, PyTree], path: Names, place: Place) -> Part:
    states = legacy_states(tree) or []
    unexpected = [(*path, name) for name in tree if name not in ("target", "state")]
    for state in states:
        unexpected += [(*path, "state", n) for n in state if n not in ("step", "param_states")]
    if unexpected:
        raise CheckpointError(
            f"{place}, {leaf_name(unexpected[0])}", "an optimizer's target, step and param_states",
            "something besides", _OWN_STATE if unexpected[0][len(path)] == "state" else _PUT_IN,
        )  # fmt: skip
    steps = [_step(state["step"], (*path, "state", "step"), place) for state in states]
    if len(set(steps)) != 1:
        raise CheckpointError(
            f"{place}, {leaf_name((*path, 'state'))}", "one step for all groups",
            f"{[step for step, _ in steps]}", "The groups were not trained together: convert each.",
        )  # fmt: skip
    step, copies = steps[0]
    target, param_states = tree["target"], [state["param_states"] for state in states]
    if copies is not None:
        target = _first(target, copies, (*path, "target"), place)
        param_states = _first(param_states, copies, (*path, "state", "param_states"), place)
    is_list = not (isinstance(tree["state"], Mapping) and "param_states" in tree["state"])
    return Part(path, target, param_states if is_list else param_states[0], step, copies)


def _step(value: Leaf, path: Names, place: Place) -> tuple[int, int | None]:
    array = np.asarray(value) if is_array(value) or type(value) is int else np.asarray(None)
    wrong = array.ndim > 1 or array.size == 0 or not is_number_of_steps(array)
    if wrong or (array != array.flat[0]).any():
        raise CheckpointError(
            f"{place}, {leaf_name(path)}", STEPS, brief(value),
            "An optimizer's state has its step there; is this one?",
        )  # fmt: skip
    return int(array.flat[0]), array.size if array.ndim else None


def _first(tree: PyTree, copies: int, path: Names, place: Place) -> PyTree:
    """The first device's copy; all must be the same, bit for bit."""
    if isinstance(tree, Mapping):
        return {k: _first(v, copies, (*path, k), place) for k, v in tree.items()}
    if isinstance(tree, list):  # of groups
        return [_first(v, copies, (*path, str(i)), place) for i, v in enumerate(tree)]
    if not is_array(tree):
        return tree
    actual = f"shape {tree.shape}"
    if tree.shape[:1] == (copies,):
        if (first := one_copy(tree)) is not None:
            return first
        actual = "different values"
    raise CheckpointError(
        f"{place}, {leaf_name(path)}", f"the same array {copies} times, as the step is replicated",
        actual,
        "Unreplicate it in the program that wrote it, and save again; what jax.vmap made, a "
        "population's members, is restored into a template of as many: restore_checkpoint does, "
        "and convert --like.",
    )  # fmt: skip


def rows(
    part: Part, place: Place = "checkpoint", groups: Sequence[Sequence[Names]] = ()
) -> list[Row]:
    """Each parameter with its state: path in the target, parameter, dict of fields or None."""
    if part.is_grouped:
        return _rows_of_groups(part, groups, place) if groups else []
    return list(_rows(part.target, part.param_states, (), part, place))


def _rows(target: Params, state: PyTree, path: Names, part: Part, place: Place) -> Iterator[Row]:
    def where() -> str:  # of a leaf in a million a name is not asked for
        return f"{place}, {leaf_name((*part.path, 'state', 'param_states', *path))}"

    if not isinstance(target, Mapping):
        if is_array(target) and not (state is None or isinstance(state, Mapping)):
            raise CheckpointError(
                where(), "the fields of a parameter's state", brief(type(state).__name__),
                "Target and state do not belong together.",
            )  # fmt: skip
        yield path, target, state
        return
    if state is None:
        state = dict.fromkeys(target)
    if not isinstance(state, Mapping) or set(state) != set(target):
        names = set(state) if isinstance(state, Mapping) else {type(state).__name__}
        raise CheckpointError(
            where(), f"the names of the target, {brief(sorted(target))}", brief(sorted(names)),
            "Leaves are missing or too many: target and state do not belong together.",
        )  # fmt: skip
    for name, value in target.items():
        yield from _rows(value, state[name], (*path, str(name)), part, place)


def _rows_of_groups(part: Part, groups: Sequence[Sequence[Names]], place: Place) -> list[Row]:
    rows_of_none = list(_rows(part.target, None, (), part, place))
    fields: dict[Names, PyTree] = {path: None for path, _, _ in rows_of_none}
    for number, (paths, group) in enumerate(zip(groups, part.param_states, strict=True)):
        if not jax.tree.leaves(group, is_leaf=lambda node: node is None):
            continue  # a group that keeps nothing
        if not isinstance(group, Mapping) or set(group) != {str(i) for i in range(len(paths))}:
            count = len(group) if isinstance(group, Mapping) else type(group).__name__
            raise CheckpointError(
                f"{place}, {leaf_name((*part.path, 'state'))}, group {number}",
                f"states of {len(paths)} leaves", f"{count}",
                "The group holds other leaves than it did when this was written.",
            )  # fmt: skip
        fields |= {path: group[str(i)] for i, path in enumerate(paths)}
    return [(path, leaf, fields[path]) for path, leaf, _ in rows_of_none]


def candidates(part: Part, place: Place = "checkpoint") -> list[str]:
    """The legacy classes whose state has the fields of this one, most special first."""
    if part.is_grouped:
        return ["MultiOptimizer"]
    kinds = {frozenset(s) for _, _, s in rows(part, place) if isinstance(s, Mapping)}
    return sorted(e.legacy.__name__ for e in ENTRIES.values() if e.matches(kinds))


def refuse_older(param_states: PyTree, path: Names, place: Place) -> None:
    """Refuses a state of an older release from which no later one goes on."""
    if has_older_weight_norm(param_states):
        raise CheckpointError(
            f"{place}, {leaf_name((*path, 'state'))}", "a state of flax from 0.4.0 on",
            "WeightNorm's of up to 0.3.6", OLDER_WEIGHT_NORM,
        )  # fmt: skip


def entry_of_class(name: str) -> Entry | None:
    """The entry of a legacy class by the class's name."""
    return entries_by_class().get(name)


def within(part: Part, holder: Entry, place: Place = "checkpoint") -> list[Part]:
    """The parts of each optimizer within one that holds others; empty in the older layout."""
    if holder.parts is None or part.is_grouped:
        return []
    rows_with_state = [row for row in rows(part, place) if isinstance(row[2], Mapping)]
    inner = []
    for group in holder.parts.rows_within(rows_with_state):
        targets = {"/".join(path): target for path, target, _ in group}
        states = {"/".join(path): state for path, _, state in group}
        inner.append(Part(part.path, targets, states, part.step, part.copies))
    return inner


def looks_like(part: Part, place: Place = "checkpoint") -> str:
    """The classes that a state may be of, in words: `WeightNorm of Adam or LAMB`."""
    names = candidates(part, place)
    holder = entry_of_class(names[0]) if len(names) == 1 else None
    inner = [] if holder is None else within(part, holder, place)
    if inner:
        return f"{names[0]} of {', '.join(sorted(looks_like(each, place) for each in inner))}"
    if not names and has_older_weight_norm(part.param_states):
        return "WeightNorm of up to flax 0.3.6, from which no later release goes on"
    return " or ".join(names) or "none of legacy_optim's optimizers"


def has_unmatched(part: Part, place: Place = "checkpoint") -> bool:
    """True if some parameters have no state: a MultiOptimizer, or `focus=`, left them alone."""
    return any(state is None for _, _, state in rows(part, place))


def choose_part(tree: PyTree, place: Place, name: str | None = None) -> Part:
    """The optimizer to convert."""
    parts = _parts(tree, place)
    fitting = [part for part in parts if name is None or part.name == name.strip("/")]
    if len(fitting) == 1:
        _check_parameters(fitting[0], place)
        return fitting[0]
    if not parts and any(True for _ in _states(tree, ())):
        raise CheckpointError(
            place, "an optimizer of flax.optim", "a TrainState, which is converted already",
            "optax_bridge.checkpoints.restore_checkpoint reads it; --to legacy converts it back.",
        )  # fmt: skip
    if not parts:
        names = brief(sorted(tree)) if isinstance(tree, Mapping) else brief(tree)
        raise CheckpointError(
            place, "an optimizer: {'target', 'state': {'step', 'param_states'}}", names,
            "A file of parameters alone has no state to convert, and bytes within one are not "
            "looked into; `optax-bridge inspect` lists it.",
        )  # fmt: skip
    raise CheckpointError(
        place, "one optimizer to convert" if name is None else f"an optimizer at {name!r}",
        f"{', '.join(part.name or '(the whole)' for part in parts)}",
        "Name one: --part NAME, or part= in Python; or convert each where it stands: "
        '--optimizer "NAME=Adam(...)" for every one.',
    )  # fmt: skip


def select_paths(paths: Iterable[Names], part: str | None) -> list[Names]:
    """The paths that a user means by `part`; all of them if it is None."""
    name = part and part.strip("/")
    return [path for path in paths if not name or not path or name == "/".join(path)]


_FLOATS = [np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)]


def _check_parameters(part: Part, place: Place) -> None:
    """Checks that the target has arrays of floating-point numbers only."""
    target_path = (*part.path, "target")
    for path, leaf in leaves(part.target):
        where = f"{place}, {leaf_name((*target_path, *path))}"
        if not is_array(leaf):
            raise CheckpointError(where, "an array", brief(leaf), "Parameters must be arrays.")
        if leaf.dtype not in _FLOATS and leaf.dtype.kind != "c":
            raise CheckpointError(
                where, "a parameter in floating point of 16 bits or more", str(leaf.dtype),
                "flax.optim never trained such a leaf; take it out of the optimizer's target.",
            )  # fmt: skip


@describing()
def infer_definitions(part: Part, place: Place) -> list[legacy_optim.OptimizerDef]:
    """Definitions that a state may be of, the likeliest first."""
    names = candidates(part, place)
    entry = entry_of_class(names[0]) if len(names) == 1 else None
    if entry is not None and entry.parts is not None:
        inner = within(part, entry, place)
        if len(inner) == 1 and _is_plain(candidates(inner[0], place)):
            outer = [entry.parts.wrap(d) for d in infer_definitions(inner[0], place)]
            return [definition for definition in outer if definition is not None]
    if entry is None or entry.parts is not None:
        parts = None if entry is None else entry.parts
        likely = "Adam" if "Adam" in names else (names or ["Adam"])[-1]
        example = f"{likely}(learning_rate=1e-3)" if parts is None else parts.example
        raise CheckpointError(
            f"{place}, {leaf_name((*part.path, 'state'))}", "the state of one known optimizer",
            f"fields that fit {looks_like(part, place)}",
            f"Say which: --optimizer '{example}', or optimizer_def= in Python."
            if names
            else "If its class is your own: --like new.py:make_state, of the migrated program, or "
            "optimizer_def= in Python.",
        )  # fmt: skip
    if entry.inferred is not None:
        return [entry.legacy(**entry.inferred(rows(part, place)))]
    switches = [hp.legacy for hp in entry.hyper_params if isinstance(hp.default, bool)]
    defaults = entry.defaults()
    tries = []
    for count in range(len(switches) + 1):
        for chosen in itertools.combinations(switches, count):
            tries.append(entry.legacy(**{name: not defaults[name] for name in chosen}))
    return tries


def _is_plain(names: list[str]) -> bool:
    """True if this is one class, and it holds no others."""
    entry = entry_of_class(names[0]) if len(names) == 1 else None
    return entry is not None and entry.parts is None
