"""PyTorch's optimizers against it: recorded, and where it is installed, run here.

The exact recipe and that of public Optax are held to what PyTorch itself computed, through
gradients that are ordinary, tiny, zero, huge, infinite and NaN.
"""

import contextlib
import functools
import importlib.util
import inspect
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.recordings.format import (
    Flat,
    Recording,
    host_leaves,
    named_leaves,
    read,
    read_packed,
)
from equivalence_tests.recordings.recorder import Recorder
from equivalence_tests.sides.frameworks import as_tensor, import_torch
from equivalence_tests.sides.side import Side, train_state
from equivalence_tests.sides.trajectory import driver, trajectory
from equivalence_tests.suite.case import Case, Result, measure, prove
from optax_bridge._text import did_you_mean
from optax_bridge.correspondence import Entry, Table, all_entries
from optax_bridge.correspondence.recipe import Call, build, render

FILE = "torch.npz"
DTYPES = ("float32", "bfloat16")
STEPS = 12
RECORDED, LIVE = "recorded", "live"

# PyTorch rounds the last elements of a tensor in half precision otherwise, those that fill no whole
# vector register: sizes are multiples of 32 there.
_SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "float32": {"kernel": (5, 7), "tall": (6, 3), "bias": (3,), "scalar": (), "tiny": (4,)},
    "bfloat16": {"kernel": (8, 8), "tall": (16, 4), "bias": (32,), "tiny": (32,)},
}
# Schedulers of PyTorch, each by its name and arguments, and how many of their rates are looked at.
RATE, EPOCHS = 0.5, 40
SCHEDULERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ConstantLR", {"factor": 0.2, "total_iters": 4}),
    ("StepLR", {"step_size": 7, "gamma": 0.3}),
    ("MultiStepLR", {"milestones": [3, 8, 8, 20], "gamma": 0.5}),
    ("ExponentialLR", {"gamma": 0.9}),
    ("LinearLR", {}),
    ("LinearLR", {"start_factor": 0.1, "end_factor": 0.7, "total_iters": 12}),
    ("CosineAnnealingLR", {"T_max": 13, "eta_min": 1e-3}),
    ("CosineAnnealingWarmRestarts", {"T_0": 5}),
    ("CosineAnnealingWarmRestarts", {"T_0": 3, "T_mult": 2, "eta_min": 0.01}),
    ("PolynomialLR", {"total_iters": 17, "power": 2.0}),
    ("OneCycleLR", {"max_lr": 0.3, "total_steps": 40, "cycle_momentum": False}),
    (
        "OneCycleLR",
        {
            "max_lr": 0.3,
            "epochs": 4,
            "steps_per_epoch": 10,
            "three_phase": True,
            "anneal_strategy": "linear",
            "cycle_momentum": False,
        },
    ),
    (
        "SequentialLR",
        {
            "schedulers": [
                ("LinearLR", {"start_factor": 0.1, "total_iters": 6}),
                ("CosineAnnealingLR", {"T_max": 30}),
                ("StepLR", {"step_size": 4}),
            ],
            "milestones": [6, 25],
        },
    ),
)
_TINY, _HUGE = np.float32(1e-30), np.float32(1e30)


@dataclass(frozen=True)
class WitnessCheck(Case):
    """One recipe against the library that the entry is of."""

    entry: str
    setting: int
    problem: str
    recipe: str
    rate: str = RECORDED

    def __str__(self) -> str:
        return f"{self.entry}-{self.setting}-{self.problem}-{self.rate}-{self.recipe}"

    @property
    def column(self) -> str:
        """Its column in the report's picture."""
        return f"{self.recipe}, {self.problem}"


def witness_checks(table: Table, only: Sequence[str] = ()) -> list[WitnessCheck]:
    """All checks against a library, live ones where it is installed."""
    prefix = f"{table.name}."
    names = {name.lower().removeprefix(prefix): name for name in table}
    asked = [name.lower().removeprefix(prefix) for name in only]
    if unknown := [name for name in asked if name not in names]:
        near = did_you_mean(unknown[0], names) or "."
        raise ValueError(
            f"no optimizer of {table.title} is called {', '.join(unknown)}{near} There are "
            f"{', '.join(names)}"
        )
    return [check for name in asked or names for check in _checks_of(table, names[name])]


def is_installed(table: Table) -> bool:
    """True if the library itself is here."""
    return importlib.util.find_spec(table.origin.partition(".")[0]) is not None


def _checks_of(table: Table, name: str) -> Iterator[WitnessCheck]:
    for index in range(len(table[name].cases)):
        yield from (WitnessCheck(name, index, dtype, "exact", RECORDED) for dtype in DTYPES)
        yield WitnessCheck(name, index, "float32", "optax", RECORDED)
        if is_installed(table):
            yield WitnessCheck(name, index, "float32", "exact", LIVE)


def problem(entry: Entry, dtype: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Initial parameters, and gradients of every kind with a leading axis of steps."""
    rng = np.random.default_rng(0)
    shapes = {
        name: shape
        for name, shape in _SHAPES[dtype].items()
        if len(shape) == 2 or "vectors" not in entry.excluded
    }
    params = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    grads = {n: rng.standard_normal((STEPS, *s)).astype(np.float32) for n, s in shapes.items()}
    for name, each in grads.items():
        each *= np.float32(1e-8) if name == "tiny" else 1  # of the size of eps
        flat = each.reshape(STEPS, -1)
        flat[3, ::3] *= 1 if name == "tiny" else _TINY  # below 1.2e-38 XLA has zero
        flat[5, 1::3] = 0
        flat[7, 2::3] *= _HUGE
        flat[10, 0], flat[11, -1] = np.inf, np.nan
    return (
        {n: jnp.asarray(p, dtype) for n, p in params.items()},
        {n: jnp.asarray(g, dtype) for n, g in grads.items()},
    )


def genuine(entry: Entry, settings: Mapping[str, Any], dtype: str) -> Recording:
    """The recorded steps of the library's own optimizer, one tensor at a time."""
    torch = import_torch("witness")
    optimizer = getattr(torch.optim, entry.legacy.__name__)
    one_by_one = {"foreach": False} if "foreach" in inspect.signature(optimizer).parameters else {}
    params, grads = problem(entry, dtype)
    tensors = {name: torch.nn.Parameter(as_tensor(torch, leaf)) for name, leaf in params.items()}
    model = torch.nn.ParameterDict(tensors)
    stepped = optimizer(list(model.values()), **settings, **one_by_one)
    by_step = [{n: as_tensor(torch, grad[i]) for n, grad in grads.items()} for i in range(STEPS)]
    return _recorded(model, stepped, by_step)


def _recorded(
    model: Any, optimizer: Any, grads: Sequence[Mapping[str, Any]], scheduler: Any = None
) -> Recording:
    """Records PyTorch's steps on gradients that are given."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        recorder = Recorder(Path(folder, "run"), steps=len(grads)).torch(model, optimizer)
        for step in grads:
            for name, parameter in model.named_parameters():
                parameter.grad = step[name]
            optimizer.step()
            if scheduler is not None and not recorder.is_full:
                scheduler.step()
        return read(Path(folder, "run"))


def ours(side: Side, run: Recording, drive: str = "jit", only: Sequence[str] = ()) -> Flat:
    """The parameters after every step of a recipe, all of them or those that are asked for."""
    trees = run.steps[0].trees["params"], run.stacked("grads")
    params, grads = ({n: tree[n,] for (n,) in tree if not only or n in only} for tree in trees)
    side = replace(side, view=lambda state: state.params)
    return host_leaves(trajectory(driver(side, drive), params, (grads,)))


@functools.cache
def recordings() -> Mapping[str, Recording]:
    """PyTorch's recorded steps, by `case_name` and `schedule-3`."""
    return read_packed(Path(str(resources.files("equivalence_tests.reference").joinpath(FILE))))


def case_name(entry: Entry, setting: int, dtype: str) -> str:
    """The name of a recording."""
    return f"{entry.name}-{setting}-{dtype}"


def scheduler_text(name: str, arguments: Mapping[str, Any]) -> str:
    """A scheduler's constructor call."""

    def text(value: Any) -> str:
        if isinstance(value, list) and isinstance(value[0], tuple):
            return f"[{', '.join(scheduler_text(*each) for each in value)}]"
        return repr(value)

    return f"{name}({', '.join(f'{key}={text(value)}' for key, value in arguments.items())})"


def genuine_schedule(name: str, arguments: Mapping[str, Any]) -> Recording:
    """Recorded steps, one each epoch, at the rates that PyTorch's own scheduler gives."""
    torch = import_torch("witness")
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(1))})
    optimizer = torch.optim.SGD(list(model.values()), lr=RATE)

    def scheduler(name: str, arguments: Mapping[str, Any]) -> Any:
        inner = [scheduler(*each) for each in arguments.get("schedulers", ())]
        kwargs = {**arguments, "schedulers": inner} if inner else arguments
        return getattr(torch.optim.lr_scheduler, name)(optimizer, **kwargs)

    grads = [{"w": torch.zeros(1)}] * EPOCHS
    return _recorded(model, optimizer, grads, scheduler(name, arguments))


def rates(run: Recording) -> list[float]:
    """The rate of each recorded step, of its only group."""
    return [rate for step in run.steps for rate in step.rates.values()]


def case_settings(entry: Entry, setting: int) -> dict[str, Any]:
    """The settings of a case, its rate included."""
    case = entry.cases[setting]
    return {entry.rate: case.learning_rate, **case.settings}


def run_witness(check: WitnessCheck) -> Result:
    """Runs one check; an error is in its result."""
    entry = all_entries()[check.entry]
    settings = case_settings(entry, check.setting)

    def compare_with(result: Result, recipe: Call) -> None:
        result.comparison = comparison_of(entry, settings, check, recipe)

    result = measure(check, text_of(entry, settings), entry.legacy(**settings), compare_with)
    if check.problem == "float32" and check.rate == RECORDED:
        prove(result, check.setting)
    return result


def comparison_of(
    entry: Entry, settings: Mapping[str, Any], check: WitnessCheck, recipe: Call
) -> Comparison:
    """The library's trajectory compared with a recipe's."""
    run = (
        genuine(entry, settings, check.problem)
        if check.rate == LIVE
        else recordings()[case_name(entry, check.setting, check.problem)]
    )
    side = train_state(check.recipe, entry.legacy(**settings), build(recipe))
    with np.errstate(all="ignore"):
        both = (named_leaves(leaves) for leaves in (run.stacked("new_params"), ours(side, run)))
        return compare(*both, poisoned={"params": 10})


def text_of(entry: Entry, settings: Mapping[str, Any]) -> str:
    """The constructor call of the library."""
    return render(Call(entry.sources[0], (), dict(settings)))
