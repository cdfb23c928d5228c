"""An optimizer is two files: with a thirteenth one's beside the others, everything knows it."""

import shutil
import subprocess
import sys
from pathlib import Path

import legacy_optim
import optax_bridge

FOLDER = Path(__file__).parent / "testdata" / "thirteenth"
# An old training goes on to the bit, with either recipe.
TRAIN = """
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from flax import serialization
from legacy_optim import *
from optax_bridge import *
from optax_bridge.checkpoints import restore_checkpoint

params = {"w": jnp.asarray([1.0, -2.0, 0.5]), "b": jnp.zeros((2, 2))}
old = Lion(0.1, beta1=0.5, beta2=0.9).create(params).apply_gradient(jax.tree.map(jnp.cos, params))
Path("checkpoint_1").write_bytes(serialization.to_bytes(old))
for exact in (True, False):
    tx, optimizer = from_legacy(old.optimizer_def, exact), old
    state = restore_checkpoint("checkpoint_1", TrainState.create(None, params, tx))
    for _ in range(3):
        grads = jax.tree.map(jnp.sin, state.params)
        state, optimizer = state.apply_gradients(grads=grads), optimizer.apply_gradient(grads)
    jax.tree.map(np.testing.assert_array_equal, state.params, optimizer.target)
    back = state.to_legacy(old.optimizer_def)
    jax.tree.map(np.testing.assert_array_equal, back, optimizer)
print(lion)
"""


def test_two_files_and_two_lines_are_enough(tmp_path: Path):
    for package in (legacy_optim, optax_bridge):
        folder = Path(package.__path__[0])
        ignore = shutil.ignore_patterns("*_test.py", "testdata", "__pycache__")
        shutil.copytree(folder, tmp_path / folder.name, ignore=ignore)
    shutil.copy(FOLDER / "legacy_optim" / "lion.py", tmp_path / "legacy_optim")
    shutil.copy(FOLDER / "optimizers" / "lion.py", tmp_path / "optax_bridge" / "optimizers")
    for stub, line in {
        "legacy_optim": "from .lion import Lion as Lion",
        "optax_bridge": "from .optimizers.lion import lion as lion",
    }.items():
        with open(tmp_path / stub / "__init__.pyi", "a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    for command in (["-c", TRAIN], ["-m", "optax_bridge", "recipe", "Lion(0.1)"]):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "lion" in done.stdout.lower()
