"""An ensemble in a list, each member with an optimizer; msgpack of its state dict in a file."""
import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim, serialization

FILE = os.path.join(sys.argv[1], 'ensemble.msgpack')
RATES = (0.01, 0.03, 0.1)


def make_ensemble():
    members = []
    for i, rate in enumerate(RATES):
        params = {'w': jnp.linspace(-1.0, 1.0 + i, 4), 'b': jnp.zeros((2,)) + i}
        members.append(optim.AdaBelief(learning_rate=rate, eps=1e-8).create(params))
    return members


def predict(params, x):
    return jnp.outer(x, params['w']).sum(axis=1, keepdims=True) * 0.5 + params['b']


@jax.jit
def step(optimizer, x, y):
    def loss_fn(params):
        return jnp.mean(jnp.square(predict(params, x) - y))
    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    return optimizer.apply_gradient(grad), loss


def load(members):
    with open(FILE, 'rb') as f:
        state_dict = serialization.msgpack_restore(f.read())
    return serialization.from_state_dict(members, state_dict)


ensemble = make_ensemble()
if os.path.isfile(FILE):
    ensemble = load(ensemble)

losses = []
for i in range(int(ensemble[0].state.step), int(sys.argv[2])):
    x = np.random.RandomState(i).normal(size=5).astype(np.float32)
    y = np.stack([x * 2, 1 - x], axis=1)
    row = []
    for k, member in enumerate(ensemble):
        ensemble[k], loss = step(member, x, y)
        row.append(float(loss))
    losses.append(row)
    if (i + 1) % 3 == 0:
        state_dict = serialization.to_state_dict(ensemble)
        with open(FILE, 'wb') as f:
            f.write(serialization.msgpack_serialize(state_dict))

again = load(make_ensemble())
print(json.dumps({
    'losses': losses,
    'w': [np.asarray(member.target['w']).tolist() for member in again],
    'b': [np.asarray(member.target['b']).tolist() for member in again],
    'steps': [int(member.state.step) for member in again],
}))
