"""A definition of one's own; the optimizer's methods give and take its state."""
import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax import struct
from flax.optim.base import OptimizerDef


@struct.dataclass
class _LionHyperParams:
    learning_rate: np.ndarray
    beta1: np.ndarray
    beta2: np.ndarray


@struct.dataclass
class _LionParamState:
    momentum: np.ndarray
    travelled: np.ndarray


class SignedMomentum(OptimizerDef):
    """Steps by the sign of an interpolation; counts how far each parameter went."""

    def __init__(self, learning_rate=None, beta1=0.9, beta2=0.99):
        hyper_params = _LionHyperParams(learning_rate, beta1, beta2)
        super().__init__(hyper_params)

    def init_param_state(self, param):
        return _LionParamState(jnp.zeros_like(param), jnp.zeros(()))

    def apply_param_gradient(self, step, hyper_params, param, state, grad):
        assert hyper_params.learning_rate is not None, 'no learning rate provided.'
        mixed = hyper_params.beta1 * state.momentum + (1.0 - hyper_params.beta1) * grad
        rate = hyper_params.learning_rate / jnp.sqrt(step + 1.0)
        change = rate * jnp.sign(mixed)
        momentum = hyper_params.beta2 * state.momentum + (1.0 - hyper_params.beta2) * grad
        travelled = state.travelled + jnp.sum(jnp.abs(change))
        # Slows down where a parameter went far.
        new_param = param - change / (1.0 + 0.1 * state.travelled)
        return new_param, _LionParamState(momentum, travelled)


def create_optimizer():
    params = [jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), jnp.zeros(3)]
    return SignedMomentum(learning_rate=0.05, beta2=0.9).create(params)


@jax.jit
def train_step(optimizer, x, y):
    def loss_fn(params):
        w, b = params
        return jnp.mean((x @ w + b - y) ** 2)
    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    return optimizer.apply_gradient(grad), loss


def main():
    path = os.path.join(sys.argv[1], 'optimizer')
    optimizer = create_optimizer()
    if os.path.exists(path):
        with open(path, 'rb') as f:
            optimizer = optimizer.restore_state(serialization.msgpack_restore(f.read()))
    losses = []
    while optimizer.state.step < int(sys.argv[2]):
        rng = np.random.RandomState(int(optimizer.state.step))
        x, y = rng.normal(size=(4, 2)).astype(np.float32), rng.normal(size=(4, 3)).astype(np.float32)
        optimizer, loss = train_step(optimizer, x, y)
        losses.append(float(loss))
        if int(optimizer.state.step) % 3 == 0:
            with open(path, 'wb') as f:
                f.write(serialization.msgpack_serialize(optimizer.state_dict()))

    with open(path, 'rb') as f:
        saved = serialization.msgpack_restore(f.read())
    again = create_optimizer().restore_state(saved)
    again, loss = train_step(again, np.ones((4, 2), np.float32), np.zeros((4, 3), np.float32))
    print(json.dumps({
        'losses': losses + [float(loss)],
        'w': np.asarray(again.target[0]).tolist(),
        'b': np.asarray(again.target[1]).tolist(),
        'step': int(again.state.step),
    }))


if __name__ == '__main__':
    main()
