"""What a step in the trainer takes over a bare jitted `TrainState` step of the same model.

All sides read the same batches and take turns of some steps each; the ratio is taken turn by turn.
The trainer does all that it does by default: norms of gradients and updates, the look at every
loss, TensorBoard's file at every step. Of the bare loops one never looks at a loss, so that it is
steps ahead of the device; the other one does as the trainer does, when the next step has begun.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

import optax_bridge
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import language_model, regression
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.summaries import NoOpWriter
from optax_bridge.spmd.trainer import SpmdTrainer
from optax_bridge.spmd.trainer.loop import TrainingLoop

BARE = "bare TrainState"
LOOKING = "bare TrainState that looks at each loss"
SILENT = "trainer, no summaries"
# Which ratios are wanted, each with its bar.
PAIRS = (
    ("trainer", BARE, 1.05),
    (SILENT, BARE, 1.02),
    (SILENT, LOOKING, 1.02),
    (LOOKING, BARE, None),
)


def trainer_config(quick: bool = False) -> SpmdTrainer.Config:
    """A language model, or quickly a regression, by plain Adam, never evaluated nor saved."""
    made = regression.trainer() if quick else language_model.trainer(dim=128)
    cfg: Any = made.set(evalers={}, max_step=0)
    cfg.learner.optimizer = config_for_function(optax_bridge.adam).set(learning_rate=1e-3)
    cfg.checkpointer.save_policy.set(n=10**8, max_step=10**8 - 1)
    return cfg


def bare_side(cfg: SpmdTrainer.Config, steps: int, *, looks: bool) -> Callable[[], float]:
    """A loop that one would write by hand around a `TrainState`.

    Args:
      cfg: of model and input.
      steps: of a turn.
      looks: whether it fetches each loss when the next step has begun.
    """
    key = jax.random.PRNGKey(0)
    model = cfg.model.clone(name="model").instantiate(parent=None)
    batches = iter(cfg.input.clone(name="input").instantiate(parent=None).dataset())

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        def loss_fn(params: Any) -> Any:
            (loss, _), _ = functional(model, key, params, {"input_batch": batch}, is_training=True)
            return loss

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    jitted = jax.jit(step, donate_argnums=0)
    state: Any = optax_bridge.TrainState.create(
        apply_fn=None,
        params=model.initialize_parameters_recursively(key),
        tx=optax_bridge.adam(1e-3),
    )

    def turn() -> float:
        nonlocal state
        start, loss = time.perf_counter(), None
        for _ in range(steps):
            last = loss
            state, loss = jitted(state, next(batches))
            if looks and last is not None:
                last.item()
        jax.block_until_ready((state, loss))
        return (time.perf_counter() - start) / steps

    return turn


def trainer_side(cfg: SpmdTrainer.Config, steps: int) -> Callable[[], float]:
    """The trainer's own loop."""
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


def sides(folder: Path, steps: int, quick: bool) -> dict[str, Callable[[], float]]:
    """The bare loops, the trainer, and the trainer without summaries: each a turn of some steps."""
    cfg = trainer_config(quick).set(dir=str(folder))
    made = {BARE: bare_side(cfg, steps, looks=False), "trainer": trainer_side(cfg, steps)}
    if not quick:
        made[LOOKING] = bare_side(cfg, steps, looks=True)
        silent: Any = cfg.clone(summary_writer=NoOpWriter.default_config())
        silent.learner.norm_summaries = False
        made[SILENT] = trainer_side(silent, steps)
    return made
