"""Schedulers of PyTorch that are refused, each with what to do, and clipping.

`equivalence_tests/suite/witness_test.py` holds the others to PyTorch's own rates.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.torch import clip_grad_norm, from_torch_schedule


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("ReduceLROnPlateau(patience=3)", ValueError, r"reduce_on_plateau\(.*patience=P \+ 1"),
        ("LambdaLR(lr_lambda=lambda e: 0.9 ** e)", ValueError, "its function is code"),
        ("OneCycleLR(max_lr=1, total_steps=9)", ValueError, "cycle_momentum=False"),
        ("StepLR(step_size=n)", ExpressionError, "n is no value"),
        (
            "StepLR(gamma=0.1)",
            ExpressionError,
            "missing .*'step_size'",
        ),
        ("StepLR(3, gama=0.1)", ExpressionError, "StepLR takes step_size, gamma: .*'gama'"),
        ("StepRL(3)", ExpressionError, "is StepLR meant"),
        ("StepLR", ExpressionError, "no constructor call"),
        ("StepLR(step_size=0)", ValueError, r"StepLR\(step_size=\): expected a positive number"),
        ("CosineAnnealingLR(T_max=0)", ValueError, r"T_max=\): expected a positive number"),
        ("CosineAnnealingWarmRestarts(T_0=0)", ValueError, r"T_0=\): expected a positive number"),
        (
            "OneCycleLR(max_lr=1, total_steps=10, pct_start=0.1, cycle_momentum=False)",
            ValueError,
            "PyTorch divides by zero",
        ),
        ("SequentialLR([StepLR(3)], milestones=[3])", ValueError, "one milestone between each two"),
    ],
)
def test_what_no_schedule_stands_for_says_what_to_do(
    text: str, error: type[Exception], message: str
):
    with pytest.raises(error, match=message):
        from_torch_schedule(text, lr=0.1)


def test_a_schedule_needs_the_rate_of_the_optimizer_and_runs_compiled():
    with pytest.raises(ValueError, match="give lr="):
        from_torch_schedule("StepLR(step_size=3)")
    schedule = from_torch_schedule("torch.optim.lr_scheduler.StepLR(optimizer, 3)", lr=0.5)
    rates: Any = jax.vmap(schedule)(jnp.arange(6))
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


def test_a_scheduler_itself_says_what_it_cannot_be():
    torch = pytest.importorskip("torch")
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in "ab")
    optimizer = torch.optim.SGD([{"params": [one]}, {"params": [other], "lr": 0.01}], lr=0.1)
    schedulers = torch.optim.lr_scheduler
    with pytest.raises(ValueError, match=r"groups have rates of their own, 0.1, 0.01"):
        from_torch_schedule(schedulers.StepLR(optimizer, 3))
    with pytest.raises(ValueError, match="functions of their own"):
        from_torch_schedule(schedulers.LambdaLR(optimizer, [abs, float]), lr=0.1)
    with pytest.raises(ValueError, match="depends on a metric"):
        from_torch_schedule(schedulers.ReduceLROnPlateau(optimizer))
    scheduler = schedulers.LambdaLR(optimizer, lambda epoch: 1.0 if epoch < 5 else 0.1)
    schedule: Any = from_torch_schedule(scheduler, lr=0.1)
    assert float(schedule(7)) == np.float32(0.01)
    with pytest.raises(ValueError, match="make a table of it"):
        jax.jit(schedule)(7)


def test_restarts_are_at_pytorchs_steps():
    """Logarithms of their numbers are off by a little: log(243) / log(3) is below 5."""
    schedule: Any = from_torch_schedule("CosineAnnealingWarmRestarts(1, T_mult=3)", lr=1.0)
    starts = [(3**period - 1) // 2 for period in range(20)]
    np.testing.assert_array_equal(jax.vmap(schedule)(jnp.array(starts)), 1.0)
    before: Any = jax.vmap(schedule)(jnp.array(starts[2:]) - 1)
    assert (before < 0.3).all()


@pytest.mark.parametrize("is_linear", [True, False])
def test_schedules_are_made_of_objects(is_linear: bool):
    """MultiStepLR counts milestones that repeat; OneCycleLR has its rates in the groups."""
    torch = pytest.importorskip("torch")
    schedulers = torch.optim.lr_scheduler
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in "ab")
    optimizer = torch.optim.SGD([{"params": [one]}, {"params": [other]}], lr=0.1)
    options = {"anneal_strategy": "linear", "three_phase": True} if is_linear else {}
    cycle = schedulers.OneCycleLR(
        optimizer, [0.5, 0.25], total_steps=20, cycle_momentum=False, **options
    )
    with pytest.raises(ValueError, match=r"rates of their own, 0.02, 0.01"):
        from_torch_schedule(cycle)
    with pytest.raises(ValueError, match=r"first rate of a group, one of 0.02, 0.01, found 0.5"):
        from_torch_schedule(cycle, lr=0.5)
    assert_rates(cycle, optimizer.param_groups[1], lr=0.01)
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    text = f"OneCycleLR(max_lr=0.25, total_steps=20, cycle_momentum=False{given})"
    of_text: Any = from_torch_schedule(text, lr=0.1)
    of_object: Any = from_torch_schedule(cycle, lr=0.01)
    rates = [[float(each(count)) for count in range(20)] for each in (of_text, of_object)]
    np.testing.assert_allclose(*rates, rtol=1e-6, atol=1e-9)
    optimizer = torch.optim.SGD([one], lr=0.1)
    assert_rates(schedulers.MultiStepLR(optimizer, [2, 4, 4]), optimizer.param_groups[0])
    with pytest.raises(ValueError, match="changes the momentum as well"):
        from_torch_schedule(schedulers.OneCycleLR(optimizer, 0.5, total_steps=20))


def assert_rates(scheduler, group, lr=None):
    """Every rate of a schedule is that of the scheduler, which is stepped to its end."""
    schedule: Any = from_torch_schedule(scheduler, lr=lr)
    for count in range(20):
        assert float(schedule(count)) == np.float32(group["lr"]), count
        if count < 19:
            scheduler.optimizer.step()
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
    short = shorter["a"]
    length = np.linalg.norm(np.full(9, 300.0), norm_type)
    np.testing.assert_allclose(short, 300 * 0.5 * scale / length, rtol=2e-3)
    assert short.dtype == jnp.float16
