"""Schedules: functions of the step, of which the first is 1, usable under `jax.jit`.

Wherever a schedule is expected, a number, an array, a function of the step, or a config of one
will do (`Schedule`); `as_schedule_fn` makes a function of each.
"""

import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from optax import constant_schedule as constant_schedule
from optax import cosine_decay_schedule as cosine_decay_schedule
from optax import join_schedules

from optax_bridge.metadata.trees import Leaf
from optax_bridge.spmd.config import InstantiableConfig

ScheduleFn = Callable[[Leaf], Leaf]  # of the step, a number or a traced array
Schedule = float | jax.Array | ScheduleFn | InstantiableConfig


def as_schedule_fn(schedule: Schedule | None) -> ScheduleFn:
    """A function of the step for any form of a schedule; 1 for None."""
    if isinstance(schedule, InstantiableConfig):
        schedule = schedule.instantiate()
    if schedule is None:
        return lambda step: 1.0
    if callable(schedule):
        return schedule
    value = schedule if isinstance(schedule, jax.Array) else float(schedule)  # type: ignore[arg-type]
    return lambda step: value


def polynomial(
    *,
    begin_step: int = 0,
    begin_value: float = 0,
    end_step: int = 1,
    end_value: float = 0,
    power: float = 1,
) -> ScheduleFn:
    """From one value to another, `begin + (end - begin) * fraction ** power`, constant outside.

    Args:
      begin_step: up to it the value is `begin_value`.
      begin_value: the first value.
      end_step: from it on the value is `end_value`; if it is `begin_step`, `begin_value` stays.
      end_value: the last value.
      power: 1 for a straight line.

    Raises:
      ValueError: it ends before it begins.
    """
    if begin_step > end_step:
        raise ValueError(f"polynomial: end_step {end_step} is before begin_step {begin_step}")

    def schedule(step: jax.Array) -> jax.Array:
        if begin_step == end_step:
            return jnp.asarray(begin_value, jnp.float32)
        fraction = jnp.clip((step - begin_step) / (end_step - begin_step), 0.0, 1.0)
        return begin_value + fraction**power * (end_value - begin_value)

    return schedule


def exponential(
    *, begin_step: int = 0, begin_value: float = 0, end_step: int = 1, end_value: float = 0
) -> ScheduleFn:
    """From one value to another by equal factors, constant outside.

    Args:
      begin_step: up to it the value is `begin_value`.
      begin_value: the first value, above 0.
      end_step: from it on the value is `end_value`.
      end_value: the last value, above 0.

    Raises:
      ValueError: a value is not above 0, or the steps are not in order.
    """
    if begin_step >= end_step:
        raise ValueError(f"exponential: end_step {end_step} is not after begin_step {begin_step}")
    if begin_value <= 0 or end_value <= 0:
        raise ValueError(
            f"exponential: expected values > 0, found begin_value={begin_value}, "
            f"end_value={end_value}"
        )
    log_value = polynomial(
        begin_step=begin_step,
        begin_value=float(jnp.log(begin_value)),
        end_step=end_step,
        end_value=float(jnp.log(end_value)),
    )
    return lambda step: jnp.exp(log_value(step))


def inverse_sqrt(step: ArrayLike, warmup_steps: int = 1) -> jax.Array:
    """`max(step, warmup_steps) ** -0.5`: the schedule itself, not a function that makes one.

    Raises:
      ValueError: `warmup_steps` is not above 0.
    """
    if warmup_steps <= 0:
        raise ValueError(f"inverse_sqrt: warmup_steps must be > 0, found {warmup_steps}")
    return jnp.maximum(jnp.asarray(step, jnp.float32), warmup_steps) ** -0.5


def adafactor(
    scale: float = 1.0,
    *,
    warmup_steps: int = 10000,
    decay_power: float = -0.5,
    step_offset: int = 0,
) -> ScheduleFn:
    """A linear warm-up to `warmup_steps ** decay_power`, then a power of the step.

    Args:
      scale: all values are times this.
      warmup_steps: length of the warm-up.
      decay_power: exponent of the decay.
      step_offset: added to the step.
    """

    def schedule(step: jax.Array) -> jax.Array:
        t = jnp.asarray(step + step_offset, jnp.float32)
        return scale * jnp.minimum(t * warmup_steps ** (decay_power - 1.0), t**decay_power)

    return schedule


def adafactor_decay_rate(c: float = 0.8, step_offset: int = 0) -> ScheduleFn:
    """The decay of Adafactor's second moment (Shazeer and Stern 2018): `1 - t ** -c`.

    Args:
      c: the exponent.
      step_offset: taken from the step, for fine-tuning.
    """

    def schedule(step: jax.Array) -> jax.Array:
        return 1.0 - jnp.maximum(jnp.asarray(step - step_offset, jnp.float32), 1.0) ** -c

    return schedule


def decay_bias_correction(decay: float) -> ScheduleFn:
    """Decays with which an average that starts at 0 is without bias at every step.

    Args:
      decay: the limit of the decay.

    Returns:
      The schedule `decay * (1 - decay ** (t - 1)) / (1 - decay ** t)`, which is 0 at step 1.
    """

    def schedule(step: jax.Array) -> jax.Array:
        t = jnp.asarray(step, jnp.float32)
        return decay * (1.0 - decay ** (t - 1.0)) / (1.0 - decay**t)

    return schedule


def ema_schedule(
    decay: float = 0.9999, *, warmup_steps: int = 1, step_offset: int = 0
) -> ScheduleFn:
    """Decays of an average of parameters: `t / (1 + t)` for the first steps, then a constant.

    Args:
      decay: the constant.
      warmup_steps: the steps t below it are those of the warm-up.
      step_offset: taken from the step; up to it t is 0.
    """

    def schedule(step: jax.Array) -> jax.Array:
        t = jnp.maximum(jnp.asarray(step - step_offset, jnp.float32), 0.0)
        return jnp.where(t < warmup_steps, t / (1.0 + t), decay)

    return schedule


def stepwise(sub: Sequence[Schedule], start_step: Sequence[int]) -> ScheduleFn:
    """One schedule after another, each given the step since its start.

    Args:
      sub: the schedules.
      start_step: of each but the first, at which step it starts; increasing.

    Raises:
      ValueError: there is not one start less than there are schedules.
    """
    _check_length("stepwise", "start_step", start_step, sub)
    return join_schedules([as_schedule_fn(schedule) for schedule in sub], start_step)


def segment_wise(segments: Sequence[Schedule], *, segment_steps: Sequence[int]) -> ScheduleFn:
    """One schedule after another, each counting its steps from 1.

    Args:
      segments: the schedules.
      segment_steps: how many steps each but the last has; the last has no end.

    Returns:
      The schedule; 0 up to step 0.

    Raises:
      ValueError: there is not one length less than there are segments.
    """
    _check_length("segment_wise", "segment_steps", segment_steps, segments)

    def from_one(schedule: ScheduleFn) -> ScheduleFn:
        return lambda step: schedule(step + 1)

    schedules = [from_one(as_schedule_fn(segment)) for segment in segments]
    starts = itertools.accumulate(segment_steps, initial=1)
    return join_schedules([lambda step: jnp.zeros([]), *schedules], list(starts))


def cosine_with_linear_warmup(
    peak_lr: float,
    *,
    max_step: int,
    warmup_steps: int = 500,
    begin_value: float = 0.0,
    alpha: float = 0.0,
    decay_begin_step: int | None = None,
) -> ScheduleFn:
    """A linear warm-up, perhaps a constant stretch, and a cosine down to `alpha * peak_lr`.

    Args:
      peak_lr: the largest value, at `warmup_steps`.
      max_step: where the decay ends.
      warmup_steps: length of the warm-up.
      begin_value: the value at step 0.
      alpha: the last value as a fraction of the peak.
      decay_begin_step: where the decay begins, if later than the warm-up's end.

    Raises:
      ValueError: the steps are not in order.
    """
    begin = max(warmup_steps, warmup_steps if decay_begin_step is None else decay_begin_step)
    _check_order("cosine_with_linear_warmup", warmup_steps, begin, max_step)
    decay = cosine_decay_schedule(peak_lr, decay_steps=max_step - begin, alpha=alpha)
    return _with_warmup(peak_lr, warmup_steps, begin_value, begin, decay)


def warmup_stable_decay(
    peak_lr: float,
    *,
    max_step: int,
    decay_begin_step: int,
    warmup_steps: int = 500,
    begin_value: float = 0.0,
    alpha: float = 0.0,
) -> ScheduleFn:
    """A linear warm-up, a constant stretch, and a straight line down to `alpha * peak_lr`.

    Args:
      peak_lr: the largest value, from `warmup_steps` on.
      max_step: where the decay ends.
      decay_begin_step: where it begins.
      warmup_steps: length of the warm-up.
      begin_value: the value at step 0.
      alpha: the last value as a fraction of the peak.

    Raises:
      ValueError: the steps are not in order.
    """
    _check_order("warmup_stable_decay", warmup_steps, decay_begin_step, max_step)
    decay = _line(peak_lr, peak_lr * alpha, max_step - decay_begin_step)
    return _with_warmup(peak_lr, warmup_steps, begin_value, decay_begin_step, decay)


def constant_with_linear_warmup(
    peak_lr: float, *, warmup_steps: int = 500, begin_value: float = 0.0
) -> ScheduleFn:
    """A linear warm-up, then a constant.

    Args:
      peak_lr: the constant.
      warmup_steps: length of the warm-up.
      begin_value: the value at step 0.
    """
    return _with_warmup(peak_lr, warmup_steps, begin_value, warmup_steps, peak_lr)


def linear_schedule_with_warmup(
    peak_lr: float,
    *,
    max_step: int,
    warmup_steps: int,
    begin_value: float = 0.0,
    end_value: float = 0.0,
) -> ScheduleFn:
    """A linear warm-up, then a straight line down.

    Args:
      peak_lr: the largest value, at `warmup_steps`.
      max_step: where the decay ends.
      warmup_steps: length of the warm-up.
      begin_value: the value at step 0.
      end_value: the value from `max_step` on.

    Raises:
      ValueError: the steps are not in order.
    """
    _check_order("linear_schedule_with_warmup", warmup_steps, warmup_steps, max_step)
    decay = _line(peak_lr, end_value, max_step - warmup_steps)
    return _with_warmup(peak_lr, warmup_steps, begin_value, warmup_steps, decay)


def _with_warmup(
    peak_lr: float, warmup_steps: int, begin_value: float, decay_begin_step: int, decay: Schedule
) -> ScheduleFn:
    segments: list[Schedule] = [_line(begin_value, peak_lr, warmup_steps)]
    lengths = [warmup_steps]
    if decay_begin_step > warmup_steps:
        segments.append(float(peak_lr))
        lengths.append(decay_begin_step - warmup_steps)
    return segment_wise([*segments, decay], segment_steps=lengths)


def _line(begin_value: float, end_value: float, steps: int) -> ScheduleFn:
    return polynomial(begin_value=begin_value, end_step=steps, end_value=end_value)


def _check_length(who: str, name: str, steps: Sequence[int], schedules: Sequence[Schedule]) -> None:
    if len(steps) != len(schedules) - 1:
        raise ValueError(
            f"{who}: Unexpected length of {name}: {len(steps)}, expected {len(schedules) - 1} for "
            f"{len(schedules)} schedules"
        )


def _check_order(who: str, warmup_steps: int, decay_begin_step: int, max_step: int) -> None:
    if not warmup_steps <= decay_begin_step < max_step:
        raise ValueError(
            f"{who}: expected warmup_steps <= decay_begin_step < max_step, found {warmup_steps}, "
            f"{decay_begin_step}, {max_step}"
        )
