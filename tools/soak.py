"""A hundred thousand steps, exact against legacy, for every optimizer.

What only shows late: counts beyond 2^15, rates that decayed to nothing, statistics that a small
dtype no longer moves, a difference of one bit that grows.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax
import ml_dtypes
import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.compare.judgement import one_function_remark
from equivalence_tests.sides import side as sides
from equivalence_tests.sides.trajectory import Driven, driver
from optax_bridge.correspondence import ENTRIES
from optax_bridge.metadata.trees import Params, PyTree

STEPS = 100_000
PART = 1_000  # steps by one call of a program

# Their rate belongs to the optimizers inside them.
_CONSTANT_ONLY = ("weight_norm", "multi_optimizer")


@dataclass(frozen=True)
class Soak:
    """One run."""

    entry: str
    kind: str
    steps: int
    last: float
    first: str
    seconds: float


def cases() -> list[tuple[str, str]]:
    """Names and kinds of all runs."""
    kinds = ("decaying rate", "half precision")
    return [
        (name, kind)
        for name in ENTRIES
        for kind in kinds
        if kind == kinds[1] or name not in _CONSTANT_ONLY
    ]


def run(entry: str, kind: str, steps: int = STEPS) -> Soak:
    """Runs both sides in parallel and compares every bit of every step."""
    about = ENTRIES[entry]
    setting = about.cases[0]
    decays = kind == "decaying rate"
    definition = about.definition(setting, None if decays else setting.learning_rate)
    params = _params(half=not decays)
    pair = [driver(side) for side in (sides.legacy(definition), sides.exact(definition))]
    started = time.perf_counter()
    parts = _parts(pair, params, steps, setting.learning_rate if decays else None)
    part = next(parts)
    while part[1].identical and part[0] < steps:
        part = next(parts)
    done, difference, last = part
    first = "" if difference.first is None else str(difference.first)
    if why := one_function_remark(difference):
        first += f" ({why})"
    return Soak(entry, kind, done, last, first, time.perf_counter() - started)


def _parts(
    pair: Sequence[Driven], params: Params, steps: int, peak: float | None
) -> Iterator[tuple[int, Comparison, float]]:
    states = [each.init(params) for each in pair]
    rng = np.random.default_rng(0)
    for first in range(0, steps, PART):
        count = min(PART, steps - first)
        grads = jax.tree.map(lambda p, n=count: _gradients(rng, n, p), params)
        inputs: tuple[PyTree, ...] = (grads,)
        if peak is not None:
            remaining = 1 - np.arange(first + 1, first + count + 1) / steps
            inputs = (grads, (peak * remaining).astype(np.float32))
        views = []
        for index, each in enumerate(pair):
            states[index], view = each.steps(states[index], inputs, 0, count)
            views.append(jax.device_get(view))
        difference = compare(*views)
        ends = [
            np.abs(leaf[-1].astype(np.float64)).max()
            for leaf in jax.tree.leaves(views[0]["params"])
        ]
        steps_taken = count if difference.first is None else difference.first.step
        yield first + steps_taken, difference, float(max(ends))


def _params(half: bool) -> dict[str, PyTree]:
    params = {
        "kernel": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
        "bias": np.zeros(2, np.float32),
    }
    if half:
        params["half"] = np.linspace(0.5, 2, 6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    return params


def _gradients(rng: np.random.Generator, steps: int, param: np.ndarray) -> np.ndarray:
    """Normal, of sizes over eight orders of magnitude, a tenth of them zero."""
    size = 10.0 ** rng.uniform(-6, 2, (steps, *[1] * param.ndim))
    values = size * rng.standard_normal((steps, *param.shape))
    values *= rng.random((steps, *[1] * param.ndim)) > 0.1
    return values.astype(param.dtype)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all cases, or those of some optimizers, and prints a table; 1 if any bit differs."""
    parser = argparse.ArgumentParser(description="Long runs, exact against legacy, bit for bit.")
    parser.add_argument("optimizers", nargs="*", choices=[*ENTRIES, []], metavar="OPTIMIZER")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    chosen = [case for case in cases() if not options.optimizers or case[0] in options.optimizers]
    console = Console(stderr=True)
    results = [run(*case, options.steps) for case in track(chosen, "soaking", console=console)]
    table = Table(title=f"exact against legacy over {options.steps:,} steps", title_justify="left")
    for name in ("optimizer", "run", "to step", "largest parameter", "first difference", "s"):
        table.add_column(name)
    for one in results:
        first = one.first or "none"
        row = (
            one.entry,
            one.kind,
            f"{one.steps:,}",
            f"{one.last:.3g}",
            first,
            f"{one.seconds:.0f}",
        )
        table.add_row(*row)
    Console().print(table)
    return int(any(one.first for one in results))


if __name__ == "__main__":
    raise SystemExit(main())
