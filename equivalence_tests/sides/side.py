"""The two sides of a comparison: how each makes a state, takes a step, and shows what it holds.

Every side shows its parameters and its optimizer state in the legacy layout, so that two of them
can be compared leaf by leaf.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.tree_utils import tree_get_all_with_path

import legacy_optim
from optax_bridge import TrainState
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import from_legacy, to_legacy


@dataclass(frozen=True)
class Side:
    """One way to train.

    Attributes:
      name: as the report shows it, e.g. `legacy`.
      init: parameters -> state, any pytree.
      step: (state, gradients, learning rate or None) -> state.
      params: state -> parameters.
      view: state -> `{"params": ..., "state": ...}`, the state in the legacy layout.
    """

    name: str
    init: Callable[[Any], Any]
    step: Callable[[Any, Any, Any], Any]
    params: Callable[[Any], Any]
    view: Callable[[Any], Any]


def legacy(definition: legacy_optim.OptimizerDef) -> Side:
    """The legacy optimizer itself."""

    def step(optimizer: Any, grads: Any, learning_rate: Any) -> Any:
        return optimizer.apply_gradient(grads, **_rate(learning_rate))

    return Side("legacy", definition.create, step, lambda o: o.target, legacy_view)


def train_state(
    name: str, definition: legacy_optim.OptimizerDef, tx: optax.GradientTransformation
) -> Side:
    """A TrainState with a transformation that corresponds to the definition."""

    def init(params: Any) -> TrainState:
        return TrainState.create(apply_fn=None, params=params, tx=tx)

    def step(state: TrainState, grads: Any, learning_rate: Any) -> TrainState:
        return state.apply_gradients(grads=grads, **_rate(learning_rate))

    return Side(
        name, init, step, lambda state: state.params, lambda state: state_view(state, definition)
    )


def exact(definition: legacy_optim.OptimizerDef) -> Side:
    """The exact recipe, driven by TrainState."""
    return train_state("exact", definition, from_legacy(definition))


def stock(definition: legacy_optim.OptimizerDef, recipe: Any) -> Side:
    """A recipe of public Optax, driven by TrainState."""
    return train_state("stock", definition, build(recipe))


def plain(definition: legacy_optim.OptimizerDef) -> Side:
    """The exact recipe, driven by Optax's own protocol: `update`, then `apply_updates`."""
    tx = from_legacy(definition)

    def init(params: Any) -> Any:
        return jnp.zeros([], jnp.int32), params, tx.init(params)

    def step(state: Any, grads: Any, learning_rate: Any) -> Any:
        count, params, opt_state = state
        updates, opt_state = tx.update(grads, opt_state, params, **_rate(learning_rate))
        return count + 1, optax.apply_updates(params, updates), opt_state

    def view(state: Any) -> Any:
        count, params, opt_state = state
        return legacy_view(to_legacy(definition, params, opt_state, count))

    return Side("plain", init, step, lambda state: state[1], view)


def trajectory(
    side: Side, params: Any, grads: Any, rates: Any = None, *, drive: str = "scan"
) -> Any:
    """Runs a side over recorded gradients.

    Args:
      side: what to run.
      params: initial parameters.
      grads: gradients, of shape (steps, ...) at each leaf.
      rates: learning rates of shape (steps,), given at each call; None leaves them to the
        definition.
      drive: `"scan"` (one compilation for the run), `"jit"` (the step alone is compiled) or
        `"eager"`.

    Returns:
      What `side.view` shows after every step, each leaf of shape (steps, ...), on the host.
    """
    params = jax.tree.map(jnp.asarray, params)
    grads = jax.tree.map(jnp.asarray, grads)
    inputs = (grads, None if rates is None else jnp.asarray(rates))

    def body(state: Any, given: Any) -> tuple[Any, Any]:
        # The step is compiled for itself: what stands around it differs from side to side, and XLA
        # (0.12 does) would fuse products and sums across and round each side in its own way.
        state, given = jax.lax.optimization_barrier((state, given))
        state = jax.lax.optimization_barrier(side.step(state, *given))
        return state, side.view(state)

    if drive == "scan":
        _, views = jax.jit(lambda p, xs: jax.lax.scan(body, side.init(p), xs))(params, inputs)
        return jax.device_get(views)
    take = jax.jit(body) if drive == "jit" else body
    state, seen = side.init(params), []
    for index in range(len(jax.tree.leaves(grads)[0])):
        state, view = take(state, jax.tree.map(lambda x, i=index: x[i], inputs))
        seen.append(jax.device_get(view))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen)


def _rate(learning_rate: Any) -> dict[str, Any]:
    return {} if learning_rate is None else {"learning_rate": learning_rate}


def state_view(state: Any, definition: legacy_optim.OptimizerDef) -> dict[str, Any]:
    """What a TrainState holds; its step is the one on which all counts agree, else -1."""
    view = legacy_view(state.to_legacy(definition))
    counts = [count for _, count in tree_get_all_with_path(state.opt_state, "count")]
    agree = jnp.all(jnp.stack([jnp.asarray(count) == state.step for count in counts] or [True]))
    step = jnp.where(agree, view["state"].step, -1)
    return {**view, "state": view["state"].replace(step=step)}


def legacy_view(optimizer: legacy_optim.Optimizer) -> dict[str, Any]:
    """What a legacy optimizer holds."""
    return {"params": optimizer.target, "state": optimizer.state}
