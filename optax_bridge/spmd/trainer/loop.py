"""The loop of a training: steps, and everything that happens between them."""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.checkpointer.handlers import is_iterator
from optax_bridge.spmd.trainer.base import BaseTrainer
from optax_bridge.spmd.trainer.state import read_scalars

_log = logging.getLogger(__name__)
_LOG_EVERY = 100
_TRACED_STEPS = 3
_FIRST_STEPS = 5  # each of them is logged
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_BROKEN = (errno.EIO, errno.ESTALE)  # of a disk, of a network's file system


class UndefinedLossException(RuntimeError):
    """A loss is not finite, or the gradients are not.

    Attributes:
      step: the step.
      loss: its loss.
    """

    def __init__(self, message: str, step: int, loss: float):
        super().__init__(message)
        self.step, self.loss = step, loss


class SavingError(RuntimeError):
    """A file of the run could not be written; checkpoints that are there are as they were."""


class _Taken(NamedTuple):
    """A step that was begun, and whose outputs were not looked at yet."""

    step: int
    outputs: dict[str, PyTree]


class TrainingLoop:
    """Runs a trainer."""

    def __init__(self, trainer: BaseTrainer, *, max_step: float | None = None):
        self._trainer, self._writer = trainer, trainer.summary_writer
        self._cfg = trainer.config
        if max_step is not None:
            self._cfg.max_step = max_step
        self.stop_requested = False
        self.stopped_at: int | None = None
        self.listeners: list[Callable[[int, float], None]] = []
        self._timer: tuple[int, float] | None = None
        self._trace_until: int | None = None
        self._saved_step: int | None = None
        self._beginning: tuple[jax.Array, object] | None = None  # key, and where the input was

    def at_first_step(self) -> None:
        """Evalers and checkpointer at step 0, if their policies say so."""
        summaries = self._evaluate(0, None, set())
        with self.saving():
            if self._trainer.checkpointer.should_save(step=0, evaler_summaries=summaries):
                self._save(0)

    def run(self, *, forced_evalers: set[str], prng_key: jax.Array) -> dict[str, PyTree] | None:
        """Takes steps until the last one, the input's end, or a request to stop."""
        trainer, checkpointer = self._trainer, self._trainer.checkpointer
        self.stop_requested, self.stopped_at = False, None
        self._timer = (trainer.step or 0, time.perf_counter())
        last: _Taken | None = None
        evaler_summaries: dict[str, dict[str, PyTree] | None] = {}
        with self.saving(), checkpointer:
            iterator = trainer.input_iterator()
            if self._cfg.save_input_iterator and is_iterator(iterator):
                self._beginning = (prng_key, iterator.get_state())
            batches = trainer.input.batches(iterator)
            while (trainer.step or 0) < self._cfg.max_step:
                batch = next(batches, None)
                if batch is None:
                    self._say_that_the_input_ended()
                    break
                self._trace((trainer.step or 0) + 1)
                outputs = trainer.take_step(batch)
                step = trainer.step or 0
                taken = _Taken(step, outputs)
                if last is not None:
                    self._look_at(last)
                last = taken
                evaler_summaries = self._evaluate(step, outputs, set())
                if checkpointer.should_save(step=step, evaler_summaries=evaler_summaries):
                    self._check_finite(step, read_scalars(outputs))
                    self._save(step)
                if self._is_to_stop(step):
                    self._check_finite(step, read_scalars(outputs))
                    if self._saved_step != step:
                        self._save(step)
                    self.stopped_at = step
                    break
            if last is None:
                return None
            self._look_at(last)
            self._stop_trace()
            if forced_evalers:
                again = {n for n in forced_evalers if evaler_summaries.get(n) is None}
                ran = self._evaluate(last.step, last.outputs, again, only_forced=True)
                evaler_summaries |= {name: ran[name] for name in again}
        result = {"loss": last.outputs["loss"], "aux": last.outputs["aux"]}
        if forced_evalers:
            chosen = {name: evaler_summaries[name] for name in sorted(forced_evalers)}
            result["evaler_summaries"] = chosen
        return result

    def _say_that_the_input_ended(self) -> None:
        step, where = self._trainer.step or 0, self._trainer.input.path()
        if not step:
            raise ValueError(f"{where}: expected batches, found none. Look at its source.")
        if np.isfinite(self._cfg.max_step):
            _log.warning(
                "%s: no more batches after step %d, and max_step is %s: take a source that repeats",
                where,
                step,
                self._cfg.max_step,
            )

    def save_last(self) -> None:
        """Saves the present state, unless there is a checkpoint of it, and waits."""
        step, checkpointer = self._trainer.step or 0, self._trainer.checkpointer
        if step in checkpointer.checkpoint_steps(self._checkpoint_dir()):
            return
        with self.saving():
            self._save(step)
            checkpointer.stop()

    def _look_at(self, taken: _Taken) -> None:
        """Waits for a step; its loss is checked, passed on and written."""
        step, read = taken.step, read_scalars(taken.outputs)
        loss = self._check_finite(step, read)
        for listener in self.listeners:
            listener(step, loss)
        every = self._cfg.log_every_n_steps or _LOG_EVERY
        if step <= _FIRST_STEPS or step % every == 0:
            _log.info("step %d, loss %s", step, loss)
        if self._timer is not None and step % every == 0:
            before, start = self._timer
            now = time.perf_counter()
            average = (now - start) / max(1, step - before)
            self._timer = (step, now)
            _log.info("step %d, %.4f s for a step", step, average)
            self._writer.log_average_step_time(step, average)
        self._writer(step, {"loss": loss, **read["summaries"]})

    def _check_finite(self, step: int, read: dict[str, PyTree]) -> float:
        """The loss of a step, of which the scalars are read."""
        loss = read["loss"].item()
        if read["finite"] or self._trainer.learner.handles_undefined_loss():
            return loss
        problem = f"loss is {loss}" if not np.isfinite(loss) else "the gradients are not finite"
        saved = self._save_before(step)
        raise UndefinedLossException(
            f"step {step}: {problem}. The state after step {saved} is saved in "
            f"{self._checkpoint_dir()}; the same run goes on from there, and stops at the same "
            "step: lower the learning rate, or look at the batch first. An optimizer that leaves "
            "such steps out by itself needs learner.ignore_undefined_loss=True.",
            step,
            loss,
        )

    def _save_before(self, step: int) -> int | None:
        """Makes the state before a step again and saves it."""
        trainer, folder = self._trainer, self._checkpoint_dir()
        trainer.checkpointer.wait_until_finished()
        iterator = trainer.input_iterator()
        if self._beginning is not None and is_iterator(iterator):
            if trainer.restore_checkpoint() is None:
                prng_key, position = self._beginning
                trainer.begin(prng_key)
                iterator.set_state(position)
            batches = trainer.input.batches(iterator)
            while (trainer.step or 0) < step - 1:
                trainer.take_step(next(batches))
            if step - 1 not in trainer.checkpointer.checkpoint_steps(folder):
                self._save(step - 1)
            trainer.checkpointer.wait_until_finished()
        return max(trainer.checkpointer.checkpoint_steps(folder), default=None)

    def _evaluate(
        self,
        step: int,
        outputs: dict[str, PyTree] | None,
        forced: set[str],
        *,
        only_forced: bool = False,
    ) -> dict[str, dict[str, PyTree] | None]:
        trainer = self._trainer
        summaries: dict[str, dict[str, PyTree] | None] = {}
        if not trainer.evalers:
            return summaries
        params = trainer.model_params_for_eval()
        key = trainer.trainer_state.prng_key  # type: ignore[union-attr]
        for name, evaler in trainer.evalers.items():
            if only_forced and name not in forced:
                continue
            _, summaries[name], _ = evaler.eval_step(
                step,
                prng_key=key,
                model_params=params,
                train_summaries=None if outputs is None else outputs["summaries"],
                force_run=name in forced,
            )
        return summaries

    # Saving.

    def _checkpoint_dir(self) -> str:
        return self._trainer.checkpointer.config.dir

    def _save(self, step: int) -> None:
        trainer = self._trainer
        with self.saving():
            trainer.checkpointer.save_now(step=step, state=trainer.saved_state())
        self._saved_step = step
        self._writer.log_checkpoint(self._checkpoint_dir(), step)

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Turns file-system errors into one that names the last checkpoint."""
        try:
            yield
        except (OSError, ValueError) as error:
            folder = self._checkpoint_dir()
            if not is_of_writing(error, [self._cfg.dir, folder]):
                raise
            steps = self._trainer.checkpointer.checkpoint_steps(folder)
            saved = f"step {steps[-1]} is the last, and whole" if steps else "there is none yet"
            raise SavingError(
                f"{self._cfg.dir}: nothing more can be written: {_first_line(error)}. Of the "
                f"checkpoints {saved}. Make room, or take another folder (`dir`), and start the "
                "run again: it goes on from its last checkpoint."
            ) from error

    def _is_to_stop(self, step: int) -> bool:
        if jax.process_count() == 1:
            return self.stop_requested
        # All processes must stop at the same step; JAX's own handler of SIGTERM agrees on one.
        return multihost_utils.reached_preemption_sync_point(step)

    # Profiles.

    def _trace(self, step: int) -> None:
        """Starts and stops profiles; `step` is the one to come."""
        cfg = self._cfg
        if self._trace_until is not None and step > self._trace_until:
            self._stop_trace()
        if self._trace_until is not None or step - 1 not in cfg.start_trace_steps:
            return
        indices = cfg.start_trace_process_indices
        if indices == "all" or jax.process_index() in indices:
            jax.profiler.start_trace(str(Path(cfg.dir) / "summaries" / "train_train"))
            self._trace_until = step - 1 + (cfg.n_steps_for_each_trace or _TRACED_STEPS)

    def _stop_trace(self) -> None:
        if self._trace_until is not None:
            jax.block_until_ready(self._trainer.trainer_state)
            jax.profiler.stop_trace()
            self._trace_until = None


def is_of_writing(error: BaseException, folders: Sequence[str]) -> bool:
    """True if an error comes from writing the files of a run: Orbax wraps TensorStore's."""
    if isinstance(error, OSError):
        if error.filename is None or isinstance(error.filename, int):  # a descriptor
            return error.errno in (*_NO_ROOM, *_BROKEN)
        path = Path(os.path.realpath(os.fsdecode(error.filename)))
        around = [f for f in folders if path.is_relative_to(os.path.realpath(f))]
        if error.errno == errno.ENOENT:  # a file to read is missing, unless the folder is
            return any(not os.path.isdir(folder) for folder in around)
        return error.errno in _NO_ROOM or bool(around)
    text = str(error)
    return any(word in text for word in ("os_error_code", "OS error", "RESOURCE_EXHAUSTED"))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
