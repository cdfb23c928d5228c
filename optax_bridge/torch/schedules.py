"""The learning rates of `torch.optim.lr_scheduler` as Optax schedules.

PyTorch's loop calls `optimizer.step()` and then `scheduler.step()`, so its first step has the
scheduler's epoch 0, as Optax's first one has count 0: nothing is off by one. Where
`scheduler.step()` is called once an epoch, `steps_per_epoch` says how many steps have the same
rate. A program that calls `scheduler.step()` first is one ahead: `lambda count: schedule(count +
1)`.
"""

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from optax_bridge._literals import expression, literal
from optax_bridge._text import did_you_mean
from optax_bridge.correspondence.expression import ExpressionError

Epoch = jax.Array  # in float64
Rate = Callable[[Epoch], Any]  # at an epoch
Maker = Callable[..., Rate]

_IGNORED = ("optimizer", "last_epoch", "verbose")  # arguments that no rate depends on
CYCLED = (
    "cycle_momentum=True, the default, changes the momentum as well, which no rate does. Write the "
    "transformation with a function of the count, optax_bridge.torch.sgd(lr=..., "
    "momentum=function), or for Adam and its variants betas=function, which returns both; with "
    "cycle_momentum=False the rate alone changes"
)

OTHERWISE = {
    "ReduceLROnPlateau": (
        "it depends on a metric, which no schedule of the count does. Put "
        "optax.contrib.reduce_on_plateau(factor=..., patience=P + 1, rtol=threshold, "
        "accumulation_size=steps_per_epoch, cooldown=..., min_scale=min_lr / lr) at the end of an "
        "optax.chain, with PyTorch's patience P, and give value= to each update: PyTorch waits "
        "for one epoch more than `patience`"
    ),
    "LambdaLR": (
        "its function is code, and none is run. Write it as a schedule: lambda count: lr * "
        "lr_lambda(count // steps_per_epoch), with jnp.where for `if` and jnp.cos for math.cos"
    ),
    "MultiplicativeLR": "its function is code: write the product as a schedule of the count",
    "ChainedScheduler": "multiply the schedules: lambda count: one(count) * other(count) / lr",
    "CyclicLR": (
        "write it as a schedule of the count: lambda count: base_lr + (max_lr - base_lr) * (1 - "
        "jnp.abs(count % (2 * step_size_up) / step_size_up - 1)) in the mode 'triangular'. "
        + CYCLED
    ),
}


def from_torch_schedule(
    scheduler: Any, *, lr: float | None = None, steps_per_epoch: int = 1
) -> optax.Schedule:
    """Returns the Optax schedule of a PyTorch scheduler. PyTorch need not be installed.

        >>> schedule = from_torch_schedule("StepLR(step_size=30, gamma=0.1)", lr=0.5)
        >>> [float(schedule(count)) for count in (0, 29, 30)]
        [0.5, 0.5, 0.05...]

    Args:
      scheduler: the constructor call as text, which is parsed and never evaluated (`SequentialLR`
        takes a list of calls), or the scheduler itself, whose settings are read. It must have
        stepped with its optimizer from the first step on, which SGD's state does not show.
      lr: the optimizer's own rate, from which the scheduler starts. A scheduler object holds it,
        unless groups have rates of their own: then make one schedule for each.
      steps_per_epoch: optimizer steps for each scheduler step; 1 if both step together.

    Returns:
      The schedule: count, from 0 on -> rate in float32.

    Raises:
      ExpressionError: the text is not a constructor call of a scheduler.
      ValueError: no schedule of the count is equivalent (the message says what to do instead),
        `lr` is missing, or the scheduler and its optimizer have taken different numbers of steps.
    """
    if steps_per_epoch < 1:
        raise ValueError(f"steps_per_epoch: expected 1 or more, found {steps_per_epoch}")
    if isinstance(scheduler, str):
        if lr is None and "OneCycleLR" not in scheduler:
            raise ValueError(f"{scheduler!r}: give lr=, the optimizer's own rate")
        rate = _from_text(scheduler, 0.0 if lr is None else lr)
    else:
        rate = _from_object(scheduler, lr)
        _check_count(scheduler, steps_per_epoch)

    def schedule(count: Any) -> jax.Array:
        with jax.enable_x64(True):
            epoch = jnp.asarray(count) // steps_per_epoch
            return jnp.asarray(rate(jnp.asarray(epoch, jnp.float64)), jnp.float32)

    return schedule


def _part(epoch: Epoch, total_iters: int) -> jax.Array:
    """How much of a change is done; without epochs for it PyTorch stays where it begins."""
    return jnp.minimum(epoch / total_iters, 1.0) if total_iters > 0 else jnp.zeros_like(epoch)


def _constant(lr: float, factor: float = 1 / 3, total_iters: int = 5) -> Rate:
    return lambda epoch: jnp.where(_part(epoch, total_iters) < 1.0, lr * factor, lr)


def _step(lr: float, step_size: int, gamma: float = 0.1) -> Rate:
    return lambda epoch: lr * gamma ** (epoch // step_size)


def _multi_step(lr: float, milestones: Sequence[int], gamma: float = 0.1) -> Rate:
    return lambda epoch: lr * gamma ** sum((epoch >= at).astype(jnp.float64) for at in milestones)


def _exponential(lr: float, gamma: float) -> Rate:
    return lambda epoch: lr * gamma**epoch


def _linear(
    lr: float, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
) -> Rate:
    change = end_factor - start_factor
    return lambda epoch: lr * (start_factor + change * _part(epoch, total_iters))


def _cosine(lr: float, T_max: int, eta_min: float = 0.0) -> Rate:
    """It rises again after `T_max`, where `optax.cosine_decay_schedule` stays."""
    return lambda epoch: eta_min + (lr - eta_min) * (1 + jnp.cos(math.pi * epoch / T_max)) / 2


def _warm_restarts(lr: float, T_0: int, T_mult: int = 1, eta_min: float = 0.0) -> Rate:
    starts = [0]  # PyTorch's epochs are counted in int32 here
    while min(T_0, T_mult - 1) > 0 and starts[-1] < 2**31:
        starts.append(starts[-1] * T_mult + T_0)

    def rate(epoch: Epoch) -> jax.Array:
        if T_mult == 1:
            start, length = epoch // T_0 * T_0, T_0
        else:
            period = jnp.searchsorted(jnp.asarray(starts[1:]), epoch, side="right")
            start = jnp.asarray(starts)[period]
            length = jnp.asarray(starts)[period + 1] - start
        return eta_min + (lr - eta_min) * (1 + jnp.cos(math.pi * (epoch - start) / length)) / 2

    return rate


def _polynomial(lr: float, total_iters: int = 5, power: float = 1.0) -> Rate:
    return lambda epoch: lr * (1.0 - _part(epoch, total_iters)) ** power


def _one_cycle(
    lr: float,
    max_lr: float,
    total_steps: int | None = None,
    epochs: int | None = None,
    steps_per_epoch: int | None = None,
    pct_start: float = 0.3,
    anneal_strategy: str = "cos",
    cycle_momentum: bool = True,
    base_momentum: float = 0.85,
    max_momentum: float = 0.95,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
    three_phase: bool = False,
) -> Rate:
    """Its rate begins at `max_lr / div_factor`, not at the optimizer's own rate."""
    del lr, base_momentum, max_momentum
    total = total_steps if total_steps is not None else (epochs or 0) * (steps_per_epoch or 0)
    if total < 1:
        raise ValueError("OneCycleLR: give total_steps, or epochs and steps_per_epoch")
    if cycle_momentum:
        raise ValueError(f"OneCycleLR: {CYCLED}")
    first, top = max_lr / div_factor, max_lr
    last = first / final_div_factor
    ends = [pct_start * total - 1, 2 * pct_start * total - 2, total - 1]
    if three_phase:
        return _phases(ends, [first, top, first, last], anneal_strategy)
    return _phases([ends[0], ends[2]], [first, top, last], anneal_strategy)


def _phases(ends: Sequence[float], rates: Sequence[float], anneal_strategy: str) -> Rate:
    """The phases of OneCycleLR, by their ends and the rates at their beginnings and the end."""

    def anneal(start: float, end: float, part: jax.Array) -> jax.Array:
        if anneal_strategy == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (1 + jnp.cos(math.pi * part))

    def rate(epoch: Epoch) -> jax.Array:
        begins = [0.0, *ends[:-1]]
        phases = [
            anneal(rates[i], rates[i + 1], (epoch - begins[i]) / (end - begins[i]))
            for i, end in enumerate(ends)
        ]
        result = phases[-1]
        for phase, end in reversed([*zip(phases, ends, strict=True)][:-1]):
            result = jnp.where(epoch <= end, phase, result)
        return result

    return rate


def _sequential(lr: float, schedulers: Sequence[Rate], milestones: Sequence[int]) -> Rate:
    del lr

    def rate(epoch: Epoch) -> jax.Array:
        result = schedulers[0](epoch)
        for at, following in zip(milestones, schedulers[1:], strict=True):
            result = jnp.where(epoch >= at, following(epoch - at), result)
        return result

    return rate


SCHEDULERS: Mapping[str, Maker] = {
    "ConstantLR": _constant,
    "StepLR": _step,
    "MultiStepLR": _multi_step,
    "ExponentialLR": _exponential,
    "LinearLR": _linear,
    "CosineAnnealingLR": _cosine,
    "CosineAnnealingWarmRestarts": _warm_restarts,
    "PolynomialLR": _polynomial,
    "OneCycleLR": _one_cycle,
    "SequentialLR": _sequential,
}


def _maker(name: str) -> Maker:
    if name in OTHERWISE:
        raise ValueError(f"{name}: {OTHERWISE[name]}")
    if name not in SCHEDULERS:
        near = did_you_mean(name, SCHEDULERS) or "."
        raise ExpressionError(
            f"{name} is no scheduler of PyTorch that is known here{near} There are "
            f"{', '.join(SCHEDULERS)}"
        )
    return SCHEDULERS[name]


def _from_text(text: str, lr: float) -> Rate:
    try:
        node = expression(text)
    except ValueError as error:
        raise ExpressionError(f"{text[:100]!r} is no constructor call: {error}") from None
    return _from_call(node, text, lr)


def _from_call(node: ast.expr, text: str, lr: float) -> Rate:
    if not isinstance(node, ast.Call):
        raise ExpressionError(
            f"{text[:100]!r} is no constructor call of a scheduler, such as "
            "StepLR(step_size=30, gamma=0.1)"
        )
    name = ast.unparse(node.func).rpartition(".")[2]
    maker = _maker(name)
    args = node.args[1:] if node.args and isinstance(node.args[0], ast.Name) else node.args
    keywords = {str(k.arg): k.value for k in node.keywords if k.arg not in _IGNORED}
    signature = inspect.signature(maker)
    try:
        _, *bound = signature.bind(lr, *args, **keywords).arguments.items()
    except TypeError as error:
        names = ", ".join([*signature.parameters][1:])
        raise ExpressionError(f"{text[:100]!r}: {name} takes {names}: {error}") from None
    return maker(lr, **{key: _value(value, text, lr) for key, value in bound})


def _value(node: ast.expr, text: str, lr: float) -> Any:
    try:
        return literal(node, call=lambda scheduler: _from_call(scheduler, text, lr))
    except ExpressionError:
        raise
    except (ValueError, TypeError):
        raise ExpressionError(
            f"{text[:100]!r}: {ast.unparse(node)} is not a value; write it out: none is evaluated"
        ) from None


def _from_object(scheduler: Any, lr: float | None) -> Rate:
    """The rate of a scheduler of PyTorch, which is not imported here."""
    name = type(scheduler).__name__
    if not type(scheduler).__module__.startswith("torch.optim"):
        raise TypeError(f"expected a scheduler of torch.optim, or text, found {name}")
    maker = _maker(name)
    inner = getattr(scheduler, "_schedulers", ())
    rates = (inner[0] if inner else scheduler).base_lrs
    if lr is None and len({*map(float, rates)}) > 1:
        raise ValueError(
            f"{name}: the optimizer's groups have rates of their own, "
            f"{', '.join(map(str, rates))}: make a schedule for each, with lr="
        )
    base = float(rates[0]) if lr is None else lr
    if name == "SequentialLR":
        schedulers = [_from_object(one, base) for one in inner]
        return _sequential(base, schedulers, scheduler._milestones)
    if name == "OneCycleLR":
        return _one_cycle_of(scheduler, base)
    names = [*inspect.signature(maker).parameters][1:]
    settings = {key: getattr(scheduler, key) for key in names if hasattr(scheduler, key)}
    if name == "MultiStepLR":
        settings["milestones"] = sorted(scheduler.milestones.elements())
    return maker(base, **settings)


def _check_count(scheduler: Any, steps_per_epoch: int) -> None:
    """Refuses a scheduler at another step than its optimizer, whose steps a state counts."""
    states = scheduler.optimizer.state.values()
    steps = max((int(state["step"]) for state in states if "step" in state), default=0)
    if steps and scheduler.last_epoch != steps // steps_per_epoch:
        name = type(scheduler).__name__
        raise ValueError(
            f"{name}: expected the scheduler at {steps // steps_per_epoch}, as its optimizer has "
            f"taken {steps} steps, found it at {scheduler.last_epoch}. If it steps once in N steps "
            "of the optimizer, give steps_per_epoch=N. If it was attached after K steps, write it "
            f'as text, schedule = from_torch_schedule("{name}(...)", lr=...), and give lr=lambda '
            "count: schedule(count - K)"
        )


def _one_cycle_of(scheduler: Any, base: float) -> Rate:
    """The rate of an object of OneCycleLR, whose rates are in the group that begins at `base`."""
    if scheduler.cycle_momentum:
        raise ValueError(f"OneCycleLR: {CYCLED}")
    groups = scheduler.optimizer.param_groups
    group = next((g for g in groups if float(g["initial_lr"]) == base), None)
    if group is None:
        raise ValueError(
            f"lr: expected the first rate of a group, one of "
            f"{', '.join(str(g['initial_lr']) for g in groups)}, found {base}"
        )
    phases = scheduler._schedule_phases
    rates = [float(group[name]) for name in (phases[0]["start_lr"], *(p["end_lr"] for p in phases))]
    return _phases([p["end_step"] for p in phases], rates, scheduler._anneal_func_type)
