"""What a step in the trainer takes over a bare jitted `TrainState` step of the same model.

    python -m benchmarks.trainer
    python -m benchmarks.trainer --dim 256 --turns 30

Both sides read the same batches and take turns of some steps each; the ratio is taken turn by turn.
The trainer does all that it does by default: norms of gradients and updates, the look at every
loss, TensorBoard's file at every step.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

import optax_bridge
from benchmarks.timing import Spread, in_turn, spread
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import language_model
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.summaries import NoOpWriter
from optax_bridge.spmd.trainer import SpmdTrainer
from optax_bridge.spmd.trainer.loop import TrainingLoop

_KEY = jax.random.PRNGKey(0)


def trainer_config(dim: int, batch_size: int) -> SpmdTrainer.Config:
    """The language model, trained by plain Adam, without evaluation and checkpoints."""
    cfg: Any = language_model.trainer(dim=dim, batch_size=batch_size).set(evalers={}, max_step=0)
    cfg.learner.optimizer = config_for_function(optax_bridge.adam).set(learning_rate=1e-3)
    cfg.checkpointer.save_policy.set(n=10**8, max_step=10**8 - 1)
    return cfg


def bare_side(cfg: SpmdTrainer.Config, steps: int) -> Callable[[], float]:
    """A loop that one would write by hand around a `TrainState`."""
    model = cfg.model.clone(name="model").instantiate(parent=None)
    batches = iter(cfg.input.clone(name="input").instantiate(parent=None).dataset())

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        def loss_fn(params: Any) -> Any:
            (loss, _), _ = functional(model, _KEY, params, {"input_batch": batch}, is_training=True)
            return loss

        loss, grads = jax.value_and_grad(loss_fn)(state.params)
        return state.apply_gradients(grads=grads), loss

    jitted = jax.jit(step, donate_argnums=0)
    state: Any = optax_bridge.TrainState.create(
        apply_fn=None,
        params=model.initialize_parameters_recursively(_KEY),
        tx=optax_bridge.adam(1e-3),
    )

    def turn() -> float:
        nonlocal state
        start, loss = time.perf_counter(), None
        for _ in range(steps):
            state, loss = jitted(state, next(batches))
        jax.block_until_ready((state, loss))
        return (time.perf_counter() - start) / steps

    return turn


def trainer_side(cfg: SpmdTrainer.Config, steps: int) -> Callable[[], float]:
    """The trainer's own loop."""
    trainer = cfg.instantiate(parent=None)
    trainer.init(_KEY)

    def turn() -> float:
        loop = TrainingLoop(trainer, max_step=(trainer.step or 0) + steps)
        with trainer.mesh_scope():
            start = time.perf_counter()
            loop.run(forced_evalers=set(), prng_key=_KEY)
            jax.block_until_ready(trainer.trainer_state)
            return (time.perf_counter() - start) / steps

    return turn


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="of a turn")
    parser.add_argument("--turns", type=int, default=15)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        cfg = trainer_config(args.dim, args.batch_size).set(dir=scratch)
        quiet: Any = cfg.clone(summary_writer=NoOpWriter.default_config())
        quiet.learner.norm_summaries = False
        sides = {
            "bare TrainState": bare_side(cfg, args.steps),
            "trainer": trainer_side(cfg, args.steps),
            "trainer, no summaries": trainer_side(quiet, args.steps),
        }
        processor: dict[str, list[float]] = {name: [] for name in sides}
        counted = {name: _counting(side, processor[name]) for name, side in sides.items()}
        seconds = in_turn(counted, args.turns, warm_up=1)
    processor = {name: values[1:] for name, values in processor.items()}  # without the warm-up
    table = Table("", "ms for a step", "ratio", "quartiles", "processor time", "ratio")
    for name in sides:
        ratio, quiet_ratio = _ratios(seconds, name), _ratios(processor, name)
        table.add_row(
            name,
            f"{spread(seconds[name]).median * 1e3:.2f}",
            f"{ratio.median:.3f}",
            f"{ratio.low:.3f} to {ratio.high:.3f}",
            f"{spread(processor[name]).median / args.steps * 1e3:.2f}",
            f"{quiet_ratio.median:.3f}",
        )
    Console().print(table)


def _counting(side: Callable[[], float], spent: list[float]) -> Callable[[], float]:
    """The side, whose processor time is noted: that of all threads, others' programs left out."""

    def turn() -> float:
        start = time.process_time()
        seconds = side()
        spent.append(time.process_time() - start)
        return seconds

    return turn


def _ratios(measured: dict[str, list[float]], name: str) -> Spread:
    pairs = zip(measured[name], measured["bare TrainState"], strict=True)
    return spread([own / bare for own, bare in pairs])


if __name__ == "__main__":
    main()
