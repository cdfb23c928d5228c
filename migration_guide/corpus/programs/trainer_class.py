"""The optimizer is an attribute of a trainer."""
import json

import flax
import jax
import jax.numpy as jnp


class Trainer:

    def __init__(self, config):
        self.config = config
        self.optimizer = flax.optim.Adam(
            learning_rate=config['learning_rate'],  # peak
            beta1=0.9, beta2=0.98,
            eps=1e-9,
            weight_decay=config['weight_decay'],
        ).create(self.init_params())
        self._step = jax.jit(self.step)

    def init_params(self):
        return {'w': jnp.linspace(-1, 1, 7)}

    def step(self, optimizer, x):
        loss, grad = jax.value_and_grad(lambda p: jnp.sum((p['w'] - x) ** 4))(optimizer.target)
        return optimizer.apply_gradient(grad), loss

    def train(self, steps):
        for i in range(steps):
            self.optimizer, loss = self._step(self.optimizer, i * 0.1)
        return float(loss)

    @property
    def params(self):
        return self.optimizer.target


trainer = Trainer({'learning_rate': 0.01, 'weight_decay': 0.05})
loss = trainer.train(5)
print(json.dumps({'loss': loss, 'w': trainer.params['w'].tolist(), 'step': int(trainer.optimizer.state.step)}))
