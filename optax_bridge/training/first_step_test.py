"""What a training loop on Optax has no use for is not imported for its first step."""

import subprocess
import sys

CODE = """
import sys
import jax, jax.numpy as jnp, optax_bridge

params = {"w": jnp.ones(2)}
state = optax_bridge.TrainState.create(None, params, optax_bridge.adam(1e-3))
jax.eval_shape(lambda state, grads: state.apply_gradients(grads=grads), state, params)
print(*sys.modules)
"""


def test_a_first_step_imports_neither_old_api_nor_trainer_nor_meshes():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert {"optax_bridge.training.train_state", "optax_bridge.optimizers.adam"} <= imported
    assert not imported & {
        "legacy_optim.base",
        "legacy_optim.adam",
        "optax_bridge.checkpoints.same_names",
        "optax_bridge.correspondence.choice",
        "optax_bridge.correspondence.table",
        "optax_bridge.legacy",
        "optax_bridge.spmd",
        "optax_bridge.training.shardings",
    }
