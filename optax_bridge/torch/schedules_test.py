"""Schedulers of PyTorch that are refused, each with what to do, and clipping.

`equivalence_tests/suite/witness_test.py` holds the others to PyTorch's own rates.
"""

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.torch import clip_grad_norm, from_torch_schedule


def scheduler_of(name: str, rates: Sequence[float] = (0.1,), **settings: Any) -> Any:
    """As far as a scheduler of PyTorch is read: its class, and what it keeps."""
    scheduler = type(name, (), {"__module__": "torch.optim.lr_scheduler"})()
    vars(scheduler).update(base_lrs=list(rates), **settings)
    return scheduler


def cycle_of(first: float, top: float, *, cycle_momentum: bool = False) -> Any:
    """A OneCycleLR of 20 steps, which keeps its rates in the groups; these are the second's."""
    group = {"initial_lr": first, "max_lr": top, "min_lr": first / 1e4}
    other = {name: 2 * rate for name, rate in group.items()}
    phases = [("initial_lr", "max_lr", 5.0), ("max_lr", "min_lr", 19)]
    keys = ("start_lr", "end_lr", "end_step")
    return scheduler_of(
        "OneCycleLR", (2 * first, first), cycle_momentum=cycle_momentum, _anneal_func_type="linear",
        optimizer=SimpleNamespace(param_groups=[other, group]),
        _schedule_phases=[dict(zip(keys, phase, strict=True)) for phase in phases],
    )  # fmt: skip


CYCLE = "OneCycleLR(0.5, 20, pct_start=0.3, anneal_strategy='linear', cycle_momentum=False)"
TWO = (0.1, 0.01)  # rates of groups
STEPS = scheduler_of("MultiStepLR", milestones=Counter([4, 2, 4]), gamma=0.5)
COSINE = scheduler_of("CosineAnnealingLR", T_max=7, eta_min=0.01)
IF = scheduler_of("LambdaLR", lr_lambdas=[lambda epoch: 1.0 if epoch < 5 else 0.1])


@pytest.mark.parametrize(
    ("scheduler", "lr", "message"),
    [
        ("StepLR(step_size=3)", None, "give lr="),
        ("OneCycleLR(0.5, epochs=3, cycle_momentum=False)", None, "give total_steps, or epochs"),
        ("ReduceLROnPlateau(patience=3)", 0.1, r"reduce_on_plateau\(.*patience=P \+ 1"),
        ("LambdaLR(lr_lambda=lambda e: 0.9 ** e)", 0.1, "its function is code"),
        ("OneCycleLR(max_lr=1, total_steps=9)", 0.1, "cycle_momentum=False"),
        ("StepLR(step_size=0)", 0.1, r"StepLR\(step_size=\): expected a positive number"),
        ("CosineAnnealingLR(T_max=0)", 0.1, r"T_max=\): expected a positive number"),
        ("CosineAnnealingWarmRestarts(T_0=0)", 0.1, r"T_0=\): expected a positive number"),
        ("OneCycleLR(1, 10, pct_start=0.1, cycle_momentum=False)", 0.1, "PyTorch divides by zero"),
        ("SequentialLR([StepLR(3)], milestones=[3])", 0.1, "one milestone between each two"),
        (scheduler_of("StepLR", TWO, step_size=3), None, "rates of their own, 0.1, 0.01"),
        (scheduler_of("LambdaLR", TWO, lr_lambdas=[abs, float]), 0.1, "functions of their own"),
        (scheduler_of("ReduceLROnPlateau"), None, "depends on a metric"),
        (cycle_of(0.02, 0.5, cycle_momentum=True), 0.02, "changes the momentum as well"),
        (cycle_of(0.02, 0.5), 0.5, "first rate of a group, one of 0.04, 0.02, found 0.5"),
    ],
)
def test_what_no_schedule_stands_for_says_what_to_do(scheduler: Any, lr: Any, message: str):
    with pytest.raises(ValueError, match=message):
        from_torch_schedule(scheduler, lr=lr)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("StepLR(step_size=n)", "n is no value"),
        ("StepLR(gamma=0.1)", "missing .*'step_size'"),
        ("StepLR(3, gama=0.1)", "StepLR takes step_size, gamma: .*'gama'"),
        ("StepRL(3)", "is StepLR meant"),
        ("StepLR", "no constructor call"),
    ],
)
def test_text_that_is_no_call_of_a_scheduler_is_refused(text: str, message: str):
    with pytest.raises(ExpressionError, match=message):
        from_torch_schedule(text, lr=0.1)


def test_what_is_no_scheduler_and_no_number_of_steps_is_refused():
    with pytest.raises(TypeError, match=r"a scheduler of torch\.optim, or text, found int"):
        from_torch_schedule(3)
    with pytest.raises(ValueError, match="steps_per_epoch: expected 1 or more, found 0"):
        from_torch_schedule("StepLR(step_size=3)", lr=0.5, steps_per_epoch=0)
    schedule: Any = from_torch_schedule(IF)
    assert float(schedule(7)) == np.float32(0.01)
    with pytest.raises(ValueError, match="make a table of it"):
        jax.jit(schedule)(7)


def test_a_schedule_runs_compiled_and_gives_float32():
    text = "torch.optim.lr_scheduler.StepLR(optimizer, 3, last_epoch=-1)"
    rates: Any = jax.vmap(from_torch_schedule(text, lr=0.5))(jnp.arange(6))
    np.testing.assert_allclose(rates, [0.5] * 3 + [0.05] * 3, rtol=1e-7)
    assert rates.dtype == jnp.float32


def test_ends_of_schedules_are_those_of_pytorch():
    # Without epochs, each stays where it begins.
    for name, rate in {"ConstantLR": 1 / 3, "LinearLR": 1 / 3, "PolynomialLR": 1.0}.items():
        for total_iters in (0, -1):
            staying: Any = from_torch_schedule(f"{name}(total_iters={total_iters})", lr=1.0)
            assert [float(staying(count)) for count in (0, 9)] == [np.float32(rate)] * 2, name
    falling: Any = jax.jit(from_torch_schedule("PolynomialLR(total_iters=15, power=0.5)", lr=1.0))
    assert float(falling(15)) == float(falling(99)) == 0.0


def test_restarts_are_at_pytorchs_steps():
    """Logarithms of their numbers are off by a little: log(243) / log(3) is below 5."""
    schedule: Any = from_torch_schedule("CosineAnnealingWarmRestarts(1, T_mult=3)", lr=1.0)
    starts = [(3**period - 1) // 2 for period in range(20)]
    counts = jnp.array([*starts, *(start - 1 for start in starts[2:])])
    rates: Any = jax.jit(jax.vmap(schedule))(counts)
    np.testing.assert_array_equal(rates[:20], 1.0)
    assert (rates[20:] < 0.3).all()


def test_schedules_of_objects_are_those_of_their_calls():
    """MultiStepLR counts milestones that repeat; OneCycleLR has its rates in the groups."""
    both = scheduler_of("SequentialLR", _schedulers=[STEPS, COSINE], _milestones=[6])
    del both.base_lrs  # those of its first scheduler
    sequence = "SequentialLR([MultiStepLR([2, 4, 4], 0.5), CosineAnnealingLR(7, 0.01)], [6])"
    for scheduler, lr, text in (
        (STEPS, None, "MultiStepLR([2, 4, 4], gamma=0.5)"),
        (COSINE, 0.2, "CosineAnnealingLR(7, eta_min=0.01)"),
        (both, None, sequence),
        (cycle_of(0.02, 0.5), 0.02, CYCLE),
    ):
        schedules = from_torch_schedule(scheduler, lr=lr), from_torch_schedule(text, lr=lr or 0.1)
        rates, expected = (jax.jit(jax.vmap(each))(jnp.arange(20)) for each in schedules)
        np.testing.assert_array_equal(rates, expected)
    fours: Any = from_torch_schedule(STEPS)
    assert float(fours(4)) == np.float32(0.1 * 0.5**3)


@pytest.mark.parametrize("name", ["OneCycleLR", "MultiStepLR", "SequentialLR"])
def test_rates_of_objects_are_those_that_pytorch_sets(name: str):
    torch = pytest.importorskip("torch")
    schedulers = torch.optim.lr_scheduler
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    if name == "OneCycleLR":
        settings = {"total_steps": 20, "cycle_momentum": False, "three_phase": True}
        scheduler = schedulers.OneCycleLR(optimizer, 0.5, **settings)
    else:
        scheduler = schedulers.MultiStepLR(optimizer, [2, 4, 4])
    if name == "SequentialLR":
        falling = schedulers.ExponentialLR(optimizer, 0.5)
        scheduler = schedulers.SequentialLR(optimizer, [scheduler, falling], [6])
    schedule: Any = from_torch_schedule(scheduler)
    for count in range(20):
        assert float(schedule(count)) == np.float32(optimizer.param_groups[0]["lr"]), count
        if count < 19:
            optimizer.step()
            scheduler.step()


@pytest.mark.parametrize(("norm_type", "scale"), [(2.0, 5.0), (np.inf, 4.0), (1.0, 7.0)])
def test_clipping_by_the_norm_adds_1e_6_to_it(norm_type: float, scale: float):
    grads: Any = {"a": jnp.array([3.0]), "b": jnp.array([[0.0, 4.0]])}
    clipped: Any = clip_grad_norm(0.5, norm_type).update(grads, optax.EmptyState())[0]
    np.testing.assert_allclose(clipped["b"][0, 1], 4 * 0.5 / (scale + 1e-6), rtol=1e-7)
    untouched: Any = clip_grad_norm(100.0, norm_type).update(grads, optax.EmptyState())[0]
    assert (untouched["a"] == grads["a"]).all()
    half: Any = {"a": jnp.full(9, 300.0, jnp.float16)}  # whose squares overflow
    shorter: Any = clip_grad_norm(0.5 * scale, norm_type).update(half, optax.EmptyState())[0]
    length = np.linalg.norm(np.full(9, 300.0), norm_type)
    np.testing.assert_allclose(shorter["a"], 300 * 0.5 * scale / length, rtol=2e-3)
    assert shorter["a"].dtype == jnp.float16
