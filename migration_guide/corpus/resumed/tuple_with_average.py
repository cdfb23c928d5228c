"""A tuple of optimizer, average of the parameters and step."""
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax.training import checkpoints as ckpt


def init_params(seed):
    rng = np.random.RandomState(seed)
    return {'embed': jnp.asarray(rng.normal(size=(5, 3)), jnp.float32),
            'out': {'kernel': jnp.asarray(rng.normal(size=(3, 5)), jnp.float32), 'bias': jnp.full((5,), 0.1)}}


def loss_fn(params, tokens):
    h = params['embed'][tokens[:, :-1]]
    logits = h @ params['out']['kernel'] + params['out']['bias']
    logp = jax.nn.log_softmax(logits)
    return -jnp.mean(jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1))


@jax.jit
def train_step(optimizer, ema_params, tokens):
    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target, tokens)
    optimizer = optimizer.apply_gradient(grad)
    ema_params = jax.tree_multimap(
        lambda ema, p: ema * 0.9 + p * 0.1, ema_params, optimizer.target)
    return optimizer, ema_params, loss


eval_loss = jax.jit(loss_fn)


def new_optimizer(seed=0):
    return optim.LAMB(learning_rate=0.02, weight_decay=0.01).create(init_params(seed))


def main(model_dir, total):
    optimizer = new_optimizer()
    ema_params = optimizer.target
    start_step = 0
    optimizer, ema_params, start_step = ckpt.restore_checkpoint(
        model_dir, (optimizer, ema_params, start_step))
    losses = []
    for step in range(start_step, total):
        tokens = np.random.RandomState(step).randint(0, 5, size=(4, 6))
        optimizer, ema_params, loss = train_step(optimizer, ema_params, tokens)
        losses.append([float(loss), float(eval_loss(ema_params, tokens))])
        if step % 3 == 2:
            ckpt.save_checkpoint(
                model_dir, (optimizer, ema_params, step + 1), step + 1, keep=2, overwrite=True)

    fresh = new_optimizer(1)
    optimizer, ema_params, step = ckpt.restore_checkpoint(model_dir, (fresh, fresh.target, 0))
    print(json.dumps({
        'losses': losses,
        'embed': np.asarray(optimizer.target['embed']).tolist(),
        'ema': np.asarray(ema_params['out']['kernel']).tolist(),
        'step': int(step),
        'optimizer_step': int(optimizer.state.step),
    }))


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
