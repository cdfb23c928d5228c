"""A NamedTuple of optimizer and statistics, through functions in both directions."""
import json
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import optim


class State(NamedTuple):
    optimizer: optim.Optimizer
    best: Any


def init(lr: float, start: optim.Optimizer | None = None) -> State:
    optimizer = start or optim.Adam(lr).create(jnp.linspace(1, 2, 3))
    return State(optimizer, jnp.inf)


@jax.jit
def advance(state: State) -> tuple[State, Any]:
    loss, grad = jax.value_and_grad(lambda p: jnp.sum(p ** 2))(state.optimizer.target)
    return State(state.optimizer.apply_gradient(grad), jnp.minimum(loss, state.best)), loss


state = init(0.1)
for _ in range(3):
    state, loss = advance(state)
state = state._replace(optimizer=state.optimizer.replace(target=state.optimizer.target * 2))
print(json.dumps({'p': state.optimizer.target.tolist(), 'best': float(state.best), 'loss': float(loss)}))
