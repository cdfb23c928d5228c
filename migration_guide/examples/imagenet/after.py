"""Images on many devices: a residual network with batch normalization, trained with momentum.

Every device has a copy of the state and takes its part of the batch; gradients are averaged in each
step, statistics before they are used. The loss is scaled so that half precision would not underflow.
The images are small ones here: handwritten digits.
"""
import argparse
import functools
import json
import os
from typing import Any

import flax
from flax import jax_utils
from flax import linen as nn
from flax.training import checkpoints
from flax.training.dynamic_scale import DynamicScale
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax_bridge
from sklearn.datasets import load_digits

jax.config.update("jax_threefry_partitionable", False)

BATCH_SIZE = 128
NUM_STEPS = 200
SAVE_EVERY = 100
EVAL_EVERY = 50
NUM_TEST = 296
NUM_CLASSES = 10
LEARNING_RATE = 0.1
WARMUP_STEPS = 20
WEIGHT_DECAY = 1e-4
LABEL_SMOOTHING = 0.1


class ResidualBlock(nn.Module):
    features: int
    strides: int
    norm: Any

    @nn.compact
    def __call__(self, x):
        strides = (self.strides, self.strides)
        y = nn.Conv(self.features, (3, 3), strides, use_bias=False)(x)
        y = nn.relu(self.norm()(y))
        y = nn.Conv(self.features, (3, 3), use_bias=False)(y)
        y = self.norm(scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.features, (1, 1), strides, use_bias=False, name='projection')(x)
            x = self.norm(name='norm_projection')(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Two residual blocks; the second sees half the resolution."""

    @nn.compact
    def __call__(self, x, train):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.Conv(8, (3, 3), use_bias=False, name='conv_first')(x)
        x = nn.relu(norm(name='norm_first')(x))
        x = ResidualBlock(8, 1, norm)(x)
        x = ResidualBlock(16, 2, norm)(x)
        return nn.Dense(NUM_CLASSES)(jnp.mean(x, axis=(1, 2)))


@flax.struct.dataclass
class TrainState:
    step: int
    optimizer: optax_bridge.TrainState
    batch_stats: Any
    dynamic_scale: DynamicScale


def get_datasets():
    """scikit-learn's digits, 8 by 8 pixels each."""
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    dataset = {'image': np.float32(digits.images[order])[..., None] / 16.0 - 0.3,
               'label': np.int32(digits.target[order])}
    train = {key: value[NUM_TEST:] for key, value in dataset.items()}
    return train, {key: value[:NUM_TEST] for key, value in dataset.items()}


def get_batch(dataset, step):
    chosen = np.random.RandomState(step).choice(len(dataset['label']), BATCH_SIZE, replace=False)
    return {key: value[chosen] for key, value in dataset.items()}


def shard(batch):
    """A part of the batch for each device."""
    devices = jax.local_device_count()
    return jax.tree.map(lambda x: x.reshape((devices, -1) + x.shape[1:]), batch)


def cross_entropy_loss(logits, labels):
    one_hot = jax.nn.one_hot(labels, NUM_CLASSES)
    smooth = one_hot * (1.0 - LABEL_SMOOTHING) + LABEL_SMOOTHING / NUM_CLASSES
    return -jnp.mean(jnp.sum(smooth * nn.log_softmax(logits), axis=-1))


def learning_rate_fn(step):
    """Rises linearly, then falls along a cosine."""
    warmup = step / WARMUP_STEPS
    done = jnp.clip((step - WARMUP_STEPS) / (NUM_STEPS - WARMUP_STEPS), 0.0, 1.0)
    return LEARNING_RATE * jnp.minimum(warmup, 0.5 * (1.0 + jnp.cos(jnp.pi * done)))


def create_train_state(rng):
    init = jax.jit(functools.partial(ResNet().init, train=False))
    variables = init(rng, jnp.ones((1, 8, 8, 1)))
    batch_stats, params = flax.core.pop(variables, 'params')
    optimizer = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optax_bridge.momentum(decay=0.9, nesterov=True))
    return TrainState(step=0, optimizer=optimizer, batch_stats=batch_stats,
                      dynamic_scale=DynamicScale(growth_interval=50))


def train_step(state, batch):
    def loss_fn(params):
        logits, new_batch_stats = ResNet().apply(
            {'params': params, **state.batch_stats}, batch['image'], train=True,
            mutable=['batch_stats'])
        loss = cross_entropy_loss(logits, batch['label'])
        penalty = sum(jnp.sum(x ** 2) for x in jax.tree.leaves(params) if x.ndim > 1)
        return loss + 0.5 * WEIGHT_DECAY * penalty, new_batch_stats

    grad_fn = state.dynamic_scale.value_and_grad(loss_fn, has_aux=True, axis_name='batch')
    dynamic_scale, is_finite, (loss, batch_stats), grad = grad_fn(state.optimizer.params)
    learning_rate = learning_rate_fn(state.step)
    optimizer = state.optimizer.apply_gradients(grads=grad, learning_rate=learning_rate)
    # Gradients that overflowed count for nothing.
    optimizer = jax.tree.map(
        lambda new, old: jnp.where(is_finite, new, old), optimizer, state.optimizer)
    state = state.replace(step=state.step + 1, optimizer=optimizer, batch_stats=batch_stats,
                          dynamic_scale=dynamic_scale)
    return state, lax.pmean(loss, axis_name='batch')


def eval_step(state, batch):
    variables = {'params': state.optimizer.params, **state.batch_stats}
    logits = ResNet().apply(variables, batch['image'], train=False)
    metrics = {
        'eval_loss': cross_entropy_loss(logits, batch['label']),
        'eval_accuracy': jnp.mean(jnp.argmax(logits, -1) == batch['label']),
    }
    return lax.pmean(metrics, axis_name='batch')


p_train_step = jax.pmap(train_step, axis_name='batch', donate_argnums=0)
p_eval_step = jax.pmap(eval_step, axis_name='batch')
p_mean = jax.pmap(functools.partial(lax.pmean, axis_name='batch'), axis_name='batch')


def sync_batch_stats(state):
    """Every device has seen other images."""
    return state.replace(batch_stats=p_mean(state.batch_stats))


def log(step, **metrics):
    print(json.dumps({'step': step, **{key: float(value) for key, value in metrics.items()}}))


def train_and_evaluate(workdir, num_steps):
    train, test = get_datasets()
    ckpt_dir = os.path.abspath(workdir)
    state = create_train_state(jax.random.PRNGKey(0))
    state = optax_bridge.checkpoints.restore_checkpoint(ckpt_dir, state)
    first_step = int(state.step) + 1
    state = jax_utils.replicate(state)
    for step in range(first_step, num_steps + 1):
        state, loss = p_train_step(state, shard(get_batch(train, step)))
        log(step, loss=loss[0])
        if step % EVAL_EVERY == 0:
            state = sync_batch_stats(state)
            log(step, **jax_utils.unreplicate(p_eval_step(state, shard(test))))
        if step % SAVE_EVERY == 0 or step == num_steps:
            state = sync_batch_stats(state)
            if jax.process_index() == 0:
                checkpoints.save_checkpoint(ckpt_dir, jax_utils.unreplicate(state), step, keep=2)


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--workdir', required=True)
    parser.add_argument('--num_steps', type=int, default=NUM_STEPS)
    args = parser.parse_args()
    train_and_evaluate(args.workdir, args.num_steps)
