from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.recorded_test import assert_recorded, refused
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function


def values(schedule, steps):
    """Under jit and without; the two must agree."""
    fn = optimizers.as_schedule_fn(schedule)
    plain = [float(fn(step)) for step in steps]
    traced = [float(x) for x in jax.jit(jax.vmap(fn))(jnp.array(steps))]
    np.testing.assert_allclose(traced, plain, rtol=1e-6, atol=2.4e-7)  # 1 ULP of 2, the largest
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


STEPS = [0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 14, 15, 16, 20, 25, 30, 31, 40, 99, 399]
SCHEDULES = {
    "exponential": optimizers.exponential(begin_step=1, begin_value=1, end_step=3, end_value=0.01),
    "cosine": optimizers.cosine_with_linear_warmup(
        2.0, max_step=30, warmup_steps=10, alpha=0.1, decay_begin_step=5
    ),
    "cosine, later": optimizers.cosine_with_linear_warmup(
        2.0, max_step=30, warmup_steps=10, begin_value=1.0, decay_begin_step=20
    ),
    "stable": optimizers.warmup_stable_decay(
        2.0, max_step=30, warmup_steps=10, decay_begin_step=20, alpha=0.5, begin_value=1.0
    ),
    "constant": optimizers.constant_with_linear_warmup(2.0, warmup_steps=4, begin_value=1.0),
    "linear": optimizers.linear_schedule_with_warmup(
        2.0, max_step=14, warmup_steps=4, begin_value=0.5, end_value=1.0
    ),
    "no warm-up": optimizers.linear_schedule_with_warmup(2.0, max_step=10, warmup_steps=0),
    "nothing between": optimizers.polynomial(begin_step=3, begin_value=7, end_step=3),
    "square": optimizers.polynomial(
        begin_step=2, begin_value=1, end_step=6, end_value=3, power=2
    ),
    "segments": optimizers.segment_wise(
        [lambda s: 1.0 * s, 7, lambda s: 1e2 * s], segment_steps=[2, 1]
    ),
    "inverse_sqrt": optimizers.inverse_sqrt,  # the schedule itself
    "inverse_sqrt, warm": lambda step: optimizers.inverse_sqrt(step, warmup_steps=4),
    "adafactor": optimizers.adafactor(2, warmup_steps=100, step_offset=1),
    "adafactor, other power": optimizers.adafactor(warmup_steps=9, decay_power=-0.25),
    "decay rate": optimizers.adafactor_decay_rate(c=0.5, step_offset=3),
    "decay rate by default": optimizers.adafactor_decay_rate(),
    "ema": optimizers.ema_schedule(0.99, warmup_steps=3, step_offset=1),
    "ema by default": optimizers.ema_schedule(),
    "without bias": optimizers.decay_bias_correction(0.5),
    "stepwise": optimizers.stepwise([0.5, lambda step: step + 10.0], [4]),
}  # fmt: skip


def test_values_of_schedules():
    file = Path(__file__).with_name("testdata") / "schedules.json"
    for name, schedule in SCHEDULES.items():
        found = values(schedule, STEPS[1:] if name == "without bias" else STEPS)
        assert_recorded(file, name, [" ".join(["", *(f"{value:.7g}" for value in found)])])


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
