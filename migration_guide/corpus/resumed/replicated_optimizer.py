"""The replicated optimizer is saved as it is, with its axis of devices, and restored so."""
import json
import os
import sys

from flax import jax_utils
from flax import optim
from flax import serialization
import jax
import jax.numpy as jnp
import numpy as np


def create_optimizer(seed=0):
    rng = np.random.RandomState(seed)
    params = {
        'encoder': {'kernel': jnp.asarray(rng.normal(size=(4, 6)), jnp.float32), 'bias': jnp.zeros(6)},
        'decoder': {'kernel': jnp.asarray(rng.normal(size=(6, 4)), jnp.float32), 'bias': jnp.zeros(4)},
    }
    optimizer_def = optim.Adafactor(
        learning_rate=0.05, decay_rate=0.8, beta1=0.9, min_dim_size_to_factor=4)
    return optimizer_def.create(params)


def train_step(optimizer, batch):
    def loss_fn(params):
        h = jax.nn.relu(batch @ params['encoder']['kernel'] + params['encoder']['bias'])
        out = h @ params['decoder']['kernel'] + params['decoder']['bias']
        return jnp.mean((out - batch) ** 2)

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    grad = jax.lax.pmean(grad, axis_name='batch')
    loss = jax.lax.pmean(loss, axis_name='batch')
    return optimizer.apply_gradient(grad), loss


p_train_step = jax.pmap(train_step, axis_name='batch')


def load(filename, seed):
    # Saved with a leading axis of devices, so the template has one too.
    optimizer = jax_utils.replicate(create_optimizer(seed))
    with open(filename, 'rb') as fp:
        return serialization.from_bytes(optimizer, fp.read())


def main():
    filename, num_steps = os.path.join(sys.argv[1], 'replicated.ckpt'), int(sys.argv[2])
    optimizer = jax_utils.replicate(create_optimizer())
    if os.path.exists(filename):
        optimizer = load(filename, 0)
    losses = []
    for step in range(int(optimizer.state.step[0]), num_steps):
        batch = np.random.RandomState(step).normal(size=(jax.local_device_count(), 3, 4))
        optimizer, loss = p_train_step(optimizer, batch.astype(np.float32))
        losses.append(float(loss[0]))
        if step % 3 == 2:
            with open(filename, 'wb') as fp:
                fp.write(serialization.to_bytes(jax.device_get(optimizer)))

    single = jax_utils.unreplicate(load(filename, 1))
    print(json.dumps({
        'losses': losses,
        'encoder': np.asarray(single.target['encoder']['kernel']).tolist(),
        'bias': np.asarray(single.target['decoder']['bias']).tolist(),
        'step': int(single.state.step),
    }))


if __name__ == '__main__':
    main()
