"""How long the packages take to import, as ratios to `import flax, optax`.

    python -m benchmarks.import_time

Every import runs in a fresh interpreter. The candidates take turns, so that a slow minute of the
machine falls on all of them; the ratio is that of the medians. The project's bound is 1.10: above
that the command exits with status 1.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence

BASELINE = "flax, optax"
CANDIDATES = ("legacy_optim", "optax_bridge")
BOUND = 1.10


def seconds_to_import(modules: str) -> float:
    """Imports `modules` (the text after `import`) in a fresh interpreter; wall time in seconds.

    The clock runs inside the interpreter: its own start is not counted.

    Raises:
      subprocess.CalledProcessError: the import failed; the traceback is on stderr.
    """
    code = (
        "import time; start = time.perf_counter()\n"
        f"import {modules}\n"
        "print(time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def measure(rounds: int) -> dict[str, float]:
    """Median seconds of each import over `rounds` turns, after one that warms the disk."""
    names = (BASELINE, *CANDIDATES)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in names:
            seconds = seconds_to_import(name)
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints seconds and ratios; 0 when every ratio is within the bound, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9, help="turns that count (default 9)")
    rounds = parser.parse_args(arguments).rounds
    if rounds < 1:
        parser.error(f"--rounds: expected at least 1, found {rounds}")
    medians = measure(rounds)
    baseline = medians[BASELINE]
    slow = False
    for name, seconds in medians.items():
        ratio = seconds / baseline
        slow |= ratio > BOUND
        mark = f"  above {BOUND:.2f}" if ratio > BOUND else ""
        print(f"import {name:<14} {seconds:6.3f} s  {ratio:5.2f}{mark}")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
