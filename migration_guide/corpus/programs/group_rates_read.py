"""Groups by two kinds of traversals; a rate of each is read, changed and read again."""
import json
import jax, jax.numpy as jnp, numpy as np
from flax import traverse_util
from flax import optim

params = {'backbone': {'kernel': jnp.linspace(-1, 1, 6).reshape(2, 3), 'bias': jnp.ones(3) * .1},
          'head': {'kernel': jnp.linspace(.2, .7, 3), 'bias': jnp.zeros(())}}
kernels = traverse_util.ModelParamTraversal(lambda path, _: 'kernel' in path and 'head' not in path)
biases = optim.ModelParamTraversal(lambda p, _: p.endswith('bias'))
kernel_opt = optim.Momentum(learning_rate=0.1, beta=0.8, weight_decay=1e-2)
bias_opt = optim.Adam(learning_rate=0.05, beta2=0.99)
optimizer_def = optim.MultiOptimizer((kernels, kernel_opt), (biases, bias_opt))
optimizer = optimizer_def.create(params)


def loss_fn(p, x):
  h = jnp.tanh(x @ p['backbone']['kernel'] + p['backbone']['bias'])
  return jnp.sum((h @ p['head']['kernel'] + p['head']['bias'] - 1.) ** 2)


def train_step(optimizer, x, scale):
  grad = jax.grad(loss_fn)(optimizer.target, x)
  hps = optimizer.optimizer_def.hyper_params
  new_hps = [hp.replace(learning_rate=hp.learning_rate * scale) for hp in hps]
  return optimizer.apply_gradient(grad, hyper_params=new_hps), new_hps[0].learning_rate


train_step = jax.jit(train_step)
lrs = []
for i in range(5):
  optimizer, lr = train_step(optimizer, jnp.array([[.3, -.2 * i], [1., .5]]), 1.0 / (1 + i))
  lrs.append(float(lr))
base = [float(hp.learning_rate) for hp in optimizer.optimizer_def.hyper_params]
print(json.dumps({'lrs': lrs, 'base': base, 'p': jax.tree_util.tree_map(lambda x: np.asarray(x).tolist(), optimizer.target),
  'step': int(optimizer.state.step)}))
