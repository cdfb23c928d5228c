# pyright: strict, reportMissingTypeStubs=false
"""From one checkpoint to another: reads, maps the state, writes, reads again and compares."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import numpy as np

import legacy_optim
from optax_bridge._atomic import remove_abandoned
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.checkpoints.layout import LAYOUT
from optax_bridge.checkpoints.locate import (
    at_path,
    choose_part,
    find_parts,
    find_states,
    select_paths,
)
from optax_bridge.checkpoints.moves import Move, Plan, moved_to
from optax_bridge.checkpoints.read import Read, read_checkpoint, written_as
from optax_bridge.checkpoints.restore import apply_plan, plan_restore
from optax_bridge.checkpoints.same_names import Paths, trained_items
from optax_bridge.checkpoints.to_legacy import back
from optax_bridge.checkpoints.to_train_state import Converted, convert_tree, tree_of
from optax_bridge.checkpoints.trees import is_state, plain, state_dict
from optax_bridge.checkpoints.write import Progress, write
from optax_bridge.correspondence import Choice
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.states import COUNTS

Definition = legacy_optim.OptimizerDef
_LEGACY = "msgpack"  # what programs of flax.optim read
KEEP, FLAT = "keep", "flat"


@dataclass(frozen=True)
class Conversion:
    """The result of `convert_file`."""

    read: Read
    tree: PyTree
    definition: PyTree = None
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
            and LAYOUT not in path
        ]


def convert_file(
    source: Path,
    destination: Path,
    optimizer_def: Definition | Mapping[str, Definition] | None = None,
    *,
    to_legacy: bool = False,
    file_format: str = "orbax",
    params_only: bool = False,
    recipe: RecipeKind = "auto",
    layout: str = KEEP,
    like: PyTree = None,
    part: str | None = None,
    allow_nan: bool = False,
    verify: bool = True,
    force: bool = False,
    progress: Progress | None = None,
    moved: Callable[[Read, PyTree], Read] | None = None,
    dry_run: bool = False,
) -> Conversion:
    """Converts a checkpoint; the source is only read.

    Args:
      source: see `read_checkpoint`.
      destination: a file for msgpack, a folder for Orbax.
      optimizer_def: the legacy definition; read from the state's fields if None. Of several
        optimizers, the '/'-joined path of each -> its definition.
      to_legacy: from a TrainState to an `Optimizer`, which is Flax msgpack always.
      file_format: what to write, one of `read.writable()`.
      params_only: write the parameters alone.
      recipe: whose state; see `correspondence.choose_recipe`.
      layout: "keep": what stood around the optimizer stays where it stood, so that the program's
        own restore finds it; "flat": all of it as fields of one TrainState.
      like: what the program saves, a template that says what every optimizer becomes.
      part: which optimizer, where there are several; on the way back, where it is to stand.
      allow_nan: let NaN and infinities in parameters and moments through.
      verify: read again what was written, and compare every leaf.
      force: replace the destination if it is a checkpoint.
      progress: called with the phase, the bytes done and the bytes in all.
      dry_run: check everything, and write nothing.
      moved: takes what was read, of another origin, and `like`; lays it out as `flax.optim` did.

    Raises:
      CheckpointError: see the readers; nothing is left at the destination then.
      ValueError: no such format is written, or the options do not go together.
    """
    file_format = _LEGACY if to_legacy else file_format
    request = _Request(optimizer_def, to_legacy, params_only, recipe, layout, like, part, allow_nan)
    request.check()
    written_as(file_format)
    remove_abandoned(destination.absolute().parent)  # also where nothing can be converted
    read = read_checkpoint(source)
    read = read if moved is None else moved(read, like)
    _check_apart(read.path, destination)
    conversion = request.conversion(read)
    if not dry_run:
        write(destination, conversion.tree, file_format, force, verify, progress)
    return conversion


@dataclass(frozen=True)
class _Request:
    """The options of `convert_file` that say what a checkpoint becomes."""

    optimizer_def: Definition | Mapping[str, Definition] | None
    to_legacy: bool
    params_only: bool
    recipe: RecipeKind
    layout: str
    like: PyTree
    part: str | None
    allow_nan: bool

    def check(self) -> None:
        """Refuses options that do not go together."""
        is_of_one = self.params_only or self.part is not None
        if isinstance(self.optimizer_def, Mapping) and (is_of_one or self.layout == FLAT):
            raise ValueError(
                "optimizers by their paths are all converted where they stand: leave params_only, "
                "part and layout='flat' out"
            )
        if self.like is not None and self.layout == FLAT:
            raise ValueError("like says what everything becomes: leave layout='flat' out")
        if self.layout not in (KEEP, FLAT):
            raise ValueError(f"layout: expected {KEEP!r} or {FLAT!r}, found {self.layout!r}")

    def conversion(self, read: Read) -> Conversion:
        """Makes the tree to write."""
        if self.params_only:
            return Conversion(read, _parameters(read, self.part, self.allow_nan))
        if isinstance(self.optimizer_def, Mapping) and self.like is None:
            each = self._back_each if self.to_legacy else self._convert_each
            return each(read, self.optimizer_def)
        definition: PyTree = self.optimizer_def
        if self.to_legacy:
            tree, step, moves = back(read, definition, self.part, self.allow_nan)
            return Conversion(read, tree, definition, step, moves=moves)
        if self.like is not None:
            plan = plan_restore(self.like, read.tree, read.path)
            plan.check(allow_nan=self.allow_nan)
            tree = apply_plan(plan, self.like)
            return Conversion(read, tree, definition, _common_step(tree), moves=plan.moves)
        converted = self._convert(read, read.tree, definition, self.part)
        # Every checkpoint of T5X has that level; the way back is Flax's.
        of_level = set(read.tree) == {read.level}
        flat = self.layout == FLAT or of_level
        tree = converted.flat_tree() if flat else tree_of([converted], read.path)
        if of_level:
            del tree[LAYOUT]
        choices = {"": converted.choice} if converted.choice else {}
        moves = moved_to(() if flat else converted.layout.part, converted.moves)
        return Conversion(read, tree, converted.definition, int(converted.step), choices, moves)

    def _convert_each(self, read: Read, definitions: Mapping[str, Definition]) -> Conversion:
        """Puts a TrainState in place of each of a checkpoint's optimizers."""
        _check_names(read, [part.name for part in find_parts(read.tree, read.path)], definitions)
        tree, states = read.tree, dict[str, Converted]()
        for path, definition in definitions.items():
            states[path] = self._convert(read, tree, definition, path)
            tree = states[path].others
        choices = {path: state.choice for path, state in states.items() if state.choice is not None}
        moves = [m for state in states.values() for m in moved_to(state.layout.part, state.moves)]
        tree = tree_of([*states.values()], read.path)
        return Conversion(read, tree, definitions, choices=choices, moves=moves)

    def _back_each(self, read: Read, definitions: Mapping[str, Definition]) -> Conversion:
        """Puts an optimizer of `flax.optim` in place of each of a checkpoint's TrainStates."""
        _check_names(read, map("/".join, find_states(read.tree)), definitions)
        tree, moves = read.tree, list[Move]()
        for path, definition in definitions.items():
            tree, _, more = back(replace(read, tree=tree), definition, path, self.allow_nan)
            moves += more
        return Conversion(read, tree, definitions, moves=moves)

    def _convert(
        self, read: Read, tree: PyTree, definition: Definition | None, part: str | None
    ) -> Converted:
        return convert_tree(
            tree, definition, recipe=self.recipe, part=part, allow_nan=self.allow_nan,
            place=read.path,
        )  # fmt: skip


def _check_names(read: Read, names: Iterable[str], definitions: Mapping[str, Definition]) -> None:
    """Refuses definitions that are not those of a checkpoint's optimizers, by their places."""
    expected = sorted(names)
    if expected != sorted(definitions):
        raise CheckpointError(
            read.path, f"a definition for each of its optimizers, {', '.join(expected)}",
            ", ".join(sorted(definitions)),
            'Give each with where it stands: --optimizer "PATH=Adam(...)".',
        )  # fmt: skip


def _common_step(tree: PyTree) -> int | None:
    """The steps that all TrainStates of a tree have taken; None if those differ."""
    states = [each for each in jax.tree.leaves(tree, is_leaf=is_state) if is_state(each)]
    steps = {int(number) for state in states for number in np.ravel(state.step)}
    return steps.pop() if len(steps) == 1 else None


def _check_apart(source: Path, destination: Path) -> None:
    # Unlike Path.resolve, this takes links in a circle.
    one, other = (Path(os.path.realpath(path)) for path in (source, destination))
    if one == other or one in other.parents or other in one.parents:
        raise CheckpointError(
            destination, "another place than the source", f"the source, {source}",
            "The source is only read, never replaced: name another destination.",
        )  # fmt: skip


def _parameters(read: Read, part: str | None, allow_nan: bool) -> PyTree:
    """The parameters alone, for which the optimizer's definition is not needed."""
    states = select_paths(find_states(read.tree), part)
    if len(states) == 1:
        params, params_path = at_path(read.tree, states[0])["params"], (*states[0], "params")
    elif part is None and not any("param_states" in path for path, _ in leaves(read.tree)):
        return read.tree
    else:
        chosen = choose_part(plain(read.tree), read.path, part)
        params, params_path = chosen.target, (*chosen.path, "target")
    items = trained_items(params, Paths(params_path))
    Plan(read.path, tuple(items)).check(allow_nan=allow_nan)
    return params
