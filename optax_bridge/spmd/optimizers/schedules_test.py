import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function


def values(schedule, steps):
    """Under jit and without; the two must agree."""
    fn = optimizers.as_schedule_fn(schedule)
    plain = [float(fn(step)) for step in steps]
    np.testing.assert_allclose([float(x) for x in jax.jit(jax.vmap(fn))(jnp.array(steps))], plain)
    return plain


@pytest.mark.parametrize(
    "schedule, expected",
    [
        (3, 3.0),
        (jnp.float32(2), 2.0),
        (lambda step: step * 2, 10.0),
        (config_for_function(optimizers.polynomial).set(end_step=10, end_value=1.0), 0.5),
        (None, 1.0),
    ],
)
def test_as_schedule_fn(schedule, expected):
    assert float(optimizers.as_schedule_fn(schedule)(5)) == expected


def test_exponential():
    schedule = optimizers.exponential(begin_step=1, begin_value=1.0, end_step=3, end_value=0.01)
    assert values(schedule, [1, 2, 3, 4]) == pytest.approx([1, 0.1, 0.01, 0.01], rel=1e-5)


@pytest.mark.parametrize(
    "schedule, steps, expected",
    [
        (
            optimizers.cosine_with_linear_warmup(
                2.0, max_step=30, warmup_steps=10, alpha=0.1, decay_begin_step=5
            ),
            [1, 10, 20, 30, 40],
            [0.2, 2.0, 1.1, 0.2, 0.2],
        ),
        (
            optimizers.cosine_with_linear_warmup(
                2.0, max_step=30, warmup_steps=10, begin_value=1.0, decay_begin_step=20
            ),
            [5, 10, 20, 25, 30],
            [1.5, 2, 2, 1, 0],
        ),
        (
            optimizers.warmup_stable_decay(
                2.0, max_step=30, warmup_steps=10, decay_begin_step=20, alpha=0.5, begin_value=1.0
            ),
            [5, 15, 20, 25, 30, 31],
            [1.5, 2, 2, 1.5, 1, 1],
        ),
        (
            optimizers.constant_with_linear_warmup(2.0, warmup_steps=4, begin_value=1.0),
            [1, 4, 9],
            [1.25, 2, 2],
        ),
        (
            optimizers.linear_schedule_with_warmup(
                2.0, max_step=14, warmup_steps=4, begin_value=0.5, end_value=1.0
            ),
            [2, 4, 9, 14, 20],
            [1.25, 2, 1.5, 1, 1],
        ),
        (
            optimizers.linear_schedule_with_warmup(2.0, max_step=10, warmup_steps=0),
            [1, 5, 10],
            [1.8, 1, 0],
        ),
        (optimizers.polynomial(begin_step=3, begin_value=7, end_step=3), [1, 3, 5], [7, 7, 7]),
        (
            optimizers.polynomial(begin_step=2, begin_value=1, end_step=6, end_value=3, power=2),
            [1, 2, 4, 6, 9],
            [1, 1, 1.5, 3, 3],
        ),
        (
            optimizers.segment_wise(
                [lambda s: 1.0 * s, 7, lambda s: 1e2 * s], segment_steps=[2, 1]
            ),
            [0, 1, 2, 3, 4, 5],
            [0, 1, 2, 7, 100, 200],
        ),
        (optimizers.inverse_sqrt, [1, 4, 16], [1, 0.5, 0.25]),  # the schedule itself
        (lambda step: optimizers.inverse_sqrt(step, warmup_steps=4), [1, 16], [0.5, 0.25]),
        (optimizers.adafactor(2, warmup_steps=100, step_offset=1), [0, 99, 399], [2e-3, 0.2, 0.1]),
        (optimizers.adafactor_decay_rate(c=0.5, step_offset=3), [1, 4, 7], [0, 0, 0.5]),
        (optimizers.ema_schedule(0.99, warmup_steps=3, step_offset=1), [0, 3, 4], [0, 2 / 3, 0.99]),
        (optimizers.decay_bias_correction(0.5), [1, 2, 3], [0, 1 / 3, 3 / 7]),
        (optimizers.stepwise([0.5, lambda step: step + 10.0], [4]), [3, 4, 6], [0.5, 10, 12]),
    ],
)
def test_values_of_schedules(schedule, steps, expected):
    assert values(schedule, steps) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: optimizers.polynomial(begin_step=2, end_step=1), "before begin_step"),
        (lambda: optimizers.exponential(end_value=1.0), "> 0"),
        (lambda: optimizers.exponential(begin_step=1, begin_value=1, end_value=1), "not after"),
        (lambda: optimizers.inverse_sqrt(1, warmup_steps=0), "> 0"),
        (lambda: optimizers.linear_schedule_with_warmup(1, max_step=4, warmup_steps=4), "< max"),
        (lambda: optimizers.stepwise([1, 2], [1, 2]), "Unexpected length"),
        (lambda: optimizers.segment_wise([1], segment_steps=[2]), "Unexpected length"),
        (
            lambda: optimizers.warmup_stable_decay(
                1.0, max_step=9, decay_begin_step=3, warmup_steps=5
            ),
            "warmup_steps",
        ),
    ],
)
def test_bad_schedules(make, message):
    with refused(ValueError, message):
        make()
