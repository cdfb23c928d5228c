"""Summaries and their writers: for TensorBoard, and as lines of JSON."""

import functools
import json
import os
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import REQUIRED, ConfigBase, Required, config_class
from optax_bridge.spmd.metrics import ImageSummary as ImageSummary
from optax_bridge.spmd.metrics import MaxSummary as MaxSummary
from optax_bridge.spmd.metrics import MetricAccumulator as MetricAccumulator
from optax_bridge.spmd.metrics import MinSummary as MinSummary
from optax_bridge.spmd.metrics import Summary as Summary
from optax_bridge.spmd.metrics import SumSummary as SumSummary
from optax_bridge.spmd.metrics import WeightedSummary as WeightedSummary
from optax_bridge.spmd.metrics import is_summary
from optax_bridge.spmd.module import Module, nowrap
from optax_bridge.spmd.trees import flatten_items

_BINS = 30
_BFLOAT16 = np.dtype(jnp.bfloat16)
_SECONDS_BETWEEN_FLUSHES = 5.0
_MOST_WAITING = 64  # events


class BaseWriter(Module):
    """Writes summaries of a step; process 0 alone does."""

    @config_class
    class Config(Module.Config):
        """Configures BaseWriter."""

        dir: Required[str] = REQUIRED

    @nowrap
    def log_config(self, config: ConfigBase, step: int = 0) -> None:
        """Writes a config as text."""
        del config, step

    @nowrap
    def log_checkpoint(self, ckpt_dir: str, step: int) -> None:
        """Notes that a checkpoint of a step is being saved."""
        del ckpt_dir, step

    @nowrap
    def log_average_step_time(self, step: int, average_step_time: float) -> None:
        """Writes the seconds of a step, on the average of the last ones."""
        self(step, {"average_step_time": average_step_time})

    @nowrap
    def __call__(self, step: int, values: Mapping[str, PyTree]) -> None:
        """Writes nested dicts of values, their keys joined by '/'."""
        raise NotImplementedError(f"{type(self).__name__}.__call__")

    @nowrap
    def close(self) -> None:
        """Writes everything that is still buffered."""


class NoOpWriter(BaseWriter):
    """Writes nothing."""

    @nowrap
    def __call__(self, step: int, values: Mapping[str, PyTree]) -> None:
        """Does nothing."""
        del step, values


class CompositeWriter(BaseWriter):
    """Several writers, each in a folder of its name."""

    @config_class
    class Config(BaseWriter.Config):
        """Configures CompositeWriter."""

        writers: Required[dict[str, BaseWriter.Config]] = REQUIRED

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._writers = [
            self._add_child(name, writer.clone(dir=str(Path(cfg.dir) / name)))
            for name, writer in cfg.writers.items()
        ]

    @nowrap
    def log_config(self, config: ConfigBase, step: int = 0) -> None:
        """By each writer."""
        for writer in self._writers:
            writer.log_config(config, step)

    @nowrap
    def log_checkpoint(self, ckpt_dir: str, step: int) -> None:
        """By each writer."""
        for writer in self._writers:
            writer.log_checkpoint(ckpt_dir, step)

    @nowrap
    def log_average_step_time(self, step: int, average_step_time: float) -> None:
        """By each writer."""
        for writer in self._writers:
            writer.log_average_step_time(step, average_step_time)

    @nowrap
    def __call__(self, step: int, values: Mapping[str, PyTree]) -> None:
        """By each writer."""
        for writer in self._writers:
            writer(step, values)

    @nowrap
    def close(self) -> None:
        """Each writer."""
        for writer in self._writers:
            writer.close()


class SummaryWriter(BaseWriter):
    """Writes files that TensorBoard reads.

    Scalars, texts, histograms of arrays, pictures of `ImageSummary` and of arrays of rank 4.
    """

    @config_class
    class Config(BaseWriter.Config):
        """Configures SummaryWriter."""

        write_every_n_steps: int = 1

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._events: _EventFile | None = None
        self._at_exit: Any = None

    @nowrap
    def log_config(self, config: ConfigBase, step: int = 0) -> None:
        """Writes a config's `debug_string` as a text named `trainer_config`."""
        lines = config.debug_string().splitlines()
        self._write(step, [("trainer_config", "\n".join(f"    {line}" for line in lines))])

    @nowrap
    def log_checkpoint(self, ckpt_dir: str, step: int) -> None:
        """Writes the folder as a text named `checkpoint`."""
        self._write(step, [("checkpoint", ckpt_dir)])

    @nowrap
    def log_average_step_time(self, step: int, average_step_time: float) -> None:
        """Writes it regardless of `write_every_n_steps`: it is rare anyway."""
        self._write(step, host_values({"average_step_time": average_step_time}))

    @nowrap
    def __call__(self, step: int, values: Mapping[str, PyTree]) -> None:
        """Writes the values; arrays that are not whole in this process are left out."""
        if step % self._config.write_every_n_steps == 0 and jax.process_index() == 0:
            self._write(step, host_values(values))

    @nowrap
    def close(self) -> None:
        """Closes the file; a later write opens another."""
        if self._events is not None:
            self._events.close()
            self._events = None
            self._at_exit.detach()

    def _write(self, step: int, pairs: Sequence[tuple[str, str | np.ndarray]]) -> None:
        """Adds one event; in this thread, so that a full disk is an error of this call."""
        if jax.process_index():
            return
        if self._events is None:
            self._events = _EventFile(Path(self._config.dir))
            # Of a writer that nobody closes.
            self._at_exit = weakref.finalize(self, self._events.close)
        self._events.add(step, pairs)


class _EventFile:
    """A file that TensorBoard reads.

    Events wait for one another: 64 at once take half of the processor's time that they take one by
    one, after each step. What comes 5 s after the last flush brings all that wait into the file.
    """

    def __init__(self, folder: Path):
        # Protobuf is slow to import, and only who writes needs it.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event  # type: ignore[attr-defined]

        folder.mkdir(parents=True, exist_ok=True)
        suffix = f".{os.getpid()}.{time.monotonic_ns()}"  # two in one second are two files
        self._writer, self._event_class = EventsWriter(str(folder / "events"), suffix), Event
        self._waiting: deque[tuple[int, float, list[tuple[str, float]], list[Any]]] = deque()
        self._flushed = 0.0

    def add(self, step: int, pairs: Sequence[tuple[str, str | np.ndarray]]) -> None:
        """Adds an event: pairs of a name, and a text, a number, a picture or an array."""
        numbers, others = [], []
        for path, value in pairs:
            if isinstance(value, np.ndarray) and value.ndim == 0:
                numbers.append((path, float(value.item())))
            else:
                others.extend(_of_arrays(path, value))
        self._waiting.append((step, time.time(), numbers, others))
        is_due = time.monotonic() - self._flushed > _SECONDS_BETWEEN_FLUSHES
        if is_due or len(self._waiting) >= _MOST_WAITING:
            self._write()
        if is_due:
            self._writer.flush()
            self._flushed = time.monotonic()

    def _write(self) -> None:
        while self._waiting:
            step, wall_time, numbers, others = self._waiting.popleft()
            event = self._event_class(step=step, wall_time=wall_time)
            for path, number in numbers:
                event.summary.value.add(tag=path, simple_value=number)
            event.summary.value.extend(others)
            self._writer.write_event(event)

    def close(self) -> None:
        """Writes what waits, and closes the file."""
        self._write()
        self._writer.close()


class JsonLinesWriter(BaseWriter):
    """Appends a line of JSON for each step to `summaries.jsonl`: step, time, and the scalars."""

    @nowrap
    def __call__(self, step: int, values: Mapping[str, PyTree]) -> None:
        """Writes the scalars."""
        if jax.process_index():
            return
        line: dict[str, object] = {"step": step, "time": time.time()}
        for path, value in host_values(values):
            if isinstance(value, str):
                line[path] = value
            elif value.ndim == 0:
                line[path] = value.item()
        folder = Path(self._config.dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "summaries.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def host_values(values: Mapping[str, PyTree]) -> list[tuple[str, str | np.ndarray]]:
    """Nested summaries as pairs of a name and a string or a NumPy array.

    Args:
      values: nested dicts of arrays, numbers, strings and `Summary`s.

    Returns:
      The pairs, without arrays of which parts are in other processes only.
    """
    pairs = []
    leaves, treedef = jax.tree.flatten(values, is_leaf=is_summary)
    arrays = [leaf.value() if isinstance(leaf, Summary) else leaf for leaf in leaves]
    if jax.default_backend() != "cpu":  # all on their way before the first is waited for
        for value in arrays:
            if isinstance(value, jax.Array) and value.is_fully_addressable:
                value.copy_to_host_async()
    for path, value in zip(_names(treedef), arrays, strict=True):
        if isinstance(value, str):
            pairs.append((path, value))
            continue
        if (
            jax.process_count() > 1
            and isinstance(value, jax.Array)
            and not (value.is_fully_addressable or value.is_fully_replicated)
        ):
            continue
        array = np.asarray(value)
        if array.dtype == _BFLOAT16:
            array = array.astype(np.float32)
        pairs.append((path, array))
    return pairs


@functools.lru_cache
def _names(treedef: Any) -> list[str]:
    """The paths of a tree's leaves; the same at each step."""
    return [path for path, _ in flatten_items(treedef.unflatten(range(treedef.num_leaves)))]


def _of_arrays(path: str, value: str | np.ndarray) -> Any:
    """The values of an event for a text, pictures or a histogram; none if not all is finite."""
    from tensorboardX import summary

    if isinstance(value, str):
        return summary.text(path, value).value
    if value.ndim == 4 and value.shape[-1] in (1, 3, 4):
        return summary.image(path, _as_picture(value), dataformats="NHWC").value
    if value.size and np.all(np.isfinite(value)):
        return summary.histogram(path, value, bins=_BINS).value
    return []


def _as_picture(value: np.ndarray) -> np.ndarray:
    """Bytes; numbers are taken to lie in [0, 1]."""
    if value.dtype == np.uint8:
        return value
    return (np.clip(value.astype(np.float32), 0, 1) * 255).astype(np.uint8)
