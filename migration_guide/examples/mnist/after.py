"""Handwritten digits: a convolutional network, trained with momentum."""
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

BATCH_SIZE = 128
NUM_STEPS = 300
SAVE_EVERY = 150
EVAL_EVERY = 50
NUM_TEST = 297


class CNN(nn.Module):
    """Two convolutions and a linear layer."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(features=16, kernel_size=(3, 3))(x))
        x = nn.relu(nn.Conv(features=32, kernel_size=(3, 3))(x))
        x = nn.max_pool(x, window_shape=(2, 2), strides=(2, 2))
        x = x.reshape((x.shape[0], -1))
        return nn.Dense(features=10)(x)


def get_datasets():
    """The 1797 digits of scikit-learn, 8 by 8 pixels each."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    images = np.float32(digits.images[order])[..., None] / 16.0
    labels = np.int32(digits.target[order])
    test = {'image': images[:NUM_TEST], 'label': labels[:NUM_TEST]}
    train = {'image': images[NUM_TEST:], 'label': labels[NUM_TEST:]}
    return train, test


def get_batch(dataset, step):
    """The batch of a step, the same whenever the step is taken."""
    chosen = np.random.RandomState(step).choice(len(dataset['label']), BATCH_SIZE, replace=False)
    return {key: value[chosen] for key, value in dataset.items()}


def cross_entropy_loss(logits, labels):
    one_hot = jax.nn.one_hot(labels, num_classes=10)
    return -jnp.mean(jnp.sum(one_hot * nn.log_softmax(logits), axis=-1))


def create_optimizer(rng, learning_rate, beta):
    params = CNN().init(rng, jnp.ones((1, 8, 8, 1)))['params']
    optimizer_def = optax.sgd(learning_rate=learning_rate, momentum=beta)
    return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optimizer_def)


@jax.jit
def train_step(optimizer, batch):
    """Takes a step on one batch."""
    def loss_fn(params):
        logits = CNN().apply({'params': params}, batch['image'])
        return cross_entropy_loss(logits, batch['label'])

    grad_fn = jax.value_and_grad(loss_fn)
    loss, grad = grad_fn(optimizer.params)
    optimizer = optimizer.apply_gradients(grads=grad)
    return optimizer, loss


@jax.jit
def eval_step(params, batch):
    logits = CNN().apply({'params': params}, batch['image'])
    return {
        'eval_loss': cross_entropy_loss(logits, batch['label']),
        'eval_accuracy': jnp.mean(jnp.argmax(logits, -1) == batch['label']),
    }


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    optimizer = create_optimizer(jax.random.PRNGKey(0), learning_rate=0.05, beta=0.9)
    optimizer = optax_bridge.checkpoints.restore_checkpoint(ckpt_dir, optimizer)
    for step in range(int(optimizer.step) + 1, num_steps + 1):
        optimizer, loss = train_step(optimizer, get_batch(train, step))
        log(step, loss=loss)
        if step % EVAL_EVERY == 0:
            log(step, **eval_step(optimizer.params, test))
        if step % SAVE_EVERY == 0 or step == num_steps:
            checkpoints.save_checkpoint(ckpt_dir, optimizer, step, keep=2)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_STEPS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
