"""From a legacy optimizer, in a checkpoint or in memory, to a `TrainState`."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.training.train_state import TrainState as FlaxTrainState

import legacy_optim
from optax_bridge.checkpoints.definitions import (
    Definition,
    check_axes_of_t5x,
    focus_of,
    shape_of_state,
)
from optax_bridge.checkpoints.devices import placed
from optax_bridge.checkpoints.errors import CheckpointError, LeftOverWarning, Place, warn
from optax_bridge.checkpoints.inference import infer_definitions
from optax_bridge.checkpoints.layout import (
    entries_around,
    match_fields,
    without,
    without_copies,
)
from optax_bridge.checkpoints.legacy_to_state import OF_THE_OPTIMIZER, plan_of_part
from optax_bridge.checkpoints.locate import Part, choose_part, optimizers, shapes_of
from optax_bridge.checkpoints.moves import Move
from optax_bridge.checkpoints.trees import (
    fill_outline,
    is_state,
    listed_leaves,
    refill,
    state_dict_of,
)
from optax_bridge.correspondence import Choice, UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.choice import RecipeKind
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import build_choice
from optax_bridge.metadata.paths import Names
from optax_bridge.metadata.trees import PyTree

State = TypeVar("State")  # of a `TrainState`, which knows this module, not the other way round
_NO_DECAY = (
    "ema_params are restored but no longer updated: no checkpoint has the decay of an average. "
    "Pass ema_decay= to continue the average."
)
_OTHER_FIELDS = (
    "FullTrainState has fields for statistics, keys, averages and scales; for any other, add a "
    "field of that name in a subclass."
)
_NO_ENTRIES = OF_THE_OPTIMIZER | {"apply_fn", "tx", "ema_decay"}


@dataclass(frozen=True)
class Converted:
    """A training state, and the entries around the optimizer that it was."""

    state: FlaxTrainState
    definition: Definition
    choice: Choice | None
    others: dict[str, PyTree]
    part: Names  # where the optimizer stood
    moves: Sequence[Move]


def convert_tree(
    tree: PyTree,
    optimizer_def: Definition | None = None,
    *,
    exact: bool = True,
    recipe: RecipeKind | None = None,
    part: str | None = None,
    allow_nan: bool = False,
    place: Place = "state",
) -> Converted:
    """Converts a `plain` legacy state dict, or a tree that holds one."""
    chosen = choose_part(tree, place, part)
    possible = [optimizer_def] if optimizer_def is not None else infer_definitions(chosen)
    errors: list[CheckpointError] = []
    for definition in possible:
        try:
            return _convert(tree, chosen, definition, exact, recipe, allow_nan)
        except CheckpointError as error:
            errors.append(error)
    raise errors[0]


def _convert(
    tree: PyTree,
    part: Part,
    definition: Definition,
    exact: bool,
    recipe: RecipeKind | None,
    allow_nan: bool,
) -> Converted:
    """Converts one part of a checkpoint by its definition."""
    choice, name = None, "the transformation"
    if isinstance(definition, legacy_optim.OptimizerDef):
        name = type(definition).__name__
        definition = focus_of(definition, part.rows)
        kind = recipe or ("exact" if exact else "optax")
        choice = choose_recipe(definition, kind, part.dtypes)
        if recipe is None and choice.reason and not exact:
            raise UnsupportedSetting(f"{choice.reason}. Take the exact transformation: exact=True.")
        tx = build_choice(choice) if recipe is None else build(choice.call)
    else:
        tx = definition
    opt_state = shape_of_state(tx.init, part.target, part.place, name)
    if choice is None:
        check_axes_of_t5x(tx, opt_state, part.target, part.place)
    state_class: Any = FlaxTrainState
    template = state_class(np.int32(0), None, shapes_of(part.target), tx, opt_state)
    plan = plan_of_part(part, template, name)
    plan.check(allow_nan=allow_nan)
    state = refill(template, fill_outline(state_dict_of(template), plan.apply()))
    others = without(tree, part.path) if part.path else {}
    others = {name: without_copies(value, part.copies) for name, value in others.items()}
    return Converted(state, definition, choice, others, part.path, plan.moves)


def train_state(
    cls: type[State],
    converted: Converted,
    apply_fn: Callable[..., Any] | None = None,
    sharding: PyTree = None,
    fields: dict[str, PyTree] | None = None,
    part: str | None = None,
    place: Place = "state",
) -> State:
    """A TrainState whose leaves are put on their devices one after another."""
    state_class: Any = cls
    fields = fields or {}
    values, unused = _collections(state_class, converted, sharding, part)
    if scale := values.pop("dynamic_scale", None):  # its settings are in no checkpoint
        template = fields.get("dynamic_scale") or legacy_optim.DynamicScale()
        scale = serialization.from_state_dict(template, dict(scale))
        fields = fields | {"dynamic_scale": scale}
    state = converted.state
    tree: dict[str, PyTree] = {"params": state.params, "opt_state": state.opt_state}
    tree |= {name: value for name, value in values.items() if name not in fields}
    arrays = placed(tree, sharding)
    if "ema_params" in tree and fields.get("ema_decay") is None:
        warn(LeftOverWarning(f"{place}: {_NO_DECAY}"))
    if unused:
        found = f"{listed_leaves(unused)} left over: {state_class.__name__} has no such field"
        warn(LeftOverWarning(f"{place}: {found}. {_OTHER_FIELDS}"))
    step = jnp.asarray(state.step, jnp.int32)
    return state_class.create(apply_fn=apply_fn, tx=state.tx, step=step, **(arrays | fields))


def _collections(
    cls: PyTree, converted: Converted, sharding: PyTree, part: str | None
) -> tuple[dict[str, PyTree], list[Names]]:
    """The other fields that the checkpoint fills, and the leaves left over."""
    names = {field.name for field in dataclasses.fields(cls)} - _NO_ENTRIES
    if is_state(sharding):
        names = {name for name in names if getattr(sharding, name, None) is not None}
    entries = entries_around(converted.others, converted.part)
    if part is not None:  # the caller knows that there are others
        entries = {path: v for path, v in entries.items() if not any(True for _ in optimizers(v))}
    return match_fields(names, entries, converted.state.params, int(converted.state.step))
