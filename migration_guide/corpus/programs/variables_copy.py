"""Variables of a module with batch norm: taken apart, copied with changes, put together again."""
import json

import flax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import optim
from flax.core import freeze, unfreeze


class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(3, use_bias=False, name='hidden')(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5, name='norm')(x)
        return nn.Dense(1, name='head')(nn.relu(x))


net = Net()
x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)
y = np.abs(x[:, :1])

variables = net.init(jax.random.PRNGKey(0), x, train=False)
batch_stats, params = variables.pop('params')
# Not of the key, so that a test can compare: kernels as of a file.
pretrained = freeze({'kernel': jnp.linspace(-0.7, 0.8, 6).reshape(2, 3)})
params = params.copy({'hidden': pretrained})
params = unfreeze(params)
params['head']['kernel'] = jnp.linspace(0.3, 0.9, 3).reshape(3, 1)
params = freeze(params)
optimizer = optim.Momentum(learning_rate=0.1, beta=0.8).create(params)


@jax.jit
def train_step(optimizer, model_state, x, y):
    def loss_fn(params):
        variables = model_state.copy({'params': params})
        out, new_state = net.apply(variables, x, train=True, mutable=['batch_stats'])
        return jnp.mean((out - y) ** 2), new_state

    (loss, new_state), grad = jax.value_and_grad(loss_fn, has_aux=True)(optimizer.target)
    return optimizer.apply_gradient(grad), model_state.copy(new_state), loss


losses = []
for i in range(4):
    optimizer, batch_stats, loss = train_step(optimizer, batch_stats, x[i % 2:], y[i % 2:])
    losses.append(float(loss))

synced = batch_stats.copy({
    'batch_stats': jax.tree_map(lambda s: s * 0.5, batch_stats['batch_stats'])})
eval_variables = flax.core.FrozenDict({'params': optimizer.target, **synced})
out = net.apply(eval_variables, x, train=False)
print(json.dumps({
    'losses': losses,
    'mean': np.asarray(batch_stats['batch_stats']['norm']['mean']).tolist(),
    'half': np.asarray(synced['batch_stats']['norm']['mean']).tolist(),
    'out': np.asarray(out).tolist(),
}))
