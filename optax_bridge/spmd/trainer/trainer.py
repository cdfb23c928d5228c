"""The trainer: it runs the steps, and everything that happens between them."""

import contextlib
import logging
import math
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from optax_bridge._atomic import atomic_write
from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import ConfigBase, config_class
from optax_bridge.spmd.config.walking import leaf_text
from optax_bridge.spmd.module import nowrap
from optax_bridge.spmd.trainer.base import BaseTrainer
from optax_bridge.spmd.trainer.loop import TrainingLoop
from optax_bridge.spmd.trainer.state import TrainerState
from optax_bridge.spmd.trees import flatten_items

if sys.platform != "win32":
    import fcntl

_log = logging.getLogger(__name__)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[bool]:
    """Locks a folder; yields False if another run holds it, True also without lock support."""
    if sys.platform == "win32":
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY)
    is_free = True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        except OSError:  # the file system knows no locks
            pass
        yield is_free
    finally:
        if is_free:  # also for a worker that was forked meanwhile and lives longer
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def watchdog(
    step: Callable[[], int | None],
    *,
    timeout_seconds: float | None,
    crash_seconds: float | None,
) -> Iterator[None]:
    """A scope in which a thread watches the step of a training."""
    times = {
        "watchdog_timeout_seconds": timeout_seconds,
        "crash_on_hang_timeout_seconds": crash_seconds,
    }
    for name, seconds in times.items():
        if seconds is not None and not seconds > 0:
            raise ValueError(f"{name}: expected None or more than 0, found {seconds!r}")
    if None not in times.values() and crash_seconds < timeout_seconds:  # type: ignore[operator]
        raise ValueError(
            f"crash_on_hang_timeout_seconds {crash_seconds} is less than "
            f"watchdog_timeout_seconds {timeout_seconds}: nothing would be logged before"
        )
    if timeout_seconds is None and crash_seconds is None:
        yield
        return
    stop = threading.Event()
    arguments = (step, timeout_seconds, crash_seconds, stop)
    thread = threading.Thread(target=_watch, args=arguments, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _watch(
    step: Callable[[], int | None],
    timeout_seconds: float | None,
    crash_seconds: float | None,
    stop: threading.Event,
) -> None:
    first = last = step()
    moved = logged = time.monotonic()
    shortest = min(s for s in (timeout_seconds, crash_seconds) if s is not None)
    while not stop.wait(shortest / 10):
        now = time.monotonic()
        if (current := step()) != last:
            first = current if last is None else first
            last, moved, logged = current, now, now
            continue
        if timeout_seconds is not None and now - logged >= timeout_seconds:
            logged = now
            _log.error("no step for %.0f s, after step %s:\n%s", now - moved, last, all_stacks())
        # Before the first step there is the compilation, which takes as long as it takes.
        if crash_seconds is not None and last != first and now - moved >= crash_seconds:
            _log.error(
                "no step for %.0f s, after step %s: killed by crash_on_hang_timeout_seconds; the "
                "same run goes on from its last checkpoint",
                now - moved,
                last,
            )
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)


def all_stacks() -> str:
    """Returns the stack of every thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(number, number)}:\n{''.join(traceback.format_stack(frame))}"
        for number, frame in sys._current_frames().items()
    )


class SpmdTrainer(BaseTrainer):
    """Trains a model on a mesh of devices, over all processes."""

    @config_class
    class Config(BaseTrainer.Config):
        """Configures SpmdTrainer; the fields are those of `BaseTrainer.Config`."""

    @nowrap
    def run(
        self,
        prng_key: jax.Array,
        *,
        return_evaler_summaries: bool | set[str] | None = None,
        restore_step: int | None = None,
    ) -> dict[str, PyTree] | None:
        """Trains to `max_step` or the end of the input, from a checkpoint if there is one.

        Args:
          prng_key: of the first state.
          return_evaler_summaries: True, or names of evalers: they run at the last step
            in any case, and the summaries are returned.
          restore_step: the step of the checkpoint to resume from, None for the newest. Checkpoints
            of later steps are set aside.

        Returns:
          None if no step was taken, else "loss" and "aux" of the last step, and
          "evaler_summaries" if asked for.

        Raises:
          ValueError: `return_evaler_summaries` is something else, or names no evaler; there is no
            checkpoint of `restore_step`, or none that this trainer can resume from; another run
            trains in this folder; the input has no batch.
          UndefinedLossException: a loss was not finite; the state before that step is saved.
          SavingError: a file could not be written.
        """
        forced = forced_evalers(return_evaler_summaries, self._evalers)
        watched = watchdog(
            lambda: self.step,
            timeout_seconds=self._config.watchdog_timeout_seconds,
            crash_seconds=self._config.crash_on_hang_timeout_seconds,
        )
        at_last = contextlib.ExitStack()
        with self._loop().saving(), self._only_run(), watched, self.mesh_scope(), at_last:
            for owner in (self, *self._evalers.values()):
                at_last.callback(owner.summary_writer.close)
            if not self._prepare_training(prng_key, restore_step):
                return None
            return self._loop().run(forced_evalers=forced, prng_key=prng_key)

    @contextlib.contextmanager
    def _only_run(self) -> Iterator[None]:
        """A scope in which no other run uses the folder; process 0 looks, and all raise."""
        folder = Path(self._config.dir)
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as lock:
            is_in_use = False
            if jax.process_index() == 0:
                is_in_use = not lock.enter_context(lock_folder(folder))
            if jax.process_count() > 1:
                is_in_use = bool(multihost_utils.broadcast_one_to_all(is_in_use))
            if is_in_use:
                raise ValueError(
                    f"{self.path()}: dir={str(folder)!r}: another run trains in this folder, and "
                    "two would remove one another's checkpoints. Wait for its end, stop it, or "
                    "take another folder."
                )
            yield

    @nowrap
    def save_checkpoint(self) -> None:
        """Saves now, without asking the policy, and waits for it."""
        self._existing_state()
        with self.mesh_scope():
            self._loop().save_last()

    @nowrap
    def request_stop(self) -> None:
        """Lets `run` save after the present step, and return; for signal handlers."""
        self._loop().stop_requested = True

    @property
    def stopped_at(self) -> int | None:
        """The step at which `request_stop` ended `run`; None if it did not."""
        return self._loop().stopped_at

    @nowrap
    def add_listener(self, listener: Callable[[int, float], None]) -> None:
        """Has a function called with each step and its loss, once that is known."""
        self._loop().listeners.append(listener)

    def _prepare_training(self, prng_key: jax.Array, restore_step: int | None = None) -> bool:
        """Restores or makes the first state; True if there is anything to do."""
        if self._config.save_input_iterator:
            self.savable_iterator()
        restored = self.restore_checkpoint(restore_step)
        if restore_step is not None:
            self.checkpointer.set_aside_after(restore_step)
        if restored is None:
            self.begin(prng_key)
        step = self.step or 0
        is_to_go_on = step < self._config.max_step
        if restored is None or is_to_go_on:
            self._describe(resumed=restored is not None)
        if restored is None:
            self._loop().at_first_step()
        elif is_to_go_on and not self._config.save_input_iterator:
            _log.warning(
                "resumed at step %d, and the input starts over: save_input_iterator is False", step
            )
        return is_to_go_on

    def _describe(self, *, resumed: bool) -> None:
        folder, config = Path(self._config.dir), self.config
        with self._loop().saving():
            if jax.process_index() == 0:
                changes = changed_lines(folder, config) if resumed else []
                if changes:
                    _log.warning("the run goes on with another config:\n%s", "\n".join(changes))
                for key in fields_without_text(config):
                    _log.warning(
                        "%s holds a function or an object whose settings no text has: "
                        "trainer_config.txt cannot be trained again, and a later run with other "
                        "settings is not noticed. Say how it is made, as with "
                        "config_for_function(optax.adamw).set(learning_rate=...)",
                        key,
                    )
                write_descriptions(folder, config=config, specs=self.trainer_state_specs)
            self.summary_writer.log_config(config, step=self.step or 0)

    def _loop(self) -> TrainingLoop:
        if not hasattr(self, "_training_loop"):
            self._training_loop = TrainingLoop(self)
        return self._training_loop


def write_descriptions(folder: Path, *, config: ConfigBase, specs: TrainerState) -> None:
    """Describes a run in its folder: config, arrays of the state, parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "trainer_config.txt": config.debug_string() + "\n",
        "trainer_state_tree.txt": state_tree(specs),
        "model_analysis.txt": parameter_table(specs.model),
    }
    for name, text in texts.items():
        with atomic_write(folder / name) as tmp_path:
            tmp_path.write_text(text)


def fields_without_text(config: ConfigBase) -> list[str]:
    """The fields that hold functions made by other functions, as Optax does, or unknown objects."""
    keys: dict[str, None] = {}

    def note(key: str, value: object) -> None:
        function = getattr(value, "func", value)
        is_named = isinstance(value, type) or "<locals>" not in getattr(
            function, "__qualname__", ""
        )
        if not is_named or _ADDRESS.search(leaf_text(value)):
            keys[key.partition("[")[0]] = None

    config.visit(note)
    return list(keys)


def changed_lines(folder: Path, config: ConfigBase) -> list[str]:
    """The lines that a config adds (+) to that of the folder's last run, or lacks (-)."""
    file = folder / "trainer_config.txt"
    # An address is another in each process.
    before = _ADDRESS.sub("", file.read_text()).splitlines() if file.exists() else []
    now = _ADDRESS.sub("", config.debug_string()).splitlines() if before else []
    gone, new = set(before).difference(now), set(now).difference(before)
    return [f"- {line}" for line in before if line in gone] + [
        f"+ {line}" for line in now if line in new
    ]


def state_tree(specs: TrainerState) -> str:
    """A line for each array of the state: path, dtype, shape, axes of the mesh."""
    lines = [
        f"{path}: {jnp.dtype(spec.dtype)}{list(spec.shape)} {spec.mesh_axes}"
        for path, spec in flatten_items(specs)
    ]
    return "\n".join(lines) + "\n"


def parameter_table(specs: PyTree) -> str:
    """A table of the model's parameters with shapes and sizes, and their sum."""
    rows = [
        (path, str(tuple(spec.shape)), math.prod(spec.shape)) for path, spec in flatten_items(specs)
    ]
    total = sum(size for _, _, size in rows)
    width = max((len(path) for path, _, _ in rows), default=0)
    lines = [f"{path:<{width}}  {shape:<20} {size:>14,}" for path, shape, size in rows]
    return "\n".join([*lines, f"{'total':<{width}}  {'':<20} {total:>14,}"]) + "\n"


def forced_evalers(wanted: object, evalers: Collection[str]) -> set[str]:
    """The evalers that `SpmdTrainer.run` is asked to run at last."""
    if wanted is None or wanted is False:
        return set()
    if wanted is True:
        return set(evalers)
    if not isinstance(wanted, set | frozenset | list | tuple):
        raise ValueError(
            "return_evaler_summaries: expected True or a set of names, found "
            f"{type(wanted).__name__}: {wanted!r}"
        )
    unknown = set(wanted) - set(evalers)
    if unknown:
        raise ValueError(
            f"return_evaler_summaries: no evaler {sorted(unknown)}; there are {sorted(evalers)}"
        )
    return set(wanted)
