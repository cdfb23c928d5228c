"""A dict of optimizer, epoch and best accuracy; the function is imported by itself."""
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax.training.checkpoints import latest_checkpoint, restore_checkpoint, save_checkpoint

workdir, num_epochs = sys.argv[1], int(sys.argv[2])


def logistic_loss(w, x, y):
    logits = x @ w['kernel'] + w['bias']
    return jnp.mean(jnp.log1p(jnp.exp(-y * logits)))


@jax.jit
def train_epoch(optimizer, x, y):
    for i in range(2):
        grad = jax.grad(logistic_loss)(optimizer.target, x[i::2], y[i::2])
        optimizer = optimizer.apply_gradient(grad)
    return optimizer, logistic_loss(optimizer.target, x, y)


def new_optimizer():
    return optim.Adagrad(learning_rate=0.1, eps=1e-6).create(
        {'kernel': jnp.full((3,), 0.1), 'bias': jnp.zeros(())})


rng = np.random.RandomState(7)
x = rng.normal(size=(10, 3)).astype(np.float32)
y = np.sign(x @ np.array([1.0, -2.0, 0.5], np.float32) + 0.3)

optimizer = new_optimizer()
epoch, best = 0, 1e9
if latest_checkpoint(workdir, prefix='ckpt_'):
    ckpt = restore_checkpoint(
        workdir, {'optimizer': optimizer, 'epoch': epoch, 'best': best}, prefix='ckpt_')
    optimizer, epoch, best = ckpt['optimizer'], ckpt['epoch'], ckpt['best']

losses = []
for epoch in range(epoch, num_epochs):
    optimizer, loss = train_epoch(optimizer, x, y)
    losses.append(float(loss))
    best = min(best, float(loss))
    if epoch % 3 == 2:
        ckpt = {'optimizer': optimizer, 'epoch': epoch + 1, 'best': best}
        save_checkpoint(workdir, ckpt, step=epoch + 1, prefix='ckpt_', keep=2)

template = {'optimizer': new_optimizer(), 'epoch': 0, 'best': 0.0}
ckpt = restore_checkpoint(workdir, template, step=num_epochs, prefix='ckpt_')
print(json.dumps({
    'losses': losses,
    'kernel': np.asarray(ckpt['optimizer'].target['kernel']).tolist(),
    'bias': float(ckpt['optimizer'].target['bias']),
    'epoch': int(ckpt['epoch']),
    'step': int(ckpt['optimizer'].state.step),
    'best': float(ckpt['best']),
}))
