"""A state class that hides its optimizer behind properties; definitions as class attributes."""
import json
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim


class Wrapped(flax.struct.PyTreeNode):
    _optimizer: optim.Optimizer
    extra: Any = None

    @classmethod
    def create(cls, optimizer_def, params):
        optimizer = optimizer_def.create(params)
        return Wrapped(optimizer, extra={'calls': 0})

    @property
    def step(self):
        return self._optimizer.state.step

    @property
    def params(self):
        return self._optimizer.target

    def apply_gradient(self, grads, learning_rate):
        new_optimizer = self._optimizer.apply_gradient(grads, learning_rate=learning_rate)
        return self.replace(_optimizer=new_optimizer, extra={'calls': self.extra['calls'] + 1})

    def replace_params(self, params):
        return self.replace(_optimizer=self._optimizer.replace(target=params))


class Model:
    default_optimizer_def = optim.Adam(beta1=0.8, weight_decay=0.1)

    def __init__(self, optimizer_def=None):
        self.optimizer_def = optimizer_def or self.default_optimizer_def

    def initial_state(self):
        return Wrapped.create(self.optimizer_def, {'w': jnp.arange(1.0, 4.0)})


def train_step(state, rate):
    grads = jax.grad(lambda p: jnp.sum(jnp.sin(p['w'])))(state.params)
    return state.apply_gradient(grads, learning_rate=rate)


state = Model().initial_state()
for i in range(3):
    state = train_step(state, 0.1 / (i + 1))
state = state.replace_params(jax.tree_map(lambda x: x * 0.5, state.params))
state = train_step(state, 0.3)
print(json.dumps({
    'w': np.asarray(state.params['w']).tolist(),
    'step': int(state.step),
    'calls': state.extra['calls'],
}))
