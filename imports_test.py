"""Importing our packages and training leaves other libraries and the process as they were."""

import subprocess
import sys

import pytest

# Prints what importing every public name of the packages, and a step, changed.
PROGRAM = """
import gc, importlib, inspect, logging, os, pkgutil, signal, sys, threading, types, warnings

import flax.linen, flax.nnx, flax.serialization, flax.training.checkpoints
import flax.training.train_state, jax, jax.numpy as jnp, optax, orbax.checkpoint

OTHERS = ("flax", "jax", "msgpack", "numpy", "optax", "orbax", "tensorstore")


def snapshot():
    process = {
        "sys.meta_path": list(sys.meta_path),
        "sys.path_hooks": list(sys.path_hooks),
        "sys.unraisablehook": sys.unraisablehook,
        "sys.excepthook": sys.excepthook,
        "threading.excepthook": threading.excepthook,
        "gc": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), list(gc.callbacks)),
        "os.environ": dict(os.environ),
        "signals": [signal.getsignal(number) for number in signal.valid_signals()],
        "warnings.filters": list(warnings.filters),
        "absl's logger": (logging.getLogger("absl").level, logging.getLogger("absl").filters[:]),
        "the root logger": (logging.root.level, logging.root.handlers[:]),
    }
    flags = {f"jax.config.{name}": value for name, value in jax.config.values.items()}
    registry = flax.serialization._STATE_DICT_REGISTRY
    registered = {f"Flax's functions for {cls}": pair for cls, pair in registry.items()}
    return process | flags | registered | dict(functions_of_others())


def functions_of_others():
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in OTHERS or not isinstance(module, types.ModuleType):
            continue
        for key, value in list(vars(module).items()):
            if inspect.isfunction(value):
                yield f"{name}.{key}", value
            elif inspect.isclass(value) and value.__module__ == name:
                for attribute, method in list(vars(value).items()):
                    if inspect.isfunction(method):
                        yield f"{name}.{key}.{attribute}", method


before = snapshot()
for package in {packages}:
    module = importlib.import_module(package)
    for name in dir(module):
        getattr(module, name)
{program}
after = snapshot()
for name, value in before.items():
    if name not in after or after[name] != value:
        print(name)
for name in after.keys() - before.keys():
    ours = ("__main__", "equivalence_tests", "legacy_optim", "migration_guide", "optax_bridge")
    if name.startswith("Flax's functions for") and not any(f"'{our}." in name for our in ours):
        print(name)
"""
PACKAGES = (
    "equivalence_tests",
    "legacy_optim",
    "migration_guide",
    "migration_guide.codemod",
    "optax_bridge",
    "optax_bridge.checkpoints",
    "optax_bridge.correspondence",
    "optax_bridge.spmd",
    "optax_bridge.spmd.config",
    "optax_bridge.spmd.module",
)
TRAIN = """
import optax_bridge
class Own(optax_bridge.TrainState):
    extra: int = 0
for cls in (optax_bridge.TrainState, optax_bridge.FullTrainState, Own):
    tx = optax_bridge.adam(0.1)
    state = cls.create(apply_fn=None, params={"w": jnp.ones(2)}, tx=tx)
    state = jax.jit(lambda s: s.apply_gradients(grads=s.params))(state)
    flax.serialization.from_bytes(state, flax.serialization.to_bytes(state))
optax = flax.training.train_state.TrainState.create(
    apply_fn=None, params={"w": jnp.ones(2)}, tx=optax.adam(0.1)
)
optax_bridge.checkpoints.from_bytes(optax, flax.serialization.to_bytes(optax))
"""


@pytest.mark.parametrize(
    ("packages", "program"), [(PACKAGES, ""), ((), TRAIN)], ids=["importing", "training"]
)
def test_other_libraries_and_the_process_are_as_they_were(packages, program):
    source = PROGRAM.replace("{packages}", repr(packages)).replace("{program}", program)
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == []


def test_a_train_state_is_made_without_orbax_and_without_a_finder():
    program = """
import sys
import flax.training.train_state
before = list(sys.meta_path)
import optax_bridge
optax_bridge.TrainState
assert sys.meta_path == before and "orbax.checkpoint" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
