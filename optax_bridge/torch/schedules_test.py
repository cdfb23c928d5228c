"""Schedulers of PyTorch that are refused, each with what to do, and clipping.

`equivalence_tests/suite/witness_test.py` holds the others to PyTorch's own rates.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.torch import clip_grad_norm, from_torch_schedule


@pytest.mark.parametrize(
    ("scheduler", "lr", "message"),
    [
        ("StepLR(step_size=3)", None, "give lr="),
        ("OneCycleLR(0.5, epochs=3, cycle_momentum=False)", None, "give total_steps, or epochs"),
        ("ReduceLROnPlateau(patience=3)", 0.1, r"reduce_on_plateau\(.*patience=P \+ 1"),
        ("LambdaLR(lr_lambda=lambda e: 0.9 ** e)", 0.1, "its function is code"),
        ("OneCycleLR(max_lr=1, total_steps=9)", 0.1, "cycle_momentum=False"),
        ("StepLR(step_size=n)", 0.1, "n is not a value"),
        ("StepLR(gamma=0.1)", 0.1, "missing .*'step_size'"),
        ("StepLR(3, gama=0.1)", 0.1, "StepLR takes step_size, gamma: .*'gama'"),
        ("StepRL(3)", 0.1, "is StepLR meant"),
        ("StepLR", 0.1, "no constructor call"),
    ],
)
def test_what_no_schedule_stands_for_says_what_to_do(scheduler: Any, lr: Any, message: str):
    with refused(ValueError, message):
        from_torch_schedule(scheduler, lr=lr)


def test_what_is_no_scheduler_and_no_number_of_steps_is_refused():
    with refused(TypeError, r"a scheduler of torch\.optim, or text, found int"):
        from_torch_schedule(3)
    with refused(ValueError, "steps_per_epoch: expected 1 or more, found 0"):
        from_torch_schedule("StepLR(step_size=3)", lr=0.5, steps_per_epoch=0)


def test_ends_of_schedules_are_those_of_pytorch():
    # Without epochs, each stays where it begins.
    for name, rate in {"ConstantLR": 1 / 3, "LinearLR": 1 / 3, "PolynomialLR": 1.0}.items():
        for total_iters in (0, -1):
            staying: Any = from_torch_schedule(f"{name}(total_iters={total_iters})", lr=1.0)
            assert [float(staying(count)) for count in (0, 9)] == [np.float32(rate)] * 2, name


def test_restarts_are_at_pytorchs_steps():
    """Logarithms of their numbers are off by a little: log(243) / log(3) is below 5."""
    text = "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 1, 3, last_epoch=-1)"
    schedule: Any = from_torch_schedule(text, lr=1.0)
    starts = [(3**period - 1) // 2 for period in range(20)]
    counts = jnp.array([*starts, *(start - 1 for start in starts[2:])])
    rates: Any = jax.jit(jax.vmap(schedule))(counts)
    np.testing.assert_array_equal(rates[:20], 1.0)
    assert (rates[20:] < 0.3).all() and rates.dtype == jnp.float32


def test_phases_end_at_pytorchs_steps():
    for more, at_10 in (("three_phase=True", 0.02), ("anneal_strategy='linear'", 0.321429)):
        schedule: Any = from_torch_schedule(f"OneCycleLR(0.5, 20, {more}, cycle_momentum=False)")
        rates = [schedule(count) for count in (0, 5, 10, 19)]
        np.testing.assert_allclose(rates, [0.02, 0.5, at_10, 2e-6], rtol=2e-6)  # of six digits


_SETTINGS: dict[str, Any] = {
    "MultiStepLR": ([4, 2, 4], 0.5),
    "StepLR": (7, 0.3),
    "ExponentialLR": (0.9,),
    "LinearLR": (0.1, 0.7, 12),
    "CosineAnnealingLR": (13, 0.001),
    "CosineAnnealingWarmRestarts": (3, 1, 0.01),
    "PolynomialLR": (15, 0.5),
}


@pytest.mark.parametrize("lr", [0.1, 0.02], ids=["first group", "second group"])
@pytest.mark.parametrize("name", ["OneCycleLR", "SequentialLR", *_SETTINGS])
def test_rates_of_objects_are_those_that_pytorch_sets(name: str, lr: float):
    torch = pytest.importorskip("torch")
    schedulers = torch.optim.lr_scheduler
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in (0.1, 0.02)]
    optimizer = torch.optim.Adam(groups)
    for group in groups:
        group["params"][0].grad = torch.ones(1)
    group = optimizer.param_groups[0 if lr == 0.1 else 1]
    if name == "OneCycleLR":
        make = functools.partial(schedulers.OneCycleLR, optimizer, [0.5, 0.3], 20, three_phase=True)
        with pytest.raises(ValueError, match="changes the momentum as well"):
            from_torch_schedule(make(), lr=group["lr"])
        scheduler = make(cycle_momentum=False)
        with pytest.raises(ValueError, match=r"one of 0\.02, 0\.012, found 0\.5"):
            from_torch_schedule(scheduler, lr=0.5)
    else:
        first = "MultiStepLR" if name == "SequentialLR" else name
        scheduler = getattr(schedulers, first)(optimizer, *_SETTINGS[first])
    if name == "SequentialLR":
        falling = schedulers.CosineAnnealingLR(optimizer, 7, 0.01)
        scheduler = schedulers.SequentialLR(optimizer, [scheduler, falling], [6])
    with pytest.raises(ValueError, match="rates of their own"):
        from_torch_schedule(scheduler)
    with pytest.raises(ValueError, match="depends on a metric"):
        from_torch_schedule(schedulers.ReduceLROnPlateau(optimizer))
    schedule: Any = from_torch_schedule(scheduler, lr=group["initial_lr"])
    for count in range(20):
        assert float(schedule(count)) == np.float32(group["lr"]), count
        if count < 19:
            optimizer.step()
            scheduler.step()
    from_torch_schedule(scheduler, lr=group["initial_lr"])
    for _ in range(19):
        optimizer.step()
    with pytest.raises(ValueError, match=r"at 38, .* taken 38 steps, found it at 19"):
        from_torch_schedule(scheduler, lr=group["initial_lr"])
    from_torch_schedule(scheduler, lr=group["initial_lr"], steps_per_epoch=2)


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
