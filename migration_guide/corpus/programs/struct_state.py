"""A struct dataclass holds the optimizer; the step replaces the field."""
import json
from typing import Any

import flax
import jax
import jax.numpy as jnp
from flax import optim


@flax.struct.dataclass
class TrainState:
    step: int
    optimizer: optim.Optimizer
    model_state: Any


def train_step(state, batch, learning_rate_fn):
    def loss_fn(params):
        return jnp.mean((batch @ params['w'] - 1.0) ** 2), {'mean': jnp.mean(batch)}

    step = state.step
    optimizer = state.optimizer
    lr = learning_rate_fn(step)
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, model_state), grad = grad_fn(optimizer.target)
    new_optimizer = optimizer.apply_gradient(grad, learning_rate=lr)
    new_state = state.replace(step=step + 1, optimizer=new_optimizer, model_state=model_state)
    return new_state, loss


batch = jnp.linspace(0.0, 1.0, 12).reshape(4, 3)
optimizer = optim.Momentum(beta=0.9, weight_decay=0.01).create({'w': jnp.ones((3,)) * 0.3})
state = TrainState(step=0, optimizer=optimizer, model_state={'mean': jnp.zeros(())})
p_step = jax.jit(lambda s, b: train_step(s, b, lambda step: 0.1 / (1 + step)))
for _ in range(4):
    state, loss = p_step(state, batch)
print(json.dumps({'w': state.optimizer.target['w'].tolist(), 'loss': float(loss),
                  'step': int(state.step), 'mean': float(state.model_state['mean'])}))
