"""Memory for each parameter, with the state donated: what XLA plans, and the process's own peak."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from benchmarks import problem
from benchmarks.figures import Figure, Outcome
from benchmarks.step_time import steppers
from benchmarks.timing import Spread, Stepper, interval, spread
from optax_bridge.correspondence import ENTRIES

SECTION = "memory"
_PAIRS = (("exact", "legacy"), ("exact", "stock"))

# Prints the process's peak in bytes after three steps, above that before there were parameters.
_PROGRAM = """
import sys
from benchmarks import problem, step_time
from benchmarks.peak import peak_bytes
from benchmarks.timing import Stepper
from optax_bridge.correspondence import ENTRIES
name, leaves, which = sys.argv[1], int(sys.argv[2]), sys.argv[3]
side = {side.name: side for side in step_time.sides_of(ENTRIES[name])}[which]
def run(leaves):
    params = problem.equal_leaves(leaves, 1024, 1024)
    stepper = Stepper(lambda s, g: side.step(s, g, None), side.init(params), params)
    for _ in range(3):
        stepper()
    return peak_bytes()
before = run(1)
print("peak", run(leaves) - before)
"""


def measure(quick: bool) -> Iterator[Outcome]:
    """Every optimizer's plan; the peak of a process for Adam."""
    params = problem.tree(problem.QUICK_TREE if quick else "16 x 1024x1024")
    for entry in [ENTRIES["adam"]] if quick else ENTRIES.values():
        planned = {name: planned_bytes(made) for name, made in steppers(entry, params).items()}
        yield from _figures(f"{entry.name}, planned by XLA", planned, problem.size(params))
    if quick:
        return
    leaves, size = 24, 24 * 2**20
    peaks: dict[str, list[float]] = {name: [] for name in ("legacy", "exact", "stock")}
    for _ in range(2):
        for name, taken in peaks.items():
            taken.append(_peak("adam", leaves, name))
    for one, other in _PAIRS:
        each = [a / b for a, b in zip(peaks[one], peaks[other], strict=True)]
        base = spread(peaks[other]).median / size
        subject = "adam, peak of the process"
        yield Figure(SECTION, subject, f"{one} / {other}", interval(each), base, "bytes", 1.02)


def planned_bytes(stepper: Stepper) -> int:
    """What a step needs at once: its arguments, results that share none of them, and buffers."""
    plan: Any = stepper.program.memory_analysis()
    own = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + own + plan.temp_size_in_bytes


def _figures(subject: str, planned: dict[str, int], size: int) -> Iterator[Outcome]:
    for one, other in _PAIRS:
        if other in planned:
            ratio = planned[one] / planned[other]
            spreads, base = Spread(ratio, ratio, ratio), planned[other] / size
            yield Figure(SECTION, subject, f"{one} / {other}", spreads, base, "bytes", 1.02)


def _peak(entry: str, leaves: int, side: str) -> float:
    command = [sys.executable, "-W", "ignore", "-c", _PROGRAM, entry, str(leaves), side]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])
