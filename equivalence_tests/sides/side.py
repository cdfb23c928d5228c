"""A side of a comparison: its initial state, its step and the view of its state.

Sides of the suite show their optimizer state in the legacy layout, so that any two of them can be
compared leaf by leaf.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
import optax
from optax.tree_utils import tree_get_all_with_path

import legacy_optim
from optax_bridge import TrainState
from optax_bridge.correspondence.recipe import Call, build
from optax_bridge.legacy import from_legacy, to_legacy
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates


class EquivalenceError(ValueError):
    """Two sides cannot be compared; the message names the side, step and leaf."""


@dataclass(frozen=True)
class Side:
    """One way to train."""

    name: str
    init: Callable[[Params], PyTree]
    step: Callable[..., PyTree]
    view: Callable[[PyTree], PyTree]
    source: str = ""
    definition: legacy_optim.OptimizerDef | None = None
    compiled: bool = True


def legacy(definition: legacy_optim.OptimizerDef) -> Side:
    """The legacy optimizer itself."""

    def step(optimizer: PyTree, grads: Updates, learning_rate: Leaf = None) -> PyTree:
        return optimizer.apply_gradient(grads, **_rate(learning_rate))

    return Side("legacy", definition.create, step, legacy_view, definition=definition)


def train_state(
    name: str, definition: legacy_optim.OptimizerDef, tx: optax.GradientTransformation
) -> Side:
    """A TrainState with a transformation that corresponds to the definition."""

    def init(params: Params) -> TrainState:
        return TrainState.create(apply_fn=None, params=params, tx=tx)

    def step(state: TrainState, grads: Updates, learning_rate: Leaf = None) -> TrainState:
        return state.apply_gradients(grads=grads, **_rate(learning_rate))

    return Side(name, init, step, lambda state: state_view(state, definition))


def exact(definition: legacy_optim.OptimizerDef) -> Side:
    """The exact recipe, driven by TrainState."""
    return train_state("exact", definition, from_legacy(definition))


def public_optax(definition: legacy_optim.OptimizerDef, recipe: Call) -> Side:
    """A recipe of public Optax, driven by TrainState."""
    return train_state("optax", definition, build(recipe))


def in_legacy_layout(side: Side, definition: legacy_optim.OptimizerDef) -> Side:
    """Returns the side with its state in the layout of a definition, None if that is impossible."""

    def view(state: PyTree) -> dict[str, PyTree]:
        seen = side.view(state)
        step, opt_state = seen["state"]
        try:
            legacy_state = to_legacy(definition, seen["params"], opt_state, step).state
        except (ValueError, TypeError, AttributeError, KeyError):
            legacy_state = None
        return {**seen, "state": legacy_state}

    return replace(side, view=view)


def state_view(state: PyTree, definition: legacy_optim.OptimizerDef) -> dict[str, PyTree]:
    """Returns a TrainState's content; its step is the one on which all counts agree, else -1."""
    view = legacy_view(state.to_legacy(definition))
    counts = [count for _, count in tree_get_all_with_path(state.opt_state, "count")]
    agree = jnp.all(jnp.stack([jnp.asarray(count) == state.step for count in counts] or [True]))
    step = jnp.where(agree, view["state"].step, -1)
    return {**view, "state": view["state"].replace(step=step)}


def legacy_view(optimizer: legacy_optim.Optimizer) -> dict[str, PyTree]:
    """Returns a legacy optimizer's content."""
    return {"params": optimizer.target, "state": optimizer.state}


def _rate(learning_rate: Leaf) -> dict[str, Leaf]:
    return {} if learning_rate is None else {"learning_rate": learning_rate}
