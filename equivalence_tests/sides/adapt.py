"""Makes a side of any object that a user may pass as one."""

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training import train_state

import legacy_optim
from equivalence_tests.sides.frameworks import is_torch_optimizer, torch_side
from equivalence_tests.sides.side import EquivalenceError as EquivalenceError
from equivalence_tests.sides.side import Side, legacy
from optax_bridge.correspondence import UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.recipe import render
from optax_bridge.exact.transformation import take_step
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

# A legacy definition or optimizer, a GradientTransformation, a TrainState, `torch_side(...)`, or a
# pair of functions `init(params) -> state` and `step(grads, state, params) -> (params, state)`.
SideLike = object

EXPECTED = (
    "expected a legacy definition or optimizer, an optax.GradientTransformation, a TrainState, "
    "torch_side(torch.optim.AdamW, lr=...), a config of an optimizer, a learner or a trainer, or a "
    "pair of functions: init(params) -> state, "
    "step(grads, state, params) -> (params, state)"
)


def as_side(side: Any) -> Side:
    """The side as functions."""
    if isinstance(side, Side):
        return side
    side = _made_by_config(side)
    if isinstance(side, train_state.TrainState):
        return _train_state(side)
    if isinstance(side, optax.GradientTransformation):
        return _transformation(side)
    if callable(getattr(side, "init", None)) and callable(getattr(side, "update", None)):
        # Another version's, whose class is not the present one's, or MultiSteps.
        return _transformation(optax.GradientTransformationExtraArgs(side.init, side.update))
    if isinstance(side, tuple | list) and len(side) == 2 and all(map(callable, side)):
        return _functions(*side)
    if isinstance(side, legacy_optim.OptimizerDef):
        return _legacy(side, side.create)
    if isinstance(side, legacy_optim.Optimizer):
        return _legacy(side.optimizer_def, functools.partial(_taken_over, side))
    raise EquivalenceError(f"{EXPECTED}; found {_description(side)}")


def side_maker(function: Callable[..., object]) -> Callable[..., SideLike]:
    """Returns the function itself, or for another framework's class one that makes a side."""
    if is_torch_optimizer(function):
        return functools.partial(torch_side, function)
    return function


def _made_by_config(side: SideLike) -> Any:
    """Returns the transformation of a config of `optax_bridge.spmd`; anything else unchanged."""
    optimizers = sys.modules.get("optax_bridge.spmd.optimizers")  # not imported: no config
    config = sys.modules.get("optax_bridge.spmd.config")
    is_config = config is not None and isinstance(side, config.InstantiableConfig)
    if not is_config and not (
        optimizers is not None and isinstance(side, optimizers.PartitionedGradientTransformation)
    ):
        return side
    from optax_bridge.spmd.trainer.state import transformation_of

    try:
        return transformation_of(side)
    except ValueError as error:
        raise EquivalenceError(str(error)) from error


def _description(side: SideLike) -> str:
    kind, name = type(side).__name__, getattr(side, "__name__", repr(side))
    if is_torch_optimizer(side):
        return f"the class {name}: write torch_side({name}, lr=...)"
    if is_torch_optimizer(type(side)):
        return f"a PyTorch {kind} with tensors of its own: write torch_side({kind}, lr=...)"
    return f"{kind} {name!r}: call it to make a side" if callable(side) else kind


def _legacy(definition: legacy_optim.OptimizerDef, init: Callable[[Params], PyTree]) -> Side:
    source = _recipe(definition)
    return replace(legacy(definition), name=type(definition).__name__, init=init, source=source)


def _taken_over(optimizer: legacy_optim.Optimizer, params: Params) -> legacy_optim.Optimizer:
    return optimizer.replace(target=params, state=_like(optimizer.state, params))


def _train_state(state: train_state.TrainState) -> Side:
    return Side(
        name=type(state).__name__,
        init=lambda params: state.replace(
            step=jnp.asarray(state.step, jnp.int32),  # a Python number is wider in float64
            params=params,
            opt_state=_carry_state(state, params),
        ),
        step=lambda state, grads: state.apply_gradients(grads=grads),
        view=lambda state: {"params": state.params, "state": (state.step, state.opt_state)},
        source=f"{type(state).__name__} with {_of_transformation(state.tx)}",
    )


def _like(state: PyTree, params: Params) -> PyTree:
    """A state that was made elsewhere, for parameters that may be wider by now."""
    double = any(leaf.dtype == np.float64 for leaf in jax.tree.leaves(params))
    return jax.tree.map(_to_float64, state) if double else state


def _to_float64(leaf: Leaf) -> jax.Array:
    leaf = jnp.asarray(leaf)
    return leaf.astype(np.float64) if jnp.issubdtype(leaf.dtype, np.floating) else leaf


def _carry_state(state: train_state.TrainState, params: Params) -> PyTree:
    """The optimizer state of a TrainState, for parameters that may be wider by now."""
    carry = state.opt_state
    wide = _like(carry, params)
    if wide is carry:
        return carry
    before = state.tx.init(state.params)
    fresh = state.tx.init(jax.tree.map(_to_float64, state.params))
    if jax.tree.structure(before) != jax.tree.structure(carry):  # restored as other containers
        return wide

    def carry_leaf(leaf: Leaf, wide: jax.Array, before: PyTree, fresh: PyTree) -> jax.Array:
        if wide.dtype != np.float64 or wide.shape != jnp.shape(before):
            return wide
        return fresh if (leaf == jnp.asarray(before, jnp.asarray(leaf).dtype)).all() else wide

    return jax.tree.map(carry_leaf, carry, wide, before, fresh)


def _transformation(tx: optax.GradientTransformation) -> Side:
    def step(carry: PyTree, grads: Updates, **arguments: Leaf) -> PyTree:
        count, params, opt_state = carry
        return count + 1, *take_step(tx, grads, opt_state, params, **arguments)

    return Side(
        name="GradientTransformation",
        init=lambda params: (jnp.zeros([], jnp.int32), params, tx.init(params)),
        step=step,
        view=lambda state: {"params": state[1], "state": (state[0], state[2])},
        source=_of_transformation(tx),
    )


def _functions(init: Callable[..., PyTree], step: Callable[..., PyTree]) -> Side:
    def take(carry: PyTree, grads: Updates) -> PyTree:
        result = step(grads, carry[1], carry[0])
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(f"step returned a {type(result).__name__}, not (params, state)")
        return result

    return Side(
        name=getattr(step, "__qualname__", type(step).__name__),
        init=lambda params: (params, init(params)),
        step=take,
        view=lambda state: {"params": state[0], "state": state[1]},
        source="\n".join(map(_source_of, (init, step))),
        compiled=False,
    )


def on_host(tree: PyTree) -> PyTree:
    """A tree with a copy of every array on the host; tensors of other libraries included."""

    def leaf(value: Leaf) -> np.ndarray:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return np.array(jax.random.key_data(value))
        # A torch tensor that wants gradients refuses to be an array.
        if (detach := getattr(value, "detach", None)) is not None:
            value = detach().cpu()
        if hasattr(value, "__array__") or isinstance(value, bool | int | float | complex):
            return np.array(value)
        opaque = np.empty((), object)
        opaque[()] = value
        return opaque

    return jax.tree.map(leaf, tree)


def _recipe(definition: legacy_optim.OptimizerDef) -> str:
    fields = getattr(definition.hyper_params, "__dataclass_fields__", {})
    shown = ", ".join(f"{name}={getattr(definition.hyper_params, name)!r}" for name in fields)
    written = f"{type(definition).__name__}({shown})"
    try:
        return f"{written}\n# exact recipe: {render(choose_recipe(definition, 'exact').call)}"
    except (ValueError, UnsupportedSetting):
        return written


def _of_transformation(tx: optax.GradientTransformation) -> str:
    name = getattr(tx.init, "__qualname__", type(tx.init).__name__)
    return f"{tx.init.__module__}.{name.split('.<locals>')[0]}"


def _source_of(function: Callable[..., object]) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):
        return repr(function)
