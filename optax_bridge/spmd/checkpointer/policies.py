"""When to save: functions of the step and of what evalers found."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax.numpy as jnp

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
    """

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
        """Configures BestMetricPolicy.

        Attributes:
          metric: the metric.
          mode: "max" or "min", what is better.
        """

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
