"""The conversion itself: a legacy state dict to the fields of a TrainState, and back."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.definitions import focused, infer_definitions, ungrouped
from optax_bridge.checkpoints.errors import CheckpointError, leaf_name, shown
from optax_bridge.checkpoints.fitting import plain
from optax_bridge.checkpoints.layout import (
    LAYOUT,
    Layout,
    layout_of,
    placed_among,
    renamed,
    with_lists,
)
from optax_bridge.checkpoints.lazy import BLOCK, bytes_of, release
from optax_bridge.checkpoints.recognise import Part, find_parts, find_states, is_array, leaves
from optax_bridge.checkpoints.restore import LegacyFit
from optax_bridge.checkpoints.transformed import (
    filled,
    is_transformation,
    legacy_dict,
    param_states,
    state_template,
)
from optax_bridge.correspondence import default_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import from_legacy, to_legacy, to_optax

_FLOATS = [np.dtype(t) for t in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16)]
_OTHER_OPTIMIZER = (
    "The state is that of another optimizer, or of one with other settings: give the one that the "
    "checkpoint was written with."
)
_BY_AXIS = (
    "Other settings decide which axes are reduced (min_dim_size_to_factor, factored). Where the "
    "axes' names did, as in T5X, say so in Python: TrainState.from_legacy_checkpoint(path, "
    'optimizer_def=optax_bridge.adafactor(..., path_rules={"regex": ("batch", "row", "column")})).'
)


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
    params: Any
    opt_state: Any
    step: np.ndarray
    others: dict[str, Any] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)

    def tree(self, place: Any = "state") -> Any:
        """What was converted, with `step`, `params`, `opt_state` where its optimizer stood."""
        state = {"step": self.step, "params": self.params, "opt_state": self.opt_state}
        part = self.layout.part
        return with_lists(placed_among(self.others, part, state, place)) if part else state

    def flat_tree(self) -> dict[str, Any]:
        """The fields of a TrainState: `step`, `params`, `opt_state` and the others."""
        tree = {"step": self.step, "params": self.params, "opt_state": self.opt_state}
        for name, value in self.others.items():
            if name not in self.layout.steps:
                tree[renamed(name)] = value
        return tree | ({LAYOUT: self.layout.tree()} if self.layout.part else {})


def choose_part(tree: Any, place: Any, name: str | None = None) -> Part:
    """The optimizer to convert.

    Args:
      tree: the checkpoint.
      place: how errors call it.
      name: its path, `models/generator`; None if there is only one.

    Raises:
      CheckpointError: there is none, or none of that name, or several and no name is given.
    """
    parts = find_parts(tree, place)
    fitting = [part for part in parts if name is None or part.name == name.strip("/")]
    if len(fitting) == 1:
        return fitting[0]
    if not parts and any(True for _ in find_states(tree)):
        raise CheckpointError(
            place, "an optimizer of flax.optim", "a TrainState, which is converted already",
            "Restore it with Orbax; --to legacy converts it back.",
        )  # fmt: skip
    if not parts:
        names = shown(sorted(tree)) if isinstance(tree, Mapping) else shown(tree)
        raise CheckpointError(
            place, "an optimizer: {'target', 'state': {'step', 'param_states'}}", names,
            "A file of parameters alone has no state to convert; `optax-bridge inspect` lists it.",
        )  # fmt: skip
    raise CheckpointError(
        place, "one optimizer to convert" if name is None else f"an optimizer at {name!r}",
        f"{', '.join(part.name or '(the whole)' for part in parts)}",
        "Name one: --part NAME, or part= in Python.",
    )  # fmt: skip


def convert_tree(
    tree: Any,
    optimizer_def: Any = None,
    *,
    exact: bool | None = True,
    part: str | None = None,
    allow_nan: bool = False,
    place: Any = "state",
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
    chosen = choose_part(tree, place, part)
    if is_transformation(optimizer_def):
        template = state_template(optimizer_def, chosen.target, place)
        check_parameters(chosen, place)
        wanted = param_states(optimizer_def, template, chosen.target, place)
        path = (*chosen.path, "state", "param_states")
        _check(wanted, chosen.param_states, path, place, template, allow_nan)
        definition, target = optimizer_def, chosen.target
        opt_state: Any = filled(optimizer_def, template, chosen)
    else:
        if optimizer_def is not None:
            optimizer = restore(chosen, optimizer_def, place, allow_nan)
        else:
            optimizer = _inferred(chosen, place, allow_nan)
        definition, target = optimizer.optimizer_def, optimizer.target
        opt_state = _optax_state(chosen, optimizer, exact, place)
    others = _without(tree, chosen.path) if chosen.path else {}
    if chosen.copies is not None and isinstance(others, dict):
        others = {name: _unreplicated(value, chosen.copies) for name, value in others.items()}
    others = others if isinstance(others, dict) else {}
    step = np.asarray(chosen.step, np.int32)
    layout = layout_of(chosen.path, others, chosen.step)
    return Converted(definition, exact, target, opt_state, step, others, layout)


def _optax_state(chosen: Part, optimizer: Any, exact: bool | None, place: Any) -> Any:
    if exact is None:
        return _default_state(chosen, optimizer, place)
    if not exact:  # some fields change sign or dtype on the way to public Optax
        optimizer = loaded(optimizer)
    try:
        _, opt_state = to_optax(optimizer, exact=exact)
    except (ValueError, TypeError) as error:
        if type(error).__name__ == "UnsupportedSetting":
            raise
        raise CheckpointError(
            f"{place}, {leaf_name(chosen.path)}", f"a state of {_name(optimizer.optimizer_def)}",
            str(error), _OTHER_OPTIMIZER,
        ) from error  # fmt: skip
    if not exact:
        _check_kept(chosen, optimizer, opt_state, place)
    return opt_state


def _default_state(chosen: Part, optimizer: Any, place: Any) -> Any:
    """The state of the transformation that `migrate` writes."""
    tx = build(default_recipe(optimizer.optimizer_def))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), optimizer.target)
    opt_state = shape_of_state(tx.init, shapes, place, optimizer.optimizer_def)
    template: Any = SimpleNamespace(params=shapes, tx=tx, opt_state=opt_state)
    fit = LegacyFit(place, {}, {}, keep=False)
    saved = plain(serialization.to_state_dict(optimizer))
    new = fit.opt_state(template, optimizer.target, saved, chosen.step, chosen.path)
    fit.settle()
    return new


def _check_kept(chosen: Part, optimizer: Any, opt_state: Any, place: Any) -> None:
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
                "Its bits would be lost: convert to the exact recipe (no --stock, exact=True).",
            )  # fmt: skip


def loaded(tree: Any) -> Any:
    """A tree whose arrays are NumPy's: those of T5X and Orbax are read only now."""
    return jax.tree.map(
        lambda leaf: (
            np.asarray(leaf) if is_array(leaf) and not isinstance(leaf, jax.Array) else leaf
        ),
        tree,
    )


def restore(
    part: Part, definition: legacy_optim.OptimizerDef, place: Any, allow_nan: bool = False
) -> legacy_optim.Optimizer:
    """The legacy optimizer in memory; every leaf is checked against what the definition makes.

    Raises:
      CheckpointError: leaves are missing, too many, or of another shape or dtype.
    """
    check_parameters(part, place)
    found = part.param_states
    if part.is_grouped:
        found = ungrouped(part, definition, place)
    definition = focused(definition, part, place)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), part.target)
    with _enable_x64() if _is_wide(part.target) else contextlib.nullcontext():
        template = shape_of_state(definition.init_state, shapes, place, definition).param_states
    state_path = (*part.path, "state", "param_states")
    _check(serialization.to_state_dict(template), found, state_path, place, definition, allow_nan)
    restored = serialization.from_state_dict(template, found)
    step = np.asarray(part.step, np.int32)
    state = legacy_optim.OptimizerState(step, restored)
    return legacy_optim.Optimizer(definition, state, part.target)


def shape_of_state(init: Any, params: Any, place: Any, definition: Any) -> Any:
    """The state that a definition or its transformation makes for parameters, without data.

    Raises:
      CheckpointError: it refuses the parameters.
    """
    try:
        return jax.eval_shape(init, params)
    except (ValueError, TypeError, LookupError) as error:
        raise CheckpointError(
            place, f"parameters that {_name(definition)} takes", shown(str(error), 300),
            "Give the optimizer that the checkpoint was written with.",
        ) from error  # fmt: skip


def check_parameters(part: Part, place: Any) -> None:
    """Checks that the target has arrays of floating-point numbers only.

    Raises:
      CheckpointError: it has something else.
    """
    target_path = (*part.path, "target")
    for path, leaf in leaves(part.target):
        where = f"{place}, {leaf_name((*target_path, *path))}"
        if not is_array(leaf):
            raise CheckpointError(where, "an array", shown(leaf), "Parameters must be arrays.")
        if leaf.dtype not in _FLOATS and leaf.dtype.kind != "c":
            raise CheckpointError(
                where, "a parameter in floating point of 16 bits or more", str(leaf.dtype),
                "flax.optim never trained such a leaf; take it out of the optimizer's target.",
            )  # fmt: skip


def _enable_x64() -> Any:
    """JAX's context manager, which has moved."""
    enable: Any = getattr(jax, "enable_x64", None) or jax.experimental.enable_x64  # pyright: ignore
    return enable(True)


def _is_wide(target: Any) -> bool:
    return any(leaf.dtype in (np.float64, np.complex128) for _, leaf in leaves(target))


def _inferred(part: Part, place: Any, allow_nan: bool) -> legacy_optim.Optimizer:
    failures: list[CheckpointError] = []
    for definition in infer_definitions(part, place):
        try:
            return restore(part, definition, place, allow_nan)
        except CheckpointError as error:
            failures.append(error)
    raise failures[0]


def _check(
    expected: Any, found: Any, path: Any, place: Any, definition: Any, allow_nan: bool
) -> None:
    where = f"{place}, {leaf_name(path)}"
    if isinstance(expected, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(expected):
            what = shown(sorted(found)) if isinstance(found, Mapping) else _kind(found)
            raise CheckpointError(
                where, f"{shown(sorted(expected))} ({_name(definition)})", what, _OTHER_OPTIMIZER
            )
        for name, value in expected.items():
            _check(value, found[name], (*path, name), place, definition, allow_nan)
    elif expected is None or not is_array(found):
        if not (expected is None and found is None):
            wanted = "nothing" if expected is None else f"{expected.dtype}{list(expected.shape)}"
            raise CheckpointError(
                where, f"{wanted} ({_name(definition)})", _kind(found), _OTHER_OPTIMIZER
            )
    elif found.shape != expected.shape or found.dtype != expected.dtype:
        raise CheckpointError(
            where, f"{expected.dtype}{list(expected.shape)} ({_name(definition)})", _kind(found),
            _BY_AXIS if path[-1] in ("v_row", "v_col", "v") else _OTHER_OPTIMIZER,
        )  # fmt: skip
    elif not allow_nan and _has_nan(found):
        raise CheckpointError(
            where, "numbers", "NaN", "The training had broken down: take an earlier checkpoint, or "
            "pass --allow-nan (allow_nan=True) to convert it as it is.",
        )  # fmt: skip


def _has_nan(found: Any) -> bool:
    if isinstance(found, jax.Array):  # perhaps over many devices
        return bool(found.size) and bool(jnp.isnan(jnp.min(found)))
    data = bytes_of(found)
    for start in range(0, found.nbytes, BLOCK):  # the least of them: without a mask in memory
        block = data(start, min(start + BLOCK, found.nbytes)).view(found.dtype)
        with np.errstate(invalid="ignore"):  # that of bfloat16 warns where there is NaN
            least = np.min(block)
        if np.isnan(least):
            return True
        if found.nbytes > BLOCK:
            release(found)
    return False


def _kind(found: Any) -> str:
    return f"{found.dtype}{list(found.shape)}" if is_array(found) else shown(found)


def _name(definition: Any) -> str:
    return type(definition).__name__


def _unreplicated(tree: Any, copies: int) -> Any:
    """The first of each leaf's copies, if all leaves have so many and all of them are the same."""
    arrays = [leaf for _, leaf in leaves(tree) if is_array(leaf)]
    if not arrays or not all(leaf.shape[:1] == (copies,) for leaf in arrays):
        return tree
    if any(len({row.tobytes() for row in np.asarray(leaf)}) > 1 for leaf in arrays):
        return tree  # each device has its own: random keys, batch statistics
    return jax.tree.map(lambda leaf: np.asarray(leaf)[0] if is_array(leaf) else leaf, tree)


def _without(tree: Any, path: tuple[str, ...]) -> Any:
    """The tree without what stands at the path, as dicts."""
    if isinstance(tree, list | tuple):
        tree = {str(index): value for index, value in enumerate(tree)}
    rest = {name: value for name, value in tree.items() if name != path[0]}
    below = _without(tree[path[0]], path[1:]) if path[1:] else None
    return rest | ({path[0]: below} if below else {})


def legacy_tree(params: Any, opt_state: Any, step: Any, definition: Any) -> dict[str, Any]:
    """The state dict of the legacy optimizer for a new state, the layout of its checkpoints.

    Args:
      params: the parameters.
      opt_state: the state of the exact or of the stock recipe.
      step: steps taken.
      definition: the definition that the state's transformation corresponds to, or the
        transformation itself; see `convert_tree`.

    Raises:
      CheckpointError: the state is not that of the definition's transformation.
    """
    if is_transformation(definition):
        return legacy_dict(definition, opt_state, params, step)
    try:
        optimizer = to_legacy(definition, params, opt_state, step)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "opt_state", f"the state of {_name(definition)}'s transformation", str(error),
            _OTHER_OPTIMIZER,
        ) from error  # fmt: skip
    return serialization.to_state_dict(optimizer)


def state_templates(definition: legacy_optim.OptimizerDef, params: Any) -> list[tuple[bool, Any]]:
    """Optimizer states without data that may belong to a definition: exact (True), or stock."""
    if is_transformation(definition):
        return [(True, state_template(definition, params, "opt_state"))]
    templates = []
    for exact in (True, False, None):
        try:
            is_mixed = exact is None
            tx = build(default_recipe(definition)) if is_mixed else from_legacy(definition, exact)
        except ValueError:
            continue
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        templates.append((bool(exact), shape_of_state(tx.init, shapes, "params", definition)))
    return templates
