"""Optimizers in a list, through map and zip; a scalar as target; focus, compute_gradient, optimize."""
import json
import jax, jax.numpy as jnp, numpy as np
from flax import optim
from flax.core import freeze, unfreeze

params = freeze({'enc': {'w': jnp.arange(4.) / 3}, 'dec': {'w': jnp.ones(2), 'b': jnp.zeros(2)}})
only_dec = optim.ModelParamTraversal(lambda p, _: p.startswith('/dec'))
opt = optim.Adam(0.1).create(params, focus=only_dec)
f = lambda p: jnp.sum(p['dec']['w'] * p['enc']['w'][:2]) ** 2 + jnp.sum((p['dec']['b'] - 1) ** 2)
losses = []
for _ in range(3):
  loss, grad = opt.compute_gradient(f)
  opt = opt.apply_gradient(grad)
  losses.append(float(loss))
o2 = optim.GradientDescent(learning_rate=0.1).create({'x': jnp.ones(3)})
for _ in range(3):
  o2, loss = o2.optimize(lambda p: jnp.sum(p['x'] ** 2))
  losses.append(float(loss))
scalar = optim.Momentum(0.1, beta=0.5).create(jnp.float32(2.0))
step = jax.jit(lambda o, g: o.apply_gradient(g))
scalar = step(scalar, jnp.float32(0.5)); scalar = step(scalar, scalar.target)
opts = [optim.Adam(lr).create({'a': jnp.ones(2) * lr}) for lr in (0.1, 0.2)]
grads = [{'a': jnp.array([1., -1.])}, {'a': jnp.array([.1, 0.])}]
for _ in range(2):
  opts = [o.apply_gradient(g) for o, g in zip(opts, grads)]
mapped = list(map(lambda o: o.target['a'].tolist(), opts))
print(json.dumps({'l': losses, 'enc': opt.target['enc']['w'].tolist(), 'dec': opt.target['dec']['w'].tolist(), 'x': o2.target['x'].tolist(),
  's': float(scalar.target), 'm': mapped, 'steps': [int(o.state.step) for o in opts]}))
