"""A base class keeps a network and its optimizer; subclasses and an agent train them in turn."""
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim


class Model(object):
    """Holds parameters in an optimizer, as a stateful object."""

    def __init__(self, params, optimizer_def=None, lr=1e-2):
        if optimizer_def is None:
            optimizer_def = optim.Adam(learning_rate=lr)
        self._optimizer = optimizer_def.create(params)
        self._grad_fn = jax.jit(jax.value_and_grad(self.loss))
        self._apply = jax.jit(lambda optimizer, grads: optimizer.apply_gradient(grads))
        self.history = []

    @property
    def params(self):
        return self._optimizer.target

    @params.setter
    def params(self, value):
        self._optimizer = self._optimizer.replace(target=value)

    @property
    def step(self):
        return int(self._optimizer.state.step)

    def loss(self, params, x, y):
        raise NotImplementedError

    def fit(self, x, y, steps=1):
        for _ in range(steps):
            loss, grads = self._grad_fn(self._optimizer.target, x, y)
            self._optimizer = self._apply(self._optimizer, grads)
            self.history.append(float(loss))
        return self


class Dynamics(Model):
    def loss(self, params, x, y):
        return jnp.mean((x @ params['A'] + params['b'] - y) ** 2)


class Reward(Model):
    def __init__(self, params):
        super().__init__(params, optim.Momentum(learning_rate=0.05, beta=0.9, nesterov=True))

    def loss(self, params, x, y):
        return jnp.mean(jnp.log(jnp.cosh(x @ params['w'] - y[:, 0])))


class Agent:
    def __init__(self):
        self.models = {
            'dynamics': Dynamics({'A': jnp.eye(2) * 0.5, 'b': jnp.zeros(2)}, lr=0.05),
            'reward': Reward({'w': jnp.full((2,), 0.1)}),
        }

    def train(self, x, y):
        for name, model in self.models.items():
            model.fit(x, y, steps=2 if name == 'reward' else 1)


agent = Agent()
for i in range(3):
    x = np.random.RandomState(i).normal(size=(6, 2)).astype(np.float32)
    agent.train(x, np.roll(x, 1, axis=1))
dynamics, reward = agent.models['dynamics'], agent.models['reward']
dynamics.params = jax.tree_map(lambda p: p * 0.9, dynamics.params)
dynamics.fit(x, x, steps=1)
print(json.dumps({
    'dynamics': dynamics.history,
    'reward': reward.history,
    'A': np.asarray(dynamics.params['A']).tolist(),
    'w': np.asarray(reward.params['w']).tolist(),
    'steps': [dynamics.step, reward.step],
}))
