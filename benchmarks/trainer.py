"""A step in the trainer against a jitted `TrainState` step of the same model, in a plain loop.

Both sides read the same batches and take turns of some steps each; the ratio is taken turn by turn.
The trainer does all that it does by default: norms of gradients and updates, the look at every
loss, TensorBoard's file at every step.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

import optax_bridge
from benchmarks.figures import Figure, ratios
from benchmarks.timing import in_turn, interval
from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import language_model, regression
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.trainer import SpmdTrainer
from optax_bridge.spmd.trainer.loop import TrainingLoop

_PAIRS = (("trainer", "plain loop", 1.05),)
_MOST_SECONDS_BEYOND = 2e-4  # of the processor, in each step
Clock = Callable[[], float]


def measure(section: str, folder: Path, quick: bool) -> Iterator[Figure]:
    """The time of a step, and the processor's time where the model computes next to nothing."""
    steps, turns = (1, 1) if quick else (12, 24)
    cfg = regression.trainer() if quick else language_model.trainer(dim=128)
    sides = _sides(cfg, folder / "time", steps, time.perf_counter)
    subject = "the trainer's step"
    yield from ratios(section, subject, sides, _PAIRS, repeats=turns, warm_up=1, seconds=60)
    steps = 1 if quick else 300
    sides = _sides(regression.trainer(), folder / "processor", steps, time.process_time)
    times = in_turn(sides, turns, warm_up=1)
    pairs = zip(times["trainer"], times["plain loop"], strict=True)
    beyond = interval([(ours - plain) / _MOST_SECONDS_BEYOND for ours, plain in pairs])
    what = "processor seconds beyond a plain loop's / most"
    yield Figure(section, subject, what, beyond, 1e3 * _MOST_SECONDS_BEYOND, "ms", 1.0)


def _sides(example: Any, folder: Path, steps: int, clock: Clock) -> dict[str, Callable[[], float]]:
    """The plain loop and the trainer, each as a turn of some steps."""
    cfg = example.set(evalers={}, max_step=0, dir=str(folder))
    cfg.learner.optimizer = config_for_function(optax_bridge.adam).set(learning_rate=1e-3)
    cfg.checkpointer.save_policy.set(n=10**8, max_step=10**8 - 1)
    return {"plain loop": _plain_loop(cfg, steps, clock), "trainer": _trainer(cfg, steps, clock)}


def _plain_loop(cfg: SpmdTrainer.Config, steps: int, clock: Clock) -> Callable[[], float]:
    """A loop as one would write it around a `TrainState`; it reads each loss."""
    key = jax.random.PRNGKey(0)
    model = cfg.model.clone(name="model").instantiate(parent=None)
    batches = iter(cfg.input.clone(name="input").instantiate(parent=None).dataset())

    def step(state: PyTree, batch: PyTree) -> PyTree:
        def loss_fn(params: PyTree) -> PyTree:
            (loss, _), _ = functional(model, key, params, {"input_batch": batch}, is_training=True)
            return loss

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    jitted = jax.jit(step, donate_argnums=0)
    params = model.initialize_parameters_recursively(key)
    tx = optax_bridge.adam(1e-3)
    state: PyTree = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)

    def turn() -> float:
        nonlocal state
        start = clock()
        for _ in range(steps):
            state, loss = jitted(state, next(batches))
            float(loss)
        jax.block_until_ready(state)
        return (clock() - start) / steps

    return turn


def _trainer(cfg: SpmdTrainer.Config, steps: int, clock: Clock) -> Callable[[], float]:
    """The trainer's own loop."""
    trainer, key = cfg.instantiate(parent=None), jax.random.PRNGKey(0)
    trainer.init(key)

    def turn() -> float:
        loop = TrainingLoop(trainer, max_step=(trainer.step or 0) + steps)
        with trainer.mesh_scope():
            start = clock()
            loop.run(forced_evalers=set(), prng_key=key)
            jax.block_until_ready(trainer.trainer_state)
            return (clock() - start) / steps

    return turn
