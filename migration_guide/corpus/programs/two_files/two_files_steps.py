"""State and step."""
import jax
import jax.numpy as jnp
from flax import optim, struct


@struct.dataclass
class State:
    optimizer: optim.Optimizer


def create(params):
    return State(optim.Adam(0.1).create(params))


@jax.jit
def train_step(state):
    loss, grad = jax.value_and_grad(lambda p: jnp.sum(p ** 3))(state.optimizer.target)
    return state.replace(optimizer=state.optimizer.apply_gradient(grad)), loss
