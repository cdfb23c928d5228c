"""Data-parallel training with batch norm, after Flax's ImageNet example.

The state holds the optimizer, the batch statistics and the loss scale; process 0 saves one replica.
"""
import argparse
import functools
import json
from typing import Any

import flax
from flax import jax_utils
from flax import linen as nn
from flax import optim
from flax.optim import dynamic_scale as dynamic_scale_lib
from flax.training import checkpoints
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np


class TinyNet(nn.Module):
    num_classes: int

    @nn.compact
    def __call__(self, x, train=True):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9,
                                 epsilon=1e-5)
        x = nn.Conv(4, (3, 3), name='conv_init')(x)
        x = norm(name='bn_init')(x)
        x = nn.relu(x)
        x = jnp.mean(x, axis=(1, 2))
        x = nn.Dense(self.num_classes)(x)
        return x


# flax.struct.dataclass enables instances of this class to be passed into jax
# transformations like tree_map and pmap.
@flax.struct.dataclass
class TrainState:
    step: int
    optimizer: flax.optim.Optimizer
    model_state: Any
    dynamic_scale: dynamic_scale_lib.DynamicScale


def create_model():
    return TinyNet(num_classes=3)


def initialized(key, image_size, model):
    input_shape = (1, image_size, image_size, 2)

    @jax.jit
    def init(*args):
        return model.init(*args)
    variables = init({'params': key}, jnp.ones(input_shape))
    model_state, params = variables.pop('params')
    return params, model_state


def cross_entropy_loss(logits, labels):
    return -jnp.sum(jax.nn.one_hot(labels, 3) * jax.nn.log_softmax(logits)) / labels.size


def cosine_decay(base_lr, step, total):
    return base_lr * 0.5 * (1.0 + jnp.cos(jnp.pi * step / total))


def train_step(model, state, batch):
    def loss_fn(params):
        variables = {'params': params, **state.model_state}
        logits, new_model_state = model.apply(variables, batch['image'], mutable=['batch_stats'])
        loss = cross_entropy_loss(logits, batch['label'])
        weight_penalty_params = jax.tree_leaves(variables['params'])
        weight_l2 = sum([jnp.sum(x ** 2) for x in weight_penalty_params if x.ndim > 1])
        return loss + 1e-4 * 0.5 * weight_l2, (new_model_state, logits)

    step = state.step
    optimizer = state.optimizer
    lr = cosine_decay(0.2, step, 10.0)
    if state.dynamic_scale:
        raise NotImplementedError
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, (new_model_state, logits)), grad = grad_fn(optimizer.target)
    # Re-use same axis_name as in the call to `pmap(...train_step...)` below.
    grad = lax.pmean(grad, axis_name='batch')
    new_optimizer = optimizer.apply_gradient(grad, learning_rate=lr)
    new_state = state.replace(step=step + 1, optimizer=new_optimizer, model_state=new_model_state)
    return new_state, {'loss': lax.pmean(loss, 'batch'), 'learning_rate': lax.pmean(lr, 'batch')}


def restore_checkpoint(state, workdir):
    return checkpoints.restore_checkpoint(workdir, state)


def save_checkpoint(state, workdir):
    if jax.host_id() == 0:
        # get train state from the first replica
        state = jax.device_get(jax.tree_map(lambda x: x[0], state))
        step = int(state.step)
        checkpoints.save_checkpoint(workdir, state, step, keep=3)


cross_replica_mean = jax.pmap(lambda x: lax.pmean(x, 'x'), 'x')


def sync_batch_stats(state):
    """Sync the batch statistics across replicas."""
    avg = cross_replica_mean
    new_model_state = state.model_state.copy({'batch_stats': avg(state.model_state['batch_stats'])})
    return state.replace(model_state=new_model_state)


def create_train_state(rng, model):
    params, model_state = initialized(rng, 4, model)
    optimizer = optim.Momentum(beta=0.9, nesterov=True).create(params)
    return TrainState(step=0, optimizer=optimizer, model_state=model_state, dynamic_scale=None)


def get_batch(step):
    rng = np.random.RandomState(step)
    n = jax.local_device_count()
    image = rng.normal(size=(n, 3, 4, 4, 2)).astype(np.float32)
    return {'image': image, 'label': rng.randint(0, 3, size=(n, 3))}


def train_and_evaluate(workdir, num_steps):
    model = create_model()
    state = create_train_state(jax.random.PRNGKey(0), model)
    state = restore_checkpoint(state, workdir)
    # step_offset > 0 if restarting from checkpoint
    step_offset = int(state.step)
    state = jax_utils.replicate(state)
    p_train_step = jax.pmap(functools.partial(train_step, model), axis_name='batch')

    losses = []
    for step in range(step_offset, num_steps):
        state, metrics = p_train_step(state, get_batch(step))
        losses.append(float(metrics['loss'][0]))
        if (step + 1) % 3 == 0:
            state = sync_batch_stats(state)
            save_checkpoint(state, workdir)
    return losses


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('workdir')
    parser.add_argument('num_steps', type=int)
    args = parser.parse_args()
    losses = train_and_evaluate(args.workdir, args.num_steps)
    state = restore_checkpoint(create_train_state(jax.random.PRNGKey(1), create_model()), args.workdir)
    stats = state.model_state['batch_stats']['bn_init']
    print(json.dumps({
        'losses': losses,
        'head': np.asarray(state.optimizer.target['Dense_0']['kernel']).tolist(),
        # In one array, as the mean, near zero, is as exact as the spread around it.
        'mean_and_var': [np.asarray(stats[name]).tolist() for name in ('mean', 'var')],
        'step': int(state.step),
        'optimizer_step': int(state.optimizer.state.step),
    }))
