# pyright: strict, reportMissingTypeStubs=false
"""The ways to convert: from a checkpoint that was read to the tree that is written."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import numpy as np

import legacy_optim
from optax_bridge.checkpoints.errors import CheckpointError, brief
from optax_bridge.checkpoints.layout import add_optimizer, is_step_again, with_lists
from optax_bridge.checkpoints.locate import (
    at_path,
    choose_part,
    find_states,
    optimizers,
    select_paths,
)
from optax_bridge.checkpoints.moves import Move, Plan, moved_to
from optax_bridge.checkpoints.read import T5X, Read
from optax_bridge.checkpoints.restore import apply_plan, plan_restore
from optax_bridge.checkpoints.same_names import Paths, trained_items
from optax_bridge.checkpoints.to_legacy import back
from optax_bridge.checkpoints.to_train_state import Converted, convert_tree
from optax_bridge.checkpoints.trees import is_state, state_dict
from optax_bridge.correspondence import Choice
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.states import COUNTS

Definition = legacy_optim.OptimizerDef
# That of the one optimizer, or of each by its path; None where the state says it.
Definitions = Definition | Mapping[str, Definition] | None


@dataclass(frozen=True)
class Conversion:
    """The result of a conversion: the tree to write, and how it came about."""

    read: Read
    tree: PyTree
    definitions: Mapping[str, PyTree] = field(default_factory=dict[str, PyTree])
    step: int | None = None
    choices: Mapping[str, Choice] = field(default_factory=dict[str, Choice])
    moves: Sequence[Move] = ()

    def dropped(self) -> list[Names]:
        """The paths of the leaves of the source that are not in the result; the step has counts."""
        sources = {move.source for move in self.moves}
        used = {id(leaf) for _, leaf in leaves(state_dict(self.tree))}
        return [
            path
            for path, leaf in leaves(self.read.tree)
            if leaf is not None
            and path not in sources
            and id(leaf) not in used
            and path[-1] not in COUNTS
        ]


Way = Callable[[Read], Conversion]  # one of those below, with its settings


def parameters_alone(read: Read, part: str | None, allow_nan: bool) -> Conversion:
    """The parameters alone, for which the optimizer's definition is not needed."""
    states = select_paths(find_states(read.tree), part)
    if len(states) == 1:
        params, params_path = at_path(read.tree, states[0])["params"], (*states[0], "params")
    elif part is None and not any("param_states" in path for path, _ in leaves(read.tree)):
        return Conversion(read, read.tree)
    else:
        chosen = choose_part(read.tree, read.path, part)
        params, params_path = chosen.target, (*chosen.path, "target")
    items = trained_items(params, Paths(params_path))
    Plan(read.path, tuple(items)).check(allow_nan=allow_nan)
    return Conversion(read, params)


def as_template(read: Read, like: PyTree, allow_nan: bool) -> Conversion:
    """Everything as a template has it."""
    plan = plan_restore(like, read)
    plan.check(allow_nan=allow_nan)
    tree = apply_plan(plan, like)
    states = [node for node in jax.tree.leaves(tree, is_leaf=is_state) if is_state(node)]
    steps = {int(number) for state in states for number in np.ravel(state.step)}
    return Conversion(read, tree, step=steps.pop() if len(steps) == 1 else None, moves=plan.moves)


def to_states(
    read: Read,
    definitions: Definitions,
    part: str | None,
    recipe: RecipeKind,
    is_flat: bool,
    allow_nan: bool,
) -> Conversion:
    """A TrainState in the place of each optimizer; of one alone it may be the whole, flat."""
    remaining, states = read.tree, dict[str, Converted]()
    for path, definition in _by_path(read, optimizers(read.tree), definitions).items():
        states[path] = convert_tree(
            remaining, definition, recipe=recipe, part=path or part, allow_nan=allow_nan,
            place=read.path,
        )  # fmt: skip
        remaining = states[path].others
    state = states.get("")
    is_of_t5x = read.format == T5X and set(read.tree) == {"optimizer"}
    if state is not None and (is_flat or is_of_t5x):
        tree, moves = _flat(state, read), [*state.moves]
    else:
        tree = _placed(remaining, states.values(), read.path)
        moves = [m for state in states.values() for m in moved_to(state.part, state.moves)]
    return Conversion(
        read, tree, {path: state.definition for path, state in states.items()},
        None if state is None else int(state.state.step),
        {path: state.choice for path, state in states.items() if state.choice is not None}, moves,
    )  # fmt: skip


def _placed(tree: PyTree, states: Iterable[Converted], place: Path) -> PyTree:
    """The rest of a tree with each state where its optimizer stood, or a state alone."""
    for state in states:
        if not state.part:
            return state.state
        tree = add_optimizer(tree, state.part, state.state, place)
    return with_lists(tree)


def _flat(converted: Converted, read: Read) -> PyTree:
    """A TrainState whose other fields are the entries around the optimizer."""
    state, others = converted.state, converted.others
    fields = {"step": state.step, "params": state.params, "opt_state": state.opt_state}
    others = {n: v for n, v in others.items() if not is_step_again(n, v, int(state.step))}
    if taken := sorted(others.keys() & fields.keys()):
        raise CheckpointError(
            read.path, "other entries whose names are not fields of a TrainState",
            ", ".join(taken), "Leave out --layout flat: entries of these names then stay in place.",
        )  # fmt: skip
    return fields | others


def to_optimizers(
    read: Read, definitions: Definitions, part: str | None, allow_nan: bool
) -> Conversion:
    """An optimizer of `flax.optim` in the place of each TrainState."""
    tree, steps, moves = read.tree, dict[str, int](), list[Move]()
    homes = [*find_states(tree)]
    by_path = _by_path(read, homes, definitions)
    for path, definition in by_path.items():
        home = _one_of(select_paths(homes, path or part), read)
        tree, steps[path], more = back(replace(read, tree=tree), home, definition, part, allow_nan)
        moves += more
    return Conversion(read, tree, by_path, steps.get(""), moves=moves)


def _one_of(homes: list[Names], read: Read) -> Names:
    """The place of the one TrainState to convert."""
    if len(homes) > 1:
        raise CheckpointError(
            read.path, "one TrainState to convert", ", ".join(map("/".join, homes)),
            "Name one: --part NAME, or part= in Python.",
        )  # fmt: skip
    if not homes:
        expected, names = "a TrainState: step, params, opt_state", brief(sorted(read.tree))
        raise CheckpointError(read.path, expected, names, "Is it a legacy checkpoint?")
    return homes[0]


def _by_path(
    read: Read, paths: Iterable[Names], definitions: Definitions
) -> Mapping[str, Definition | None]:
    """The definition of each optimizer to convert by its path; of one alone by ""."""
    if not isinstance(definitions, Mapping):
        return {"": definitions}
    expected = sorted(map("/".join, paths))
    if expected != sorted(definitions):
        raise CheckpointError(
            read.path, f"a definition for each of its optimizers, {', '.join(expected)}",
            ", ".join(sorted(definitions)),
            'Give each with its path: --optimizer "PATH=Adam(...)".',
        )  # fmt: skip
    return definitions
