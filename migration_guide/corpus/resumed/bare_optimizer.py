"""The optimizer itself is what is saved; an MLP on a toy regression."""
import json
import sys

from flax import linen as nn
from flax import optim
from flax.training import checkpoints
import jax
import jax.numpy as jnp
import numpy as np

LEARNING_RATE = 0.02
SAVE_EVERY = 3


class MLP(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(features=5)(x)
        x = nn.tanh(x)
        return nn.Dense(features=1)(x)


def get_batch(step):
    rng = np.random.RandomState(step)
    x = rng.uniform(-1, 1, size=(8, 2)).astype(np.float32)
    return x, np.sin(3 * x[:, :1]) + x[:, 1:]


def create_optimizer(params, learning_rate):
    optimizer_def = optim.Adam(learning_rate=learning_rate, beta2=0.99, weight_decay=1e-2)
    optimizer = optimizer_def.create(params)
    return optimizer


@jax.jit
def train_step(optimizer, batch):
    x, y = batch

    def loss_fn(params):
        pred = MLP().apply({'params': params}, x)
        return jnp.mean((pred - y) ** 2)

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    optimizer = optimizer.apply_gradient(grad)
    return optimizer, loss


def init_params(seed=0):
    return MLP().init(jax.random.PRNGKey(seed), jnp.ones((1, 2)))['params']


def main(workdir, num_steps):
    optimizer = create_optimizer(init_params(), LEARNING_RATE)
    optimizer = checkpoints.restore_checkpoint(workdir, optimizer)
    start = int(optimizer.state.step)
    losses = []
    for step in range(start, num_steps):
        optimizer, loss = train_step(optimizer, get_batch(step))
        losses.append(float(loss))
        if (step + 1) % SAVE_EVERY == 0:
            checkpoints.save_checkpoint(workdir, optimizer, step + 1, keep=3)

    last = checkpoints.restore_checkpoint(workdir, create_optimizer(init_params(1), 0.0))
    params = jax.tree_map(lambda x: np.asarray(x).tolist(), last.target)
    print(json.dumps({
        'losses': losses,
        'kernel': params['Dense_0']['kernel'],
        'bias': params['Dense_1']['bias'],
        'step': int(last.state.step),
    }))


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
