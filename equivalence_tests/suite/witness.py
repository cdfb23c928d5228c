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
from importlib import resources
from pathlib import Path
from typing import Any

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.recordings.format import Recording, read, read_packed
from equivalence_tests.recordings.recorder import Recorder
from equivalence_tests.recordings.replay import Stepper
from equivalence_tests.sides.frameworks import as_tensor, import_torch
from equivalence_tests.suite.case import Result, measure, prove
from equivalence_tests.suite.checks import Check
from optax_bridge._literals import expression, literal
from optax_bridge._text import did_you_mean
from optax_bridge.correspondence import Entry, Table, all_entries
from optax_bridge.correspondence.recipe import Call, build, render

FILE = "torch.npz"
DTYPES = ("float32", "bfloat16")
STEPS = 12
RECORDED, LIVE = "recorded", "live"

# Schedulers of PyTorch, and how many of their rates are looked at.
RATE, EPOCHS = 0.5, 40
SCHEDULERS = (
    "ConstantLR(factor=0.2, total_iters=4)",
    "StepLR(step_size=7, gamma=0.3)",
    "MultiStepLR(milestones=[3, 8, 8, 20], gamma=0.5)",
    "ExponentialLR(gamma=0.9)",
    "LinearLR()",
    "LinearLR(start_factor=0.1, end_factor=0.7, total_iters=12)",
    "CosineAnnealingLR(T_max=13, eta_min=0.001)",
    "CosineAnnealingWarmRestarts(T_0=5)",
    "CosineAnnealingWarmRestarts(T_0=3, T_mult=2, eta_min=0.01)",
    "PolynomialLR(total_iters=17, power=2.0)",
    "OneCycleLR(max_lr=0.3, total_steps=40, cycle_momentum=False)",
    "OneCycleLR(max_lr=0.3, epochs=4, steps_per_epoch=10, three_phase=True, "
    "anneal_strategy='linear', cycle_momentum=False)",
    "SequentialLR(schedulers=[LinearLR(start_factor=0.1, total_iters=6), "
    "CosineAnnealingLR(T_max=30), StepLR(step_size=4)], milestones=[6, 25])",
)


class WitnessCheck(Check):
    """One recipe against the library that the entry is of: its problem is a dtype."""


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
        yield from (WitnessCheck(name, index, dtype, RECORDED) for dtype in DTYPES)
        yield WitnessCheck(name, index, "float32", RECORDED, "optax")
        if is_installed(table):
            yield WitnessCheck(name, index, "float32", LIVE)


def genuine(entry: Entry, settings: Mapping[str, Any], inputs: Recording) -> Recording:
    """The steps of the library's own optimizer, one tensor at a time, through given gradients."""
    torch = import_torch("witness")
    optimizer = getattr(torch.optim, entry.legacy.__name__)
    one_by_one = {"foreach": False} if "foreach" in inspect.signature(optimizer).parameters else {}
    (params, *_), grads = (
        [{str(n): as_tensor(torch, x) for (n,), x in step.trees[tree].items()} for step in some]
        for tree, some in (("params", inputs.steps[:1]), ("grads", inputs.steps))
    )
    model = torch.nn.ParameterDict({n: torch.nn.Parameter(leaf) for n, leaf in params.items()})
    stepped = optimizer(list(model.values()), **settings, **one_by_one)
    return _record(model, stepped, grads)


def _record(
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


@functools.cache
def recordings() -> Mapping[str, Recording]:
    """PyTorch's recorded steps, by `case_name` and `schedule-3`."""
    return read_packed(Path(str(resources.files("equivalence_tests.reference").joinpath(FILE))))


def case_name(entry: Entry, setting: int, dtype: str) -> str:
    """The name of a recording."""
    return f"{entry.name}-{setting}-{dtype}"


def genuine_schedule(text: str) -> Recording:
    """Recorded steps, one each epoch, at the rates that PyTorch's own scheduler gives."""
    torch = import_torch("witness")
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.zeros(1))})
    optimizer = torch.optim.SGD(list(model.values()), lr=RATE)

    def scheduler(call: Any) -> Any:
        kwargs = {keyword.arg: literal(keyword.value, call=scheduler) for keyword in call.keywords}
        return getattr(torch.optim.lr_scheduler, call.func.id)(optimizer, **kwargs)

    grads = [{"w": torch.zeros(1)}] * EPOCHS
    return _record(model, optimizer, grads, scheduler(expression(text)))


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
    run = recordings()[case_name(entry, check.setting, check.problem)]
    run = genuine(entry, settings, run) if check.rate == LIVE else run
    replayed = Stepper(build(recipe), run).run(lockstep=False)
    return compare(run.stacks("new_params"), replayed, poisoned={"params": 10})


def text_of(entry: Entry, settings: Mapping[str, Any]) -> str:
    """The constructor call of the library."""
    return render(Call(entry.sources[0], (), dict(settings)))
