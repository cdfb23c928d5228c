# pyright: strict, reportMissingTypeStubs=false
"""The ways to convert: from a checkpoint that was read to the tree that is written."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import jax
import numpy as np

import legacy_optim
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.layout import is_step_again
from optax_bridge.checkpoints.locate import (
    at_path,
    choose_part,
    find_states,
    optimizers,
    select_paths,
)
from optax_bridge.checkpoints.moves import Move, Plan, moved_to
from optax_bridge.checkpoints.read import Read
from optax_bridge.checkpoints.restore import apply_plan, plan_restore
from optax_bridge.checkpoints.same_names import Paths, trained_items
from optax_bridge.checkpoints.to_legacy import back
from optax_bridge.checkpoints.to_train_state import Converted, convert_tree, tree_of
from optax_bridge.checkpoints.trees import is_state, state_dict
from optax_bridge.correspondence import Choice
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.states import COUNTS

Definition = legacy_optim.OptimizerDef


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


def to_state(
    read: Read,
    definition: Definition | None,
    part: str | None,
    recipe: RecipeKind,
    is_flat: bool,
    allow_nan: bool,
) -> Conversion:
    """A TrainState in the place of one optimizer; flat, it is the whole."""
    state = convert_tree(
        read.tree, definition, recipe=recipe, part=part, allow_nan=allow_nan, place=read.path
    )
    # Every checkpoint of T5X has that level.
    is_flat = is_flat or set(read.tree) == {read.level}
    tree = _flat(state, read) if is_flat else tree_of([state], read.path)
    return Conversion(
        read, tree, {"": state.definition}, int(state.step),
        {"": state.choice} if state.choice else {},
        moved_to(() if is_flat else state.part, state.moves),
    )  # fmt: skip


def _flat(state: Converted, read: Read) -> PyTree:
    """A TrainState whose other fields are what stood around the optimizer."""
    others, fields = state.others, state.state()
    others = {n: v for n, v in others.items() if not is_step_again(n, v, int(state.step))}
    if taken := sorted(others.keys() & fields.keys()):
        raise CheckpointError(
            read.path, "names beside the optimizer that a TrainState has no fields of",
            ", ".join(taken), "Leave --layout flat out: what has these names stays where it is.",
        )  # fmt: skip
    return fields | others


def to_states(
    read: Read, definitions: Mapping[str, Definition], recipe: RecipeKind, allow_nan: bool
) -> Conversion:
    """A TrainState in the place of each optimizer."""
    _check_names(read, optimizers(read.tree), definitions)
    others, states = read.tree, dict[str, Converted]()
    for path, definition in definitions.items():
        states[path] = convert_tree(
            others, definition, recipe=recipe, part=path, allow_nan=allow_nan, place=read.path
        )
        others = states[path].others
    choices = {path: state.choice for path, state in states.items() if state.choice is not None}
    moves = [m for state in states.values() for m in moved_to(state.part, state.moves)]
    tree = tree_of([*states.values()], read.path)
    return Conversion(read, tree, definitions, choices=choices, moves=moves)


def to_optimizer(
    read: Read, definition: Definition | None, part: str | None, allow_nan: bool
) -> Conversion:
    """An optimizer of `flax.optim` in the place of one TrainState."""
    tree, step, moves = back(read, definition, part, allow_nan)
    return Conversion(read, tree, {"": definition}, step, moves=moves)


def to_optimizers(read: Read, definitions: Mapping[str, Definition], allow_nan: bool) -> Conversion:
    """An optimizer of `flax.optim` in the place of each TrainState."""
    _check_names(read, find_states(read.tree), definitions)
    tree, moves = read.tree, list[Move]()
    for path, definition in definitions.items():
        tree, _, more = back(replace(read, tree=tree), definition, path, allow_nan)
        moves += more
    return Conversion(read, tree, definitions, moves=moves)


def _check_names(read: Read, paths: Iterable[Names], definitions: Mapping[str, Definition]) -> None:
    """Refuses definitions that are not those of a checkpoint's optimizers, by their places."""
    expected = sorted(map("/".join, paths))
    if expected != sorted(definitions):
        raise CheckpointError(
            read.path, f"a definition for each of its optimizers, {', '.join(expected)}",
            ", ".join(sorted(definitions)),
            'Give each with where it stands: --optimizer "PATH=Adam(...)".',
        )  # fmt: skip
