"""`python -m benchmarks`: measures what this package costs, as ratios of things that take turns."""

import argparse
import contextlib
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from benchmarks import growth, start, step_time, tools
from benchmarks.figures import (
    Figure,
    Measurement,
    NotRun,
    Outcome,
    ratio_text,
    to_markdown,
)
from equivalence_tests.output_files import write_text

MEASUREMENTS: dict[str, Measurement] = {
    "step": step_time.measure,
    "growth": growth.measure,
    "memory": step_time.measure_memory,
    "start": start.measure,
    "tools": tools.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints each figure as it comes, and writes the page; returns 0 for any figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("only", nargs="*", choices=[*MEASUREMENTS, []], metavar="MEASUREMENT",
                        help=f"one of {', '.join(MEASUREMENTS)}; all if none is named")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="tiny problems, to see that all runs")
    parser.add_argument("--results", type=Path, help="write the page of this run to this file")
    options = parser.parse_args(arguments)
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    with compiling_anew():
        for name in options.only or MEASUREMENTS:
            for outcome in _outcomes_of(name, options.quick):
                outcomes.append(outcome)
                print(_line(outcome), flush=True)
    if options.results is not None:
        write_text(options.results, to_markdown(outcomes, time.perf_counter() - began))
    return 0


def _outcomes_of(name: str, quick: bool) -> Iterator[Outcome]:
    """Yields the outcomes of a measurement; after an error it says so, and the others still run."""
    try:
        yield from MEASUREMENTS[name](quick)
    except Exception as error:
        traceback.print_exc()
        yield NotRun(name, "the rest", f"it stopped with {type(error).__name__}: {error}")


@contextlib.contextmanager
def compiling_anew() -> Iterator[None]:
    """A scope in which nothing comes from the compilation cache, since compilation is timed."""
    flag = "jax_enable_compilation_cache"
    before = getattr(jax.config, flag)
    jax.config.update(flag, False)
    compilation_cache.reset_cache()  # JAX looks at the flag once, when it first compiles
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "flax.optim was removed", DeprecationWarning)
            warnings.filterwarnings("ignore", "Some donated buffers", UserWarning)
            yield
    finally:
        jax.config.update(flag, before)
        compilation_cache.reset_cache()


def _line(outcome: Outcome) -> str:
    if not isinstance(outcome, Figure):
        return f"{outcome.section}: {outcome.subject}: not run: {outcome.reason}"
    bar = "" if outcome.is_within_bar else f"  above {outcome.bar:.2f}"
    note = f"  ({outcome.note})" if outcome.note else ""
    ratio = ratio_text(outcome.ratio)
    return f"{outcome.section}: {outcome.subject}: {outcome.what}  {ratio}{bar}{note}"


if __name__ == "__main__":
    sys.exit(main())
