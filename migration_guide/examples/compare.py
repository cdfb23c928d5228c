"""Runs every pair to its end, before and after in turns, and compares what they learn and cost.

    python -m migration_guide.examples.compare
    python -m migration_guide.examples.compare --only mnist --only vae --json results.json

The before-program runs as `optax-bridge run` runs it. A step's time is the one that lies between
two steps' lines, so that compilation, evaluation and saving do not count; its ratio is taken turn
by turn, and the median counts, of a few runs in processes of their own. The exit status is 1 if an
after-program is slower than the bar or trains otherwise: not with the same bits as its
before-program where its recipe has them, or further from what the genuine flax 0.5.3 recorded than
rounding leads. How far that is says a second recorded run of the genuine program, from parameters
with other last bits.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migration_guide.corpus.comparing import columns, lines
from migration_guide.examples import page, pairs
from migration_guide.examples.turns import Run, in_turn

BAR = 1.02

# Of a curve's largest value, what rounding alone is allowed; and how many times further than the
# recorded run from other last bits. One run's rounding grows a few times faster than another's.
OF_SCALE = 1e-5
TIMES_NUDGED = 10

ROUNDS = 3
_FIRST_TURNS = 5  # in which caches fill


def measure(name: str) -> dict[str, Any]:
    """Runs an example's two programs to their ends."""
    taken: list[dict[str, Run]] = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as root:
            jobs = {}
            for program, mode in (("before", "shim"), ("after", "plain")):
                file = str(pairs.HERE / name / f"{program}.py")
                jobs[program] = (mode, [file, "--workdir", f"{root}/{program}"])
            taken.append(in_turn(jobs))
    before, after = (columns(lines(taken[0][program].text)) for program in ("before", "after"))
    recorded, final = pairs.recorded(name), pairs.EXAMPLES[name].final
    return {
        "nudged": apart(pairs.nudged(name), recorded),
        "recorded_final": recorded[final]["values"][-1],
        "before_final": before[final]["values"][-1],
        "final": after[final]["values"][-1],
        "from_recorded": apart(after, recorded),
        "from_before": apart(after, before),
        "step_ratio": statistics.median(_ratio(runs["after"], runs["before"]) for runs in taken),
        "peak_ratio": taken[0]["after"].peak / taken[0]["before"].peak,
        "loss": [float(f"{value:.7g}") for value in after["loss"]["values"]],
    }


def apart(metrics: dict[str, Any], expected: dict[str, Any]) -> float:
    """The largest difference, relative to the largest value in its metric's curve."""
    if {m: c["steps"] for m, c in metrics.items()} != {m: c["steps"] for m, c in expected.items()}:
        raise ValueError(f"expected {sorted(expected)} at the same steps, found {sorted(metrics)}")
    worst = 0.0
    for metric, column in expected.items():
        values = np.asarray(column["values"])
        difference = np.max(np.abs(np.asarray(metrics[metric]["values"]) - values))
        worst = max(worst, float(difference / (np.max(np.abs(values)) or 1.0)))
    return worst


def _ratio(run: Run, before: Run) -> float:
    """The median of the ratios turn by turn."""
    steps = _steps(run)
    return statistics.median(steps[turn] / at for turn, at in _steps(before).items())


def _steps(run: Run) -> dict[int, float]:
    """Turn -> seconds, of the turns that are one training step and nothing else."""
    trains = ["loss" in row for row in lines(run.text)]
    return {
        turn: run.seconds[turn]
        for turn in range(_FIRST_TURNS, len(trains))
        if trains[turn] and trains[turn - 1]
    }


def faults(name: str, row: dict[str, Any]) -> list[str]:
    """Returns the ways in which an example is slower or trains otherwise than it should."""
    problems = []
    far = max(OF_SCALE, TIMES_NUDGED * row["nudged"])
    if row["from_recorded"] > far:
        problems.append(
            f"{name}: {row['from_recorded']:.1e} of the largest value from what is "
            f"recorded; expected at most {far:.1e}"
        )
    if row["from_before"] and not pairs.EXAMPLES[name].rounding:
        problems.append(f"{name}: {row['from_before']:.1e} from before; expected the same bits")
    if row["step_ratio"] > BAR:
        problems.append(f"{name}: {row['step_ratio']:.3f} of before's time, bar {BAR}")
    return problems


def machine() -> dict[str, Any]:
    """Returns the versions and the machine that the figures come from."""
    packages = ("jax", "jaxlib", "flax", "optax", "numpy")
    return {
        "python": platform.python_version(),
        "versions": {package: importlib.metadata.version(package) for package in packages},
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[1]) - 1,  # what others did: this itself keeps one busy
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, prints and writes; returns 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m migration_guide.examples.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", choices=pairs.NAMES, help="repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the figures, which are kept")
    options = parser.parse_args(arguments)
    results: dict[str, Any] = {}
    problems: list[str] = []
    for name in options.only or pairs.NAMES:
        missing = [p for p in pairs.EXAMPLES[name].needs if importlib.util.find_spec(p) is None]
        if missing:
            print(f"{name} is left out: {', '.join(missing)} is not installed here")
            continue
        print(f"{name} ...")
        results[name] = measure(name)
        problems += faults(name, results[name])
    print(page.table(results))
    if options.json is not None:
        before = json.loads(options.json.read_text("utf-8")) if options.json.is_file() else {}
        content = {**machine(), "examples": {**before.get("examples", {}), **results}}
        options.json.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
