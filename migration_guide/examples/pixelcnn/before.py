"""Handwritten digits: an autoregressive model of their pixels, trained with Adam.

What is evaluated are exponential moving averages of the parameters.
"""
import argparse
import json
import os
from typing import Any

import flax
from flax import linen as nn
from flax import optim
from flax.training import checkpoints
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

BATCH_SIZE = 64
NUM_STEPS = 300
SAVE_EVERY = 150
EVAL_EVERY = 50
NUM_TEST = 297
NUM_COLORS = 17
LEARNING_RATE = 5e-3
LR_DECAY = 0.998
EMA_DECAY = 0.95


class MaskedConv(nn.Module):
    """A convolution that sees only pixels above and to the left, and itself if it may."""
    features: int
    size: int
    sees_itself: bool

    @nn.compact
    def __call__(self, x):
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param('kernel', nn.initializers.lecun_normal(), shape)
        bias = self.param('bias', nn.initializers.zeros, (self.features,))
        mask = np.zeros(shape, np.float32)
        middle = self.size // 2
        mask[:middle] = 1.0
        mask[middle, :middle + self.sees_itself] = 1.0
        return bias + lax.conv_general_dilated(
            x, kernel * mask, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))


class PixelCNN(nn.Module):
    """Two residual blocks between the first look at the neighbours and the distribution."""
    features: int = 16

    @nn.compact
    def __call__(self, images):
        x = images[..., None] / (NUM_COLORS - 1.0) - 0.5
        x = MaskedConv(self.features, 5, sees_itself=False)(x)
        for _ in range(2):
            x = x + MaskedConv(self.features, 3, sees_itself=True)(nn.elu(x))
        return nn.Dense(NUM_COLORS)(nn.elu(x))


@flax.struct.dataclass
class TrainState:
    optimizer: optim.Optimizer
    ema: Any


def get_datasets():
    """scikit-learn's digits as they are: 17 shades of grey."""
    images = np.int32(load_digits().images)
    images = images[np.random.RandomState(0).permutation(len(images))]
    return images[NUM_TEST:], images[:NUM_TEST]


def get_batch(images, step):
    return images[np.random.RandomState(step).choice(len(images), BATCH_SIZE, replace=False)]


def bits_per_pixel(params, images):
    logits = PixelCNN().apply({'params': params}, images)
    log_likelihoods = jnp.sum(nn.log_softmax(logits) * jax.nn.one_hot(images, NUM_COLORS), axis=-1)
    return -jnp.mean(log_likelihoods) / jnp.log(2.0)


@jax.jit
def train_step(state, batch):
    loss, grad = jax.value_and_grad(bits_per_pixel)(state.optimizer.target, batch)
    learning_rate = LEARNING_RATE * LR_DECAY ** state.optimizer.state.step
    optimizer = state.optimizer.apply_gradient(grad, learning_rate=learning_rate)
    ema = jax.tree_multimap(
        lambda average, new: average * EMA_DECAY + new * (1.0 - EMA_DECAY),
        state.ema, optimizer.target)
    return state.replace(optimizer=optimizer, ema=ema), loss


eval_step = jax.jit(bits_per_pixel)


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    params = PixelCNN().init(jax.random.PRNGKey(0), jnp.zeros((1, 8, 8)))['params']
    optimizer_def = optim.Adam(learning_rate=LEARNING_RATE, beta1=0.95, beta2=0.9995)
    state = TrainState(optimizer=optimizer_def.create(params), ema=params)
    state = checkpoints.restore_checkpoint(ckpt_dir, state)
    for step in range(int(state.optimizer.state.step) + 1, num_steps + 1):
        state, loss = train_step(state, get_batch(train, step))
        log(step, loss=loss)
        if step % EVAL_EVERY == 0:
            log(step, eval_bits=eval_step(state.ema, test),
                eval_bits_without_ema=eval_step(state.optimizer.target, test))
        if step % SAVE_EVERY == 0 or step == num_steps:
            checkpoints.save_checkpoint(ckpt_dir, state, step, keep=2)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_STEPS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
