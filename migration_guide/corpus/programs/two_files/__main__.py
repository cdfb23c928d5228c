"""A program of two files."""
import json

import jax.numpy as jnp
import two_files_steps as steps

state = steps.create(jnp.linspace(0.5, 1.0, 3))
for _ in range(3):
    state, loss = steps.train_step(state)
print(json.dumps({'p': state.optimizer.target.tolist(), 'loss': float(loss), 'step': int(state.optimizer.state.step)}))
