"""Policies for saving, keeping and naming checkpoints.

A step that is saved again is replaced without a moment in which neither checkpoint is there.
"""

import dataclasses
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import REQUIRED, Configurable, Required, config_class
from optax_bridge.spmd.metrics import Summary

# `policy(*, step, evaler_summaries) -> bool`; summaries by evaler, None of one that did not run.
EvalerSummaries = Mapping[str, Mapping[str, PyTree] | None]
CheckpointPolicy = Callable[..., bool]


def every_n_steps_policy(n: int = 1, *, min_step: int = 1) -> CheckpointPolicy:
    """Saves at multiples of n.

    Args:
      n: see above.
      min_step: not before this step.

    Raises:
      ValueError: n is below 1.
    """
    if n < 1:
        raise ValueError(f"every_n_steps_policy: n is {n}, expected 1 or more")

    def policy(*, step: int, evaler_summaries: EvalerSummaries) -> bool:
        del evaler_summaries
        return step >= min_step and step % n == 0

    return policy


def every_n_steps_and_last_policy(
    n: int = 1, *, min_step: int = 1, max_step: int
) -> CheckpointPolicy:
    """Saves at multiples of n, and at the last step.

    Args:
      n: see above.
      min_step: not before this step.
      max_step: the last step.
    """
    every_n = every_n_steps_policy(n, min_step=min_step)

    def policy(*, step: int, evaler_summaries: EvalerSummaries) -> bool:
        return step == max_step or every_n(step=step, evaler_summaries=evaler_summaries)

    return policy


class EvalMetric(NamedTuple):
    """One number of an evaler.

    Attributes:
      evaler_name: the evaler.
      metric_name: the number's name among its summaries.
    """

    evaler_name: str
    metric_name: str


class BestMetricPolicy(Configurable):
    """Saves whenever a metric is better than ever before; as good as before is not better."""

    @config_class
    class Config(Configurable.Config):
        """Configures BestMetricPolicy."""

        metric: Required[EvalMetric] = REQUIRED
        mode: str = "max"

    def __init__(self, cfg: Config):
        """Starts without a best value.

        Raises:
          ValueError: the mode is unknown.
        """
        super().__init__(cfg)
        if cfg.mode not in ("max", "min"):
            raise ValueError(f"BestMetricPolicy: mode must be 'max' or 'min', found {cfg.mode!r}")
        self._best: float | None = None

    def __call__(self, *, step: int, evaler_summaries: EvalerSummaries) -> bool:
        """True if the metric is the best so far.

        Raises:
          ValueError: there is no such metric, or it is no scalar.
        """
        evaler, name = self._config.metric
        where = f"step {step}: metric {evaler}/{name}"
        if not evaler_summaries:
            raise ValueError(f"{where}: evaler_summaries is empty. Is there an evaler {evaler!r}?")
        if evaler not in evaler_summaries:
            raise ValueError(
                f"{where}: {evaler!r} not found in evaler_summaries: {sorted(evaler_summaries)}"
            )
        summaries = evaler_summaries[evaler]
        if summaries is None:  # it did not run at this step
            return False
        if name not in summaries:
            raise ValueError(
                f"{where}: {name!r} not found in evaler_summaries[{evaler!r}]: {sorted(summaries)}"
            )
        value = summaries[name]
        if value is None:
            raise ValueError(f"{where}: evaler_summaries[{evaler!r}][{name!r}] is None")
        if isinstance(value, Summary):
            value = value.value()
        if jnp.ndim(value) != 0:
            raise ValueError(f"{where}: expected a scalar, found shape {jnp.shape(value)}")
        value = float(value)
        is_better = self._best is None or (
            value > self._best if self._config.mode == "max" else value < self._best
        )
        if is_better:
            self._best = value
        return is_better


_SUFFIX = ".replaced"


class _Saved(Protocol):
    @property
    def step(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class KeepLastAndEvery:
    """Orbax's policy for: the last few, and of the older ones some at a distance."""

    keep_last_n: int
    keep_every_n_steps: int | None = None

    def should_preserve(
        self, checkpoints: Sequence[_Saved], *, context: object = None
    ) -> list[bool]:
        """Returns for each checkpoint, by rising step, True if it stays."""
        del context
        older = max(0, len(checkpoints) - self.keep_last_n)
        decisions: list[bool] = []
        last: int | None = None
        for index, checkpoint in enumerate(checkpoints):
            keep = index >= older
            if not keep and self.keep_every_n_steps is not None:
                keep = last is None or checkpoint.step - last >= self.keep_every_n_steps
                last = checkpoint.step if keep else last
            decisions.append(keep)
        return decisions


def set_aside(folder: Path) -> None:
    """Renames a checkpoint, so that another can take its name; to be called by all processes."""
    if jax.process_index() == 0:
        folder.rename(_aside(folder))
    _together(f"set aside {folder.name}")


def move_out_of_the_way(folder: Path) -> Path:
    """Renames a checkpoint to a name that no run looks at; to be called by all processes."""
    new, number = folder.with_name(f"aside_{folder.name}"), 1
    while new.exists():
        number += 1
        new = folder.with_name(f"aside_{folder.name}_{number}")
    _together(f"about to move {folder.name}")  # all have seen the same names
    if jax.process_index() == 0:
        folder.rename(new)
    _together(f"moved {folder.name}")
    return new


def settle(base_dir: Path, is_complete: Callable[[Path], bool]) -> None:
    """Removes replaced checkpoints; restores the name of one without a successor."""
    if jax.process_index() == 0 and base_dir.is_dir():
        for aside in base_dir.glob(f".*{_SUFFIX}"):
            folder = base_dir / aside.name[1:].removesuffix(_SUFFIX)
            if is_complete(folder):
                shutil.rmtree(aside)
            elif not folder.exists():
                aside.rename(folder)
    _together("settle")


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_SUFFIX}")


def _together(name: str) -> None:
    """Waits until all processes are here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"optax_bridge: {name}")
