"""From a legacy optimizer to its Optax equal and back: transformation, state and step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

import legacy_optim
from optax_bridge._definition import check_definition, check_one_copy, check_optimizer
from optax_bridge._likeness import check_like
from optax_bridge.correspondence import entry_of, recipe_of
from optax_bridge.correspondence.entry import Entry, StateField, UnsupportedSetting, Verdict
from optax_bridge.correspondence.recipe import build
from optax_bridge.exact.boxed import with_axis_metadata
from optax_bridge.exact.leaf_rule import difference
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.axis_metadata import unboxed
from optax_bridge.metadata.trees import Leaf, OptState, Params, PyTree, Updates


def from_legacy(
    definition: legacy_optim.OptimizerDef, exact: bool = True
) -> optax.GradientTransformationExtraArgs:
    """The Optax equal of a legacy optimizer definition.

        >>> tx = from_legacy(legacy_optim.Adam(1e-3, weight_decay=0.1))
        >>> tx.hyper_params["weight_decay"]
        0.1
        >>> from_legacy(legacy_optim.Adagrad(0.1), exact=False)
        Traceback (most recent call last):
        ...
        optax_bridge.correspondence.entry.UnsupportedSetting: Adagrad: the nearest recipe of ...

    Args:
      definition: any definition, `MultiOptimizer`, `WeightNorm` and classes of one's own included.
      exact: this project's transformation in legacy arithmetic. Driven by
        `TrainState.apply_gradients` it is bit for bit the legacy trajectory. False: public Optax,
        where that is identical up to rounding.

    Returns:
      The transformation.

    Raises:
      UnsupportedSetting: `exact=False`, and public Optax has no equal for these settings.
    """
    check_definition(definition, "definition")
    recipe, claim = recipe_of(definition, exact)
    if claim.verdict is Verdict.DIFFERENT:
        raise UnsupportedSetting(
            f"{type(definition).__name__}: the nearest recipe of public Optax is another optimizer "
            f"({claim.why}). Use from_legacy(definition), which is exact."
        )
    return optax.with_extra_args_support(build(recipe))


def wrap_definition(definition: legacy_optim.OptimizerDef) -> ExactTransformation:
    """A transformation around a definition whose class has no entry: one of the user's own.

        >>> class Halving(legacy_optim.GradientDescent):
        ...     def apply_param_gradient(self, step, hyper_params, param, state, grad):
        ...         return param / 2, state
        >>> tx = wrap_definition(Halving(0.1))
        >>> state = optax_bridge.TrainState.create(apply_fn=None, params=jnp.ones(()), tx=tx)
        >>> state.apply_gradients(grads=jnp.ones(())).params.item()
        0.5

    Args:
      definition: an instance of a subclass of `OptimizerDef`.

    Returns:
      The transformation; its state is what the definition's `init_state` makes, an `OptimizerState`
      as a rule, its per-call arguments are the definition's hyper-parameters. Of a subclass of
      `MultiOptimizer` these go to every group, and `hyper_params=[...]` is the list of all groups',
      which `tx.hyper_params["hyper_params"]` holds as the definition does.
    """
    check_definition(definition, "definition")
    own = _Wrapped(definition)
    values = _hyper_param_values(definition.hyper_params)
    tx = ExactTransformation(definition.init_state, own.update, own.step, values)
    return with_axis_metadata(tx)


def _hyper_param_values(hyper_params: Any) -> dict[str, Any]:
    """Returns what a step may override, by name; None for what each group has a value of."""
    if isinstance(hyper_params, list | tuple):
        names = dict.fromkeys(name for group in hyper_params for name in _hyper_param_values(group))
        return {**names, "hyper_params": hyper_params}
    fields = getattr(hyper_params, "__dataclass_fields__", {})
    return {name: getattr(hyper_params, name) for name in fields}


@dataclass(frozen=True, eq=False)
class _Wrapped:
    definition: legacy_optim.OptimizerDef

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Any
    ) -> tuple[Params, OptState]:
        hyper_params = self.definition.update_hyper_params(**extra)
        return self.definition.apply_gradient(hyper_params, params, state, grads)

    def update(
        self, grads: Updates, state: OptState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError(f"{type(self.definition).__name__}: update(grads, state, params)")
        names = _hyper_param_values(self.definition.hyper_params)
        own = {name: value for name, value in extra.items() if name in names}
        new_params, new_state = self.step(grads, state, params, **own)
        return difference(new_params, params, grads), new_state


def to_optax(
    optimizer: legacy_optim.Optimizer, exact: bool = True
) -> tuple[optax.GradientTransformationExtraArgs, Any]:
    """The transformation of a legacy optimizer, and its state in mid-training.

    Args:
      optimizer: parameters, state and step are read from it.
      exact: see `from_legacy`.

    Returns:
      The transformation and the state; every `count` in it is the optimizer's step.

    Raises:
      ValueError: the optimizer is replicated, or its state does not fit its definition.
    """
    check_optimizer(optimizer)
    definition = optimizer.optimizer_def
    tx = from_legacy(definition, exact)
    template = jax.eval_shape(tx.init, optimizer.target)  # only its structure: nothing is allocated
    legacy_state = optimizer.state
    if entry_of(definition) is None:
        return tx, legacy_state
    plain, params = unboxed(template), unboxed(optimizer.target)
    rows = jax.tree.structure(optimizer.target).flatten_up_to(legacy_state.param_states)
    param_states = jax.tree.unflatten(jax.tree.structure(params), rows)
    state = _filled(definition, plain, params, param_states, legacy_state.step)
    _check_shapes(definition, plain, state)
    state = jax.tree.unflatten(jax.tree.structure(template), jax.tree.leaves(state))
    if not exact:  # Optax may keep another dtype: Adafactor's statistics are in the parameter's
        state = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), state, template)
    return tx, state


def to_legacy(
    definition: legacy_optim.OptimizerDef, params: Params, opt_state: OptState, step: Any
) -> legacy_optim.Optimizer:
    """The legacy optimizer for a state of the transformation that corresponds to its definition.

    Args:
      definition: the legacy definition.
      params: the parameters.
      opt_state: the state of the exact or of the stock recipe.
      step: steps taken.

    Returns:
      The optimizer, ready for its next `apply_gradient`.

    Raises:
      ValueError: the state is not that of this definition's transformation.
    """
    check_definition(definition, "definition")
    check_one_copy(step)
    step = jnp.asarray(step, jnp.int32)
    if entry_of(definition) is None:
        kind = _state_class(definition, params)
        if not isinstance(opt_state, kind):
            raise _not_its_state(definition, kind.__name__, opt_state)
        return legacy_optim.Optimizer(definition, opt_state, params)
    plain = _extracted(definition, unboxed(opt_state), unboxed(params))
    rows = jax.tree.structure(unboxed(params)).flatten_up_to(plain)
    param_states = jax.tree.unflatten(jax.tree.structure(params), rows)
    return legacy_optim.Optimizer(
        definition, legacy_optim.OptimizerState(step, param_states), params
    )


def _filled(
    definition: legacy_optim.OptimizerDef,
    template: OptState,
    params: Params,
    param_states: Any,
    step: Any,
) -> OptState:
    """The new state: `template` with the legacy values in it."""
    entry = _entry(definition)
    treedef = jax.tree.structure(params)
    rows = treedef.flatten_up_to(param_states)
    own, values = {}, {}
    for field in entry.state:
        column = [getattr(row, field.legacy) for row in rows]
        empty = bool(column) and all(value is None for value in column)
        tree = own[field.legacy] = None if empty else treedef.unflatten(column)
        values[field.exact] = tree
        if tree is not None:
            values.update(dict.fromkeys(field.stock, _signed(field, tree)))
    state = _replaced(template, values, step)
    if entry.parts is None:
        return state
    inner = zip(
        entry.parts.definitions(definition),
        entry.parts.states(template),
        entry.parts.params(definition, params, own),
        entry.parts.param_states(definition, params, param_states),
        strict=True,
    )
    return entry.parts.with_states(state, [_filled(*each, step) for each in inner])


def _extracted(definition: legacy_optim.OptimizerDef, state: OptState, params: Params) -> Any:
    """The legacy parameter states that a new state stands for, a tree like `params`."""
    entry = _entry(definition)
    if entry.parts is not None and type(state).__name__ != entry.parts.state_type:
        raise _not_its_state(definition, entry.parts.state_type, state)
    leaves, treedef = jax.tree.flatten(params)
    values = dict(reversed(_fields(state)))  # of fields that occur again within it, the outermost
    own = {}
    for field in entry.state:
        stock = next((name for name in field.stock if name in values), None)
        if field.exact in values:
            own[field.legacy] = values[field.exact]
        elif stock is not None:
            own[field.legacy] = _signed(field, values[stock])
        # Else a placeholder that Optax has no field for: the initial value stays.
    if entry.state and not own:
        wanted = " or ".join((entry.state[0].exact, *entry.state[0].stock))
        raise _not_its_state(definition, wanted, state)
    if entry.parts is None and not entry.state and _has_moments(values, leaves, treedef):
        raise _not_its_state(definition, "nothing for each parameter", state)
    if entry.parts is not None:
        inner = zip(
            entry.parts.definitions(definition),
            entry.parts.states(state),
            entry.parts.params(definition, params, own),
            strict=True,
        )
        return entry.parts.joined(definition, params, own, [_extracted(*each) for each in inner])
    for name, tree in own.items():
        if tree is not None:
            remedy = "Pass the parameters that the state was made for."
            check_like(tree, params, f"opt_state's {name}", remedy)
    columns = {
        name: [None] * len(leaves) if tree is None else treedef.flatten_up_to(tree)
        for name, tree in own.items()
    }
    rows = []
    for index, leaf in enumerate(leaves):
        row = definition.init_param_state(leaf)
        changed = {name: column[index] for name, column in columns.items()}
        rows.append(row.replace(**changed) if changed else row)
    return treedef.unflatten(rows)


def _fields(state: OptState) -> list[tuple[str, Any]]:
    """All `Type.field` values of the NamedTuples within a state, outermost first."""
    if not isinstance(state, tuple):
        return []
    names = getattr(state, "_fields", ())
    own = [(f"{type(state).__name__}.{name}", getattr(state, name)) for name in names]
    return [*own, *(pair for item in state for pair in _fields(item))]


def _has_moments(values: Mapping[str, PyTree], leaves: Sequence[Leaf], treedef: Any) -> bool:
    """Whether some field has an array for each parameter; scalars may be counts."""
    shapes = [jnp.shape(leaf) for leaf in leaves]
    return any(shapes) and any(
        jax.tree.structure(tree) == treedef
        and list(map(jnp.shape, jax.tree.leaves(tree))) == shapes
        for tree in values.values()
    )


def _replaced(state: OptState, values: dict[str, Any], step: Any) -> Any:
    """A state with some `Type.field`s replaced, and every `count` set to the step."""
    names = getattr(state, "_fields", None)
    if names is None:
        is_tuple = isinstance(state, tuple)
        return tuple(_replaced(item, values, step) for item in state) if is_tuple else state
    changes = {}
    for name in names:
        key, old = f"{type(state).__name__}.{name}", getattr(state, name)
        if name == "count":
            changes[name] = jnp.asarray(step, old.dtype)
        else:
            changes[name] = values[key] if key in values else _replaced(old, values, step)
    return state._replace(**changes)


def _signed(field: "StateField", tree: PyTree) -> PyTree:
    return tree if field.stock_sign == 1 else jax.tree.map(lambda x: -jnp.asarray(x), tree)


def _entry(definition: legacy_optim.OptimizerDef) -> "Entry":
    entry = entry_of(definition)
    if entry is None:
        raise ValueError(
            f"{type(definition).__name__} is not one of legacy_optim's optimizers, so its state "
            "has no known equal inside a group or under WeightNorm; convert it on its own"
        )
    return entry


def _check_shapes(definition: Any, template: PyTree, state: OptState) -> None:
    expected = dict(jax.tree_util.tree_leaves_with_path(template))
    actual = dict(jax.tree_util.tree_leaves_with_path(state))
    for path in expected.keys() | actual.keys():
        shapes = [jnp.shape(tree[path]) if path in tree else None for tree in (expected, actual)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"optimizer.state, at opt_state{jax.tree_util.keystr(path)}: "
                f"{type(definition).__name__} makes shape {shapes[0]}, the legacy state has "
                f"{shapes[1]}. Was it made by a definition with other settings, or for other "
                "parameters?"
            )


def _state_class(definition: legacy_optim.OptimizerDef, params: Params) -> type:
    """Of the state of a definition of a program's own, which may make one of another class."""
    if type(definition).init_state is legacy_optim.OptimizerDef.init_state:
        return legacy_optim.OptimizerState
    return type(jax.eval_shape(definition.init_state, params))


def _not_its_state(definition: Any, wanted: str, state: OptState) -> ValueError:
    return ValueError(
        f"opt_state is not that of {type(definition).__name__}: expected one with {wanted}, found "
        f"{type(state).__name__}. Pass the definition that the state's transformation came from."
    )
