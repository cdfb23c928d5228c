"""Memory for each parameter with the state donated, as XLA plans it."""

from collections.abc import Iterator
from typing import Any

from benchmarks import problem
from benchmarks.figures import Figure, Outcome, exactly
from benchmarks.step_time import steppers
from benchmarks.timing import Stepper
from optax_bridge.correspondence import ENTRIES

SECTION = "memory"
BAR = 1.02


def measure(quick: bool) -> Iterator[Outcome]:
    """Every optimizer's plan; quick: Adam's, on a tiny tree."""
    params = problem.tree(problem.QUICK_TREE if quick else "16 x 1024x1024")
    for entry in [ENTRIES["adam"]] if quick else ENTRIES.values():
        planned = {name: planned_bytes(step) for name, step in steppers(entry, params).items()}
        for other in ("legacy", "stock"):
            if other in planned:
                ratio = exactly(planned["exact"] / planned[other])
                base = planned[other] / problem.size(params)
                sides = f"exact / {other}"
                yield Figure(SECTION, entry.name, sides, ratio, base, "bytes", BAR)


def planned_bytes(stepper: Stepper) -> int:
    """Returns the bytes of arguments, of results that share no buffer with them, and of buffers."""
    plan: Any = stepper.program.memory_analysis()
    results = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return plan.argument_size_in_bytes + results + plan.temp_size_in_bytes
