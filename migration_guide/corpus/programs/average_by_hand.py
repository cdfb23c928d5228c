"""Score matching as it was written: warm-up and clipping around the optimizer, EMA by hand."""
import json
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np


@flax.struct.dataclass
class State:
    step: int
    optimizer: flax.optim.Optimizer
    lr: float
    ema_rate: float
    params_ema: Any


class Config:
    optimizer = 'Adam'
    lr = 2e-2
    beta1 = 0.9
    eps = 1e-8
    weight_decay = 0.0
    warmup = 4
    grad_clip = 1.0


def get_optimizer(config):
    if config.optimizer == 'Adam':
        optimizer = flax.optim.Adam(beta1=config.beta1, eps=config.eps,
                                    weight_decay=config.weight_decay)
    else:
        raise NotImplementedError(f'Optimizer {config.optimizer} not supported yet!')
    return optimizer


def optimization_manager(config):
    """Returns an optimize_fn based on `config`."""
    def optimize_fn(state, grad, warmup=config.warmup, grad_clip=config.grad_clip):
        lr = state.lr
        if warmup > 0:
            lr = lr * jnp.minimum(state.step / warmup, 1.0)
        if grad_clip >= 0:
            grad_norm = jnp.sqrt(sum([jnp.sum(jnp.square(x)) for x in jax.tree_leaves(grad)]))
            clipped_grad = jax.tree_map(
                lambda x: x * grad_clip / jnp.maximum(grad_norm, grad_clip), grad)
        else:
            clipped_grad = grad
        return state.optimizer.apply_gradient(clipped_grad, learning_rate=lr)
    return optimize_fn


def get_step_fn(loss_fn, optimize_fn):
    def step_fn(state, batch):
        step = state.step + 1
        grad_fn = jax.value_and_grad(loss_fn)
        loss, grad = grad_fn(state.optimizer.target, batch)
        new_optimizer = optimize_fn(state, grad)
        new_params_ema = jax.tree_multimap(
            lambda p_ema, p: p_ema * state.ema_rate + p * (1.0 - state.ema_rate),
            state.params_ema, new_optimizer.target)
        new_state = state.replace(step=step, optimizer=new_optimizer, params_ema=new_params_ema)
        return new_state, loss
    return step_fn


def score_loss(params, batch):
    x, z = batch
    score = jnp.tanh((x + 0.3 * z) @ params['a'] + params['b']) @ params['c']
    return jnp.mean(jnp.sum((score * 0.3 + z) ** 2, axis=-1))


rng = np.random.RandomState(2)
initial_params = {'a': jnp.asarray(rng.normal(size=(2, 5)), jnp.float32), 'b': jnp.zeros(5),
                  'c': jnp.asarray(rng.normal(size=(5, 2)), jnp.float32)}
config = Config()
optimizer = get_optimizer(config).create(initial_params)
state = State(step=0, optimizer=optimizer, lr=config.lr, ema_rate=0.9, params_ema=initial_params)
step_fn = jax.jit(get_step_fn(score_loss, optimization_manager(config)))
losses = []
for _ in range(6):
    batch = tuple(rng.normal(size=(7, 2)).astype(np.float32) for _ in range(2))
    state, loss = step_fn(state, batch)
    losses.append(float(loss))
print(json.dumps({
    'losses': losses,
    'a': np.asarray(state.optimizer.target['a']).tolist(),
    'ema': np.asarray(state.params_ema['c']).tolist(),
    'steps': [int(state.step), int(state.optimizer.state.step)],
}))
