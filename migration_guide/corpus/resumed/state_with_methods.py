"""A base class of training states with methods to step, save and load; a program's subclass."""
import json
import os
import sys
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax import serialization


@flax.struct.dataclass
class BaseTrainState:
    optimizer: optim.Optimizer

    @property
    def params(self):
        return self.optimizer.target

    @property
    def step(self):
        return int(self.optimizer.state.step)

    def apply(self, grads):
        return self.replace(optimizer=self.optimizer.apply_gradient(grads))

    def save(self, directory):
        path = os.path.join(directory, 'state_{:04d}.flax'.format(self.step))
        with open(path, 'wb') as f:
            f.write(serialization.to_bytes(self))
        return path

    def load(self, path):
        with open(path, 'rb') as f:
            return serialization.from_bytes(self, f.read())

    @classmethod
    def create(cls, optimizer_def, params, **kwargs):
        return cls(optimizer=optimizer_def.create(params), **kwargs)


@flax.struct.dataclass
class AveragedState(BaseTrainState):
    average: Any = None
    decay: float = flax.struct.field(pytree_node=False, default=0.8)

    def apply(self, grads):
        new = super().apply(grads)
        average = jax.tree_multimap(
            lambda a, p: self.decay * a + (1 - self.decay) * p, self.average, new.params)
        return new.replace(average=average)


def init_params(seed):
    rng = np.random.RandomState(seed)
    return {'w1': jnp.asarray(rng.normal(size=(3, 4)), jnp.float32), 'b1': jnp.zeros(4),
            'w2': jnp.asarray(rng.normal(size=(4, 1)), jnp.float32)}


def create_state(seed):
    params = init_params(seed)
    optimizer_def = optim.WeightNorm(optim.Adam(learning_rate=0.01), wn_decay=1e-3)
    return AveragedState.create(optimizer_def, params, average=params)


def loss_fn(params, x, y):
    return jnp.mean((jnp.tanh(x @ params['w1'] + params['b1']) @ params['w2'] - y) ** 2)


@jax.jit
def train_step(state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(state.params, x, y)
    return state.apply(grads), loss


def main():
    directory, num_steps = sys.argv[1:3]
    state = create_state(0)
    files = sorted(name for name in os.listdir(directory) if name.endswith('.flax'))
    if files:
        path = os.path.join(directory, files[-1])
        state = state.load(path)
    losses = []
    while state.step < int(num_steps):
        rng = np.random.RandomState(state.step)
        x = rng.normal(size=(6, 3)).astype(np.float32)
        y = np.cos(x[:, :1])
        state, loss = train_step(state, x, y)
        losses.append([float(loss), float(loss_fn(state.average, x, y))])
        if state.step % 3 == 0:
            path = state.save(directory)

    again = create_state(1).load(path)
    print(json.dumps({
        'losses': losses,
        'w1': np.asarray(again.params['w1']).tolist(),
        'average': np.asarray(again.average['w1']).tolist(),
        'step': again.step,
    }))


if __name__ == '__main__':
    main()
