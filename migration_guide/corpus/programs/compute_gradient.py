"""Loss and gradient by the optimizer's own method."""
import json

import jax.numpy as jnp
from flax import optim

optimizer = optim.Adam(0.05).create({'w': jnp.linspace(0, 1, 4)})


def loss_fn(params):
    return jnp.sum((params['w'] - 2.0) ** 2)


def with_aux(params):
    loss = jnp.sum(params['w'] ** 2)
    return loss, {'double': loss * 2}


loss, grad = optimizer.compute_gradient(loss_fn)
optimizer = optimizer.apply_gradient(grad)
loss2, aux, grad = optimizer.compute_gradient(with_aux)
optimizer = optimizer.apply_gradient(grad)
print(json.dumps({'loss': float(loss), 'loss2': float(loss2), 'double': float(aux['double']),
                  'w': optimizer.target['w'].tolist()}))
