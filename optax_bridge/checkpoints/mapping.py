"""From a legacy state dict to the fields of a `TrainState`."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
from flax import serialization

import legacy_optim
from optax_bridge._definition import check_definition
from optax_bridge.checkpoints.choosing import choose_part
from optax_bridge.checkpoints.definitions import infer_definitions
from optax_bridge.checkpoints.errors import CheckpointError, Place, leaf_name
from optax_bridge.checkpoints.fit import LAYOUT, numbered, plain
from optax_bridge.checkpoints.layout import (
    Layout,
    layout_of,
    placed_among,
    renamed,
    with_lists,
)
from optax_bridge.checkpoints.legacy_optimizer import (
    OTHER_OPTIMIZER,
    check_leaves,
    check_parameters,
    loaded,
    restore,
    shape_of_state,
)
from optax_bridge.checkpoints.recognise import Part, is_array, leaves
from optax_bridge.checkpoints.restore import LegacyFit
from optax_bridge.checkpoints.transformed import (
    Definition,
    filled,
    is_transformation,
    param_states,
    state_template,
)
from optax_bridge.correspondence import default_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import to_legacy, to_optax
from optax_bridge.metadata.trees import OptState, Params, PyTree


@dataclass(frozen=True)
class Converted:
    """A training state without its functions.

    Attributes:
      definition: the legacy definition, or the transformation that was given in its place.
      exact: whether the state is that of the exact recipe, or of the stock one; None: of the one
        that `migrate` writes.
      params: the parameters, nested dicts.
      opt_state: the state of the definition's transformation, in its own NamedTuples.
      step: steps taken.
      others: what the checkpoint held besides the optimizer, by name.
      layout: where it held the optimizer, for the way back.
    """

    definition: Any
    exact: bool | None
    params: Params
    opt_state: OptState
    step: np.ndarray
    others: dict[str, Any] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)

    def tree(self, place: Place = "state") -> PyTree:
        """What was converted, with `step`, `params`, `opt_state` where its optimizer stood."""
        state = {"step": self.step, "params": self.params, "opt_state": self.opt_state}
        part = self.layout.part
        return with_lists(placed_among(self.others, part, state, place)) if part else state

    def flat_tree(self) -> dict[str, PyTree]:
        """The fields of a TrainState: `step`, `params`, `opt_state` and the others."""
        tree = {"step": self.step, "params": self.params, "opt_state": self.opt_state}
        for name, value in self.others.items():
            if name not in self.layout.steps:
                tree[renamed(name)] = value
        return tree | ({LAYOUT: self.layout.tree()} if self.layout.part else {})


def convert_tree(
    tree: PyTree,
    optimizer_def: Definition | None = None,
    *,
    exact: bool | None = True,
    part: str | None = None,
    allow_nan: bool = False,
    place: Place = "state",
) -> Converted:
    """Converts a legacy state dict, or a tree that holds one.

    Args:
      tree: nested dicts as `flax.serialization.to_state_dict` makes them.
      optimizer_def: the definition that made the state; read from the state's fields if None. Or a
        transformation of this package with a state for every parameter: `adafactor` by axis.
      exact: the state of the exact recipe, or of the stock one; see `optax_bridge.from_legacy`.
        None: the one that `migrate` writes, each part of an optimizer for itself.
      part: which optimizer, where there are several: its '/'-joined path.
      allow_nan: whether NaN in the optimizer's state is let through.
      place: how errors call the tree, usually the file.

    Returns:
      The converted state. Leaves of the exact recipe are the very arrays of `tree`.

    Raises:
      CheckpointError: the tree is not that of this optimizer.
      UnsupportedSetting: `exact=False`, and public Optax has no equal.
    """
    if optimizer_def is not None:
        check_definition(optimizer_def, "optimizer_def", or_transformation=True)
    chosen = choose_part(tree, place, part)
    if is_transformation(optimizer_def):
        template = state_template(optimizer_def, chosen.target, place)
        check_parameters(chosen, place)
        wanted = param_states(optimizer_def, template, chosen.target, place)
        path = (*chosen.path, "state", "param_states")
        check_leaves(wanted, chosen.param_states, path, place, template, allow_nan)
        definition, target = optimizer_def, chosen.target
        opt_state: OptState = filled(optimizer_def, template, chosen)
    else:
        if optimizer_def is not None:
            optimizer = restore(chosen, optimizer_def, place, allow_nan)
        else:
            optimizer = _inferred(chosen, place, allow_nan)
        definition, target = optimizer.optimizer_def, optimizer.target
        opt_state = _optax_state(chosen, optimizer, exact, place)
    beside = _without(tree, chosen.path) if chosen.path else {}
    others = {}
    if isinstance(beside, dict):
        others = {name: _unreplicated(value, chosen.copies) for name, value in beside.items()}
    step = np.asarray(chosen.step, np.int32)
    layout = layout_of(chosen.path, others, chosen.step)
    return Converted(definition, exact, target, opt_state, step, others, layout)


def _optax_state(
    chosen: Part, optimizer: legacy_optim.Optimizer, exact: bool | None, place: Place
) -> PyTree:
    if exact is None:
        return _default_state(chosen, optimizer, place)
    if not exact:  # some fields change sign or dtype on the way to public Optax
        optimizer = loaded(optimizer)
    try:
        _, opt_state = to_optax(optimizer, exact=exact)
    except (ValueError, TypeError) as error:
        if type(error).__name__ == "UnsupportedSetting":
            raise
        name = type(optimizer.optimizer_def).__name__
        raise CheckpointError(
            f"{place}, {leaf_name(chosen.path)}", f"a state of {name}",
            str(error), OTHER_OPTIMIZER,
        ) from error  # fmt: skip
    if not exact:
        _check_kept(chosen, optimizer, opt_state, place)
    return opt_state


def _default_state(chosen: Part, optimizer: legacy_optim.Optimizer, place: Place) -> PyTree:
    """The state of the transformation that `migrate` writes."""
    tx = build(default_recipe(optimizer.optimizer_def))
    opt_state = shape_of_state(tx.init, optimizer.target, place, optimizer.optimizer_def)
    template: Any = SimpleNamespace(params=optimizer.target, tx=tx, opt_state=opt_state)
    fit = LegacyFit(place, {}, {}, keep=False)
    saved = plain(serialization.to_state_dict(optimizer))
    new = fit.opt_state(template, optimizer.target, saved, chosen.step, chosen.path)
    fit.settle()
    return new


def _check_kept(
    chosen: Part, optimizer: legacy_optim.Optimizer, opt_state: OptState, place: Place
) -> None:
    """Checks that public Optax keeps the moments in dtypes that hold them."""
    definition, step = optimizer.optimizer_def, optimizer.state.step
    again = jax.eval_shape(
        lambda target, state: to_legacy(definition, target, state, step).state,
        optimizer.target, opt_state,
    )  # fmt: skip
    after = dict(leaves(serialization.to_state_dict(again.param_states)))
    for path, leaf in leaves(serialization.to_state_dict(optimizer.state.param_states)):
        if is_array(leaf) and leaf.size and after[path].dtype != leaf.dtype:
            raise CheckpointError(
                f"{place}, {leaf_name((*chosen.path, 'state', 'param_states', *path))}",
                f"a dtype that public Optax keeps, {after[path].dtype} here", str(leaf.dtype),
                "Its bits would be lost: convert to the exact recipe (--recipe exact, exact=True).",
            )  # fmt: skip


def _inferred(part: Part, place: Place, allow_nan: bool) -> legacy_optim.Optimizer:
    failures: list[CheckpointError] = []
    for definition in infer_definitions(part, place):
        try:
            return restore(part, definition, place, allow_nan)
        except CheckpointError as error:
            failures.append(error)
    raise failures[0]


def _unreplicated(tree: PyTree, copies: int | None) -> PyTree:
    """The first of each leaf's copies, if all leaves have so many and all of them are the same."""
    arrays = [leaf for _, leaf in leaves(tree) if is_array(leaf)]
    if not arrays or not all(leaf.shape[:1] == (copies,) for leaf in arrays):
        return tree
    if any(len({row.tobytes() for row in np.asarray(leaf)}) > 1 for leaf in arrays):
        return tree  # each device has its own: random keys, batch statistics
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0] if is_array(leaf) else leaf, tree)


def _without(tree: PyTree, path: tuple[str, ...]) -> PyTree:
    """The tree without what stands at the path, as dicts."""
    tree = numbered(tree)
    rest = {name: value for name, value in tree.items() if name != path[0]}
    below = _without(tree[path[0]], path[1:]) if path[1:] else None
    return rest | ({path[0]: below} if below else {})
