"""Handwritten digits: a variational autoencoder, trained with Adam."""
import argparse
import json
import os

from flax import linen as nn
from flax.training import checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax_bridge
from sklearn.datasets import load_digits

jax.config.update("jax_threefry_partitionable", False)

BATCH_SIZE = 1024
NUM_STEPS = 400
SAVE_EVERY = 200
EVAL_EVERY = 50
NUM_TEST = 297
LATENTS = 8
HIDDEN = 48


class VAE(nn.Module):
    """An encoder and a decoder with one hidden layer each."""

    def setup(self):
        self.hidden = nn.Dense(HIDDEN)
        self.mean = nn.Dense(LATENTS)
        self.logvar = nn.Dense(LATENTS)
        self.decoder_hidden = nn.Dense(HIDDEN)
        self.pixels = nn.Dense(64)

    def __call__(self, x, z_rng):
        hidden = nn.relu(self.hidden(x))
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        z = mean + jnp.exp(0.5 * logvar) * jax.random.normal(z_rng, logvar.shape)
        return self.pixels(nn.relu(self.decoder_hidden(z))), mean, logvar


def get_datasets():
    """How bright the pixels of scikit-learn's digits are, from 0 to 1."""
    images = load_digits().data
    images = np.float32(images[np.random.RandomState(0).permutation(len(images))]) / 16.0
    return images[NUM_TEST:], images[:NUM_TEST]


def get_batch(images, step):
    return images[np.random.RandomState(step).choice(len(images), BATCH_SIZE, replace=False)]


def binary_cross_entropy_with_logits(logits, labels):
    logp = nn.log_sigmoid(logits)
    return -jnp.sum(labels * logp + (1.0 - labels) * (logp - logits), axis=-1)


def kl_divergence(mean, logvar):
    return -0.5 * jnp.sum(1 + logvar - jnp.square(mean) - jnp.exp(logvar), axis=-1)


def compute_losses(params, batch, z_rng):
    """The two terms of the evidence lower bound, in nats for an image."""
    logits, mean, logvar = VAE().apply({'params': params}, batch, z_rng)
    reconstruction = jnp.mean(binary_cross_entropy_with_logits(logits, batch))
    return reconstruction, jnp.mean(kl_divergence(mean, logvar))


@jax.jit
def train_step(optimizer, batch, rng):
    z_rng = jax.random.fold_in(rng, optimizer.step)

    def loss_fn(params):
        return sum(compute_losses(params, batch, z_rng))

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.params)
    return optimizer.apply_gradients(grads=grad), loss


@jax.jit
def eval_step(params, images, z_rng):
    reconstruction, divergence = compute_losses(params, images, z_rng)
    return {'eval_loss': reconstruction + divergence, 'eval_divergence': divergence}


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    rng, key = jax.random.split(jax.random.PRNGKey(0))
    params = VAE().init(key, jnp.ones((1, 64)), rng)['params']
    optimizer = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optax.adam(learning_rate=3e-3))
    optimizer = optax_bridge.checkpoints.restore_checkpoint(ckpt_dir, optimizer)
    for step in range(int(optimizer.step) + 1, num_steps + 1):
        optimizer, loss = train_step(optimizer, get_batch(train, step), rng)
        log(step, loss=loss)
        if step % EVAL_EVERY == 0:
            log(step, **eval_step(optimizer.params, test, rng))
        if step % SAVE_EVERY == 0 or step == num_steps:
            checkpoints.save_checkpoint(ckpt_dir, optimizer, step, keep=2)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_STEPS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
