"""How long an optimizer's step takes: the old API, the exact recipe and the stock one, as ratios.

    python -m benchmarks.step_time
    python -m benchmarks.step_time --only adam --only lamb --repeats 200
    python -m benchmarks.step_time --json step_time.json

All three sides take steps over one transformer-shaped tree, compiled and with donated state, in
turn: the ratio to the old API is taken turn by turn, and its median and quartiles are shown.
Compilation is timed apart.
"""

import argparse
import dataclasses
import json
import os
import platform
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from benchmarks import problem
from benchmarks.timing import Spread, Stepper, in_turn, spread
from equivalence_tests.sides import side as sides
from optax_bridge.correspondence import ENTRIES, Entry, UnsupportedSetting, recipe_of
from optax_bridge.installed import versions

BASELINE = "legacy"


@dataclasses.dataclass(frozen=True)
class Timing:
    """What one side of one optimizer took.

    Attributes:
      optimizer: name of the entry.
      side: `legacy`, `exact` or `stock`.
      seconds: of a step.
      ratio: to the legacy step of the same turn.
      compile_seconds: for tracing and compiling the step, once.
    """

    optimizer: str
    side: str
    seconds: Spread
    ratio: Spread
    compile_seconds: float


def sides_of(entry: Entry) -> list[sides.Side]:
    """The sides of an entry's first case; stock only where public Optax has a part in it."""
    case = entry.cases[0]
    definition = entry.definition(case, case.learning_rate)
    found = [sides.legacy(definition), sides.exact(definition)]
    try:
        recipe, _ = recipe_of(definition, exact=False)
    except UnsupportedSetting:
        return found
    return [*found, sides.stock(definition, recipe)]


def measure(entry: Entry, params: Any, repeats: int) -> list[Timing]:
    """Times all sides of an entry.

    Args:
      entry: the entry.
      params: the parameters that are optimized.
      repeats: turns that count.

    Returns:
      A timing for each side, the legacy one first.
    """
    grads = problem.gradients(params)
    steppers = {}
    for side in sides_of(entry):

        def step(state: Any, grads: Any, side: sides.Side = side) -> Any:
            return side.step(state, grads, None)

        steppers[side.name] = Stepper(step, side.init(params), grads)
    seconds = in_turn(steppers, repeats)
    return [
        Timing(
            entry.name,
            name,
            spread(taken),
            spread([a / b for a, b in zip(taken, seconds[BASELINE], strict=True)]),
            steppers[name].compile_seconds,
        )
        for name, taken in seconds.items()
    ]


def table(timings: Sequence[Timing], title: str) -> Table:
    """One row for each optimizer: the old step's time, and the other sides as ratios to it."""
    shown = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("optimizer")
    for name in ("legacy step, ms", "exact / legacy", "stock / legacy", "compile, s"):
        shown.add_column(name, justify="right", no_wrap=True)
    for name in dict.fromkeys(timing.optimizer for timing in timings):
        row = {timing.side: timing for timing in timings if timing.optimizer == name}
        baseline = row[BASELINE].seconds
        scaled = Spread(*(1e3 * value for value in dataclasses.astuple(baseline)))
        shown.add_row(
            name,
            _shown(scaled),
            *(_shown(row[side].ratio) if side in row else "none" for side in ("exact", "stock")),
            "  ".join(f"{timing.compile_seconds:.2f}" for timing in row.values()),
        )
    return shown


def report(timings: Sequence[Timing], parameters: int, repeats: int) -> dict[str, Any]:
    """Timings and what they were measured on, as plain data for JSON."""
    device = jax.devices()[0]
    return {
        "versions": versions(),
        "device": device.device_kind,
        "platform": device.platform,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "parameters": parameters,
        "repeats": repeats,
        "results": [dataclasses.asdict(timing) for timing in timings],
    }


def main(arguments: Sequence[str] | None = None, params: Any = None) -> int:
    """Measures and prints.

    Args:
      arguments: of the command line; `sys.argv` if None.
      params: the parameters that are optimized; `problem.transformer_tree()` if None.

    Returns:
      0. Misuse exits with status 2 and says what was expected.
    """
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_time",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="an optimizer; repeatable")
    parser.add_argument("--repeats", type=int, default=60, help="turns that count (default 60)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.only or ()) - set(ENTRIES))
    if unknown:
        parser.error(f"--only: no {', '.join(unknown)}; expected some of {', '.join(ENTRIES)}")
    if given.repeats < 1:
        parser.error(f"--repeats: expected at least 1, found {given.repeats}")
    if given.json is not None and not given.json.resolve().parent.is_dir():
        parser.error(f"--json: the folder {given.json.resolve().parent} does not exist")

    warnings.filterwarnings("ignore", message="flax.optim was removed", category=DeprecationWarning)
    params = problem.transformer_tree() if params is None else params
    chosen = [ENTRIES[name] for name in given.only or ENTRIES]
    timings: list[Timing] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    cached = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)  # compilation is timed
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            for entry in progress.track(chosen, description="measuring"):
                timings += measure(entry, params, given.repeats)
    finally:
        jax.config.update("jax_enable_compilation_cache", cached)
    size = problem.size(params)
    title = (
        f"{size / 1e6:.2f} million parameters, {jax.devices()[0].platform}, {given.repeats} turns"
    )
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print(table(timings, title))
    console.print(
        "median (first to third quartile); compilation of legacy, exact, stock", style="dim"
    )
    if given.json is not None:
        content = report(timings, size, given.repeats)
        given.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def _shown(value: Spread) -> str:
    return f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
