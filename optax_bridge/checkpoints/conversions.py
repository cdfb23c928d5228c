# pyright: strict, reportMissingTypeStubs=false
"""The ways to convert: from a checkpoint that was read to the tree that is written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

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
    """What becomes of a checkpoint: the tree to write, and how it came about."""

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


class Way(Protocol):
    """A way to convert: choose a planner, check its plan and carry that out."""

    def convert(self, read: Read) -> Conversion:
        """Returns the tree to write; raises CheckpointError if something does not fit."""
        ...


@dataclass(frozen=True)
class ParametersAlone:
    """Keep the parameters alone, for which the optimizer's definition is not needed."""

    part: str | None
    allow_nan: bool

    def convert(self, read: Read) -> Conversion:
        """Returns the parameters; of a file without an optimizer, all of it."""
        states = select_paths(find_states(read.tree), self.part)
        if len(states) == 1:
            params, path = at_path(read.tree, states[0])["params"], (*states[0], "params")
        elif self.part is None and not any("param_states" in p for p, _ in leaves(read.tree)):
            return Conversion(read, read.tree)
        else:
            chosen = choose_part(read.tree, read.path, self.part)
            params, path = chosen.target, (*chosen.path, "target")
        plan = Plan(read.path, tuple(trained_items(params, Paths(path))))
        plan.check(allow_nan=self.allow_nan)
        return Conversion(read, params)


@dataclass(frozen=True)
class AsTemplate:
    """Make everything as a template has it."""

    like: PyTree
    allow_nan: bool

    def convert(self, read: Read) -> Conversion:
        """Returns the template, filled."""
        plan = plan_restore(self.like, read)
        plan.check(allow_nan=self.allow_nan)
        tree = apply_plan(plan, self.like)
        states = [node for node in jax.tree.leaves(tree, is_leaf=is_state) if is_state(node)]
        steps = {int(number) for state in states for number in np.ravel(state.step)}
        step = steps.pop() if len(steps) == 1 else None
        return Conversion(read, tree, step=step, moves=plan.moves)


@dataclass(frozen=True)
class ToStates:
    """Put a TrainState in the place of each optimizer; of one alone it may be the whole, flat."""

    definitions: Definitions
    part: str | None
    recipe: RecipeKind
    is_flat: bool
    allow_nan: bool

    def convert(self, read: Read) -> Conversion:
        """Returns the tree with the states in it."""
        remaining, states = read.tree, dict[str, Converted]()
        for path, definition in _by_path(read, optimizers(read.tree), self.definitions).items():
            states[path] = convert_tree(
                remaining, definition, recipe=self.recipe, part=path or self.part,
                allow_nan=self.allow_nan, place=read.path,
            )  # fmt: skip
            remaining = states[path].others
        state = states.get("")
        is_of_t5x = read.format == T5X and set(read.tree) == {"optimizer"}
        if state is not None and (self.is_flat or is_of_t5x):
            tree, moves = _flat(state, read), [*state.moves]
        else:
            tree = _placed(states.values(), read.path)
            moves = [m for state in states.values() for m in moved_to(state.part, state.moves)]
        return Conversion(
            read, tree, {path: state.definition for path, state in states.items()},
            None if state is None else int(state.state.step),
            {path: state.choice for path, state in states.items() if state.choice is not None},
            moves,
        )  # fmt: skip


def _placed(converted: Iterable[Converted], place: Path) -> PyTree:
    """The tree that was converted, with the state of each optimizer where that stood."""
    *_, last = converted
    tree: PyTree = last.others
    for state in converted:
        if not state.part:
            return state.state
        tree = add_optimizer(tree, state.part, state.state, place)
    return with_lists(tree)


def _flat(converted: Converted, read: Read) -> PyTree:
    """A TrainState whose other fields are what stood around the optimizer."""
    state, others = converted.state, converted.others
    fields = {"step": state.step, "params": state.params, "opt_state": state.opt_state}
    others = {n: v for n, v in others.items() if not is_step_again(n, v, int(state.step))}
    if taken := sorted(others.keys() & fields.keys()):
        raise CheckpointError(
            read.path, "names beside the optimizer that a TrainState has no fields of",
            ", ".join(taken), "Leave --layout flat out: what has these names stays where it is.",
        )  # fmt: skip
    return fields | others


@dataclass(frozen=True)
class ToOptimizers:
    """Put an optimizer of `flax.optim` in the place of each TrainState."""

    definitions: Definitions
    part: str | None
    allow_nan: bool

    def convert(self, read: Read) -> Conversion:
        """Returns the tree with the optimizers in it."""
        tree, steps, moves = read.tree, dict[str, int](), list[Move]()
        homes = [*find_states(tree)]
        by_path = _by_path(read, homes, self.definitions)
        for path, definition in by_path.items():
            home = _one_of(select_paths(homes, path or self.part), read)
            tree, steps[path], more = back(
                replace(read, tree=tree), home, definition, self.part, self.allow_nan
            )
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
        raise CheckpointError(
            read.path, "a TrainState: step, params, opt_state", brief(sorted(read.tree)),
            "Is it a legacy checkpoint?",
        )  # fmt: skip
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
            'Give each with where it stands: --optimizer "PATH=Adam(...)".',
        )  # fmt: skip
    return definitions
