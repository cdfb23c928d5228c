"""Inputs in half precision and a dynamic loss scale, which is saved with the optimizer."""
import json
import os
import sys

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import optim
from flax.optim.dynamic_scale import DynamicScale
from flax.training import checkpoints


@flax.struct.dataclass
class TrainState:
    step: int
    optimizer: optim.Optimizer
    dynamic_scale: DynamicScale
    skipped: int = 0


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(4)(x.astype(jnp.float32)))
        return nn.Dense(2)(x)


net = Net()


def create_train_state(seed):
    params = net.init(jax.random.PRNGKey(seed), jnp.ones((1, 3)))['params']
    optimizer = optim.LARS(learning_rate=0.4, trust_coefficient=0.05, beta=0.8, weight_decay=1e-3).create(params)
    dynamic_scale = DynamicScale(growth_interval=2, scale=1024.0)
    return TrainState(step=0, optimizer=optimizer, dynamic_scale=dynamic_scale)


@jax.jit
def train_step(state, x, y):
    def loss_fn(params):
        return jnp.mean((net.apply({'params': params}, x) - y) ** 2)

    grad_fn = state.dynamic_scale.value_and_grad(loss_fn)
    dynamic_scale, is_fin, loss, grad = grad_fn(state.optimizer.target)
    new_optimizer = state.optimizer.apply_gradient(grad)
    # if is_fin == False the gradients contain Inf/NaNs and the old optimizer state is kept
    restore_fn = lambda new, old: jnp.where(is_fin, new, old)
    new_optimizer = jax.tree_multimap(restore_fn, new_optimizer, state.optimizer)
    new_state = state.replace(
        step=state.step + 1, optimizer=new_optimizer, dynamic_scale=dynamic_scale,
        skipped=state.skipped + jnp.where(is_fin, 0, 1))
    return new_state, loss


ckpt_dir = os.path.abspath(sys.argv[1])
state = create_train_state(0)
state = checkpoints.restore_checkpoint(ckpt_dir, state)
losses, scales = [], []
for step in range(int(state.step), int(sys.argv[2])):
    rng = np.random.RandomState(step)
    x = rng.normal(size=(6, 3)).astype(np.float16)
    y = np.stack([x.sum(axis=1), x[:, 0] * 2], axis=1).astype(np.float32)
    if step in (1, 4):
        y = y * 1e37  # a spike, so that gradients overflow
    state, loss = train_step(state, x, y)
    if np.isfinite(loss):
        losses.append(float(loss))
    scales.append(float(state.dynamic_scale.scale))
    if (step + 1) % 3 == 0:
        checkpoints.save_checkpoint(ckpt_dir, state, int(state.step), keep=3, overwrite=True)

last = checkpoints.restore_checkpoint(ckpt_dir, create_train_state(1))
print(json.dumps({
    'losses': losses,
    'scales': scales,
    'kernel': np.asarray(last.optimizer.target['Dense_1']['kernel']).tolist(),
    'scale': float(last.dynamic_scale.scale),
    'fin_steps': int(last.dynamic_scale.fin_steps),
    'skipped': int(last.skipped),
    'steps': [int(last.step), int(last.optimizer.state.step)],
}))
