"""A step in the trainer over a bare jitted `TrainState` step of the same model.

Both sides read the same batches and take turns of some steps each; the ratio is taken turn by turn.
The trainer does all that it does by default: norms of gradients and updates, the look at every
loss, TensorBoard's file at every step.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import optax_bridge
from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import language_model, regression
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.trainer import SpmdTrainer
from optax_bridge.spmd.trainer.loop import TrainingLoop

PAIRS = (("trainer", "bare TrainState", 1.05),)


def sides(folder: Path, steps: int, quick: bool) -> dict[str, Callable[[], float]]:
    """Returns the bare loop and the trainer, each as a turn of some steps."""
    example = regression.trainer() if quick else language_model.trainer(dim=128)
    cfg: Any = example.set(evalers={}, max_step=0, dir=str(folder))
    cfg.learner.optimizer = config_for_function(optax_bridge.adam).set(learning_rate=1e-3)
    cfg.checkpointer.save_policy.set(n=10**8, max_step=10**8 - 1)
    return {"bare TrainState": _bare(cfg, steps), "trainer": _trainer(cfg, steps)}


def _bare(cfg: SpmdTrainer.Config, steps: int) -> Callable[[], float]:
    """Returns a loop as one would write it around a `TrainState`; it never looks at a loss."""
    key = jax.random.PRNGKey(0)
    model = cfg.model.clone(name="model").instantiate(parent=None)
    batches = iter(cfg.input.clone(name="input").instantiate(parent=None).dataset())

    def step(state: PyTree, batch: PyTree) -> PyTree:
        def loss_fn(params: PyTree) -> PyTree:
            (loss, _), _ = functional(model, key, params, {"input_batch": batch}, is_training=True)
            return loss

        return state.apply_gradients(grads=jax.grad(loss_fn)(state.params))

    jitted = jax.jit(step, donate_argnums=0)
    params = model.initialize_parameters_recursively(key)
    tx = optax_bridge.adam(1e-3)
    state: PyTree = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)

    def turn() -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(steps):
            state = jitted(state, next(batches))
        jax.block_until_ready(state)
        return (time.perf_counter() - start) / steps

    return turn


def _trainer(cfg: SpmdTrainer.Config, steps: int) -> Callable[[], float]:
    """Returns the trainer's own loop."""
    trainer, key = cfg.instantiate(parent=None), jax.random.PRNGKey(0)
    trainer.init(key)

    def turn() -> float:
        loop = TrainingLoop(trainer, max_step=(trainer.step or 0) + steps)
        with trainer.mesh_scope():
            start = time.perf_counter()
            loop.run(forced_evalers=set(), prng_key=key)
            jax.block_until_ready(trainer.trainer_state)
            return (time.perf_counter() - start) / steps

    return turn
