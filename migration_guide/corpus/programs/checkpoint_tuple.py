"""A tuple of optimizer and bookkeeping is saved, and restored into a template of its own."""
import json
import os
import sys
import tempfile

import jax.numpy as jnp
import numpy as np
from flax import optim, serialization
from flax.training import checkpoints


def make(rate):
    return optim.Momentum(learning_rate=rate, beta=0.8).create({'w': jnp.zeros(3)})


folder = os.path.join(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(), 'run')
gradient = {'w': jnp.array([1.0, -2.0, 0.5])}
if checkpoints.latest_checkpoint(folder) is None:
    optimizer, epoch, rate = make(0.1), 0, 0.1
    for epoch in range(3):
        rate = 0.1 / (epoch + 1)
        optimizer = optimizer.apply_gradient(gradient, learning_rate=rate)
    checkpoints.save_checkpoint(folder, (optimizer, epoch, rate), 3)

template = make(0.0)
restored, epoch, rate = checkpoints.restore_checkpoint(folder, (template, 0, 0.0))
data = serialization.to_bytes(restored)
again = serialization.from_bytes(make(0.0), data)
again = again.apply_gradient(gradient, learning_rate=0.01)
print(json.dumps({
    'w': np.asarray(again.target['w']).tolist(),
    'epoch': int(epoch),
    'rate': float(rate),
    'step': int(again.state.step),
}))
