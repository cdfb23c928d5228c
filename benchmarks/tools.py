"""The tools: check, the matrix, migrate, convert, prove and the trainer.

Where there is nothing to compare with, the second thing of the ratio is the bar itself, in seconds.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import conversion, migrate_time, trainer
from benchmarks.figures import Figure, NotRun, Outcome, ratios
from benchmarks.timing import Spread, interval, spread
from equivalence_tests.proof import table as proofs
from equivalence_tests.suite.matrix import cases as matrix_cases
from equivalence_tests.suite.matrix import run as matrix_run

SECTION = "tools"
_CHECK = [sys.executable, "-m", "optax_bridge", "check"]


def measure(quick: bool) -> Iterator[Outcome]:
    """Each tool, the quick ones first; quick: small work, and no process of its own."""
    yield from _migrate(quick)
    yield _timed("prove, every claim in float32", lambda: _prove(quick), 60.0)
    yield from _matrix(quick)
    yield from _trainer(quick)
    if quick:
        return
    yield from _convert()
    yield from _check()


def _timed(subject: str, work: Callable[[], str], bar: float) -> Figure:
    """One run, as a part of the seconds that it may take; what the work returns is the note."""
    start = time.perf_counter()
    note = work()
    seconds = time.perf_counter() - start
    ratio = seconds / bar
    spreads = Spread(ratio, ratio, ratio)
    return Figure(SECTION, subject, "seconds / bar", spreads, bar, "s", 1.0, note)


def _migrate(quick: bool) -> Iterator[Outcome]:
    tree = "migrate, a tree of which 1 file in 100 uses the API"
    dense = "migrate, files of five programs of the corpus each"
    files, full = (50, 1) if quick else (3000, 36)
    yield from _migrated(tree, migrate_time.write_tree, files, migrate_time.BOUND)
    try:
        yield from _migrated(dense, migrate_time.write_dense, full, migrate_time.DENSE_BOUND)
    except FileNotFoundError as error:
        yield NotRun(SECTION, dense, str(error))


def _migrated(
    subject: str, write: Callable[[Path, int], object], files: int, bar: float
) -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), files)
        seconds, _ = migrate_time.seconds_to_migrate(Path(name), 3 if files > 20 else 1)
    ratio = seconds / bar
    note = f"{files} files, {files / seconds:.0f} a second of processor time"
    what, spreads = "processor seconds / bar", Spread(ratio, ratio, ratio)
    yield Figure(SECTION, subject, what, spreads, bar, "s", 1.0, note)


def _prove(quick: bool) -> str:
    tasks = proofs.tasks(["sgd", "float32"] if quick else ["float32"])
    rows = [proofs.prove_task(task) for task in (tasks[:1] if quick else tasks)]
    return f"{len(rows)} claims, {sum(row.held for row in rows)} proved as claimed"


def _matrix(quick: bool) -> Iterator[Outcome]:
    chosen = [c for c in matrix_cases.matrix() if c.entry == "adam" and c.column == "free"]
    chosen = chosen[:1] if quick else chosen

    def run() -> str:
        start = time.perf_counter()
        results = [r for group in matrix_run.groups(chosen) for r in matrix_run.run_group(group)]
        rate = len(results) / (time.perf_counter() - start)
        held = sum(result.held for result in results)
        return f"{rate:.1f} cases a second, compilation included; {held} of {len(results)} held"

    # The matrix has some 2,500 cases, and a full check shall take five minutes on one thread.
    yield _timed("matrix, the plain cases of Adam", run, max(len(chosen) * 300 / 2500, 0.1))


def _trainer(quick: bool) -> Iterator[Outcome]:
    steps, turns = (1, 1) if quick else (12, 24)
    with tempfile.TemporaryDirectory() as scratch:
        sides = trainer.sides(Path(scratch), steps, quick)
        subject, pairs = "the trainer's step", trainer.PAIRS
        yield from ratios(SECTION, subject, sides, pairs, repeats=turns, warm_up=1, seconds=60)


def _convert() -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "checkpoint_7")
        conversion.write_source(source, 256)
        size = source.stat().st_size
        for name in ("orbax", "msgpack"):
            taken: dict[str, list[float]] = {"imports": [], "copy": [], name: []}
            peaks: dict[str, list[float]] = {"imports": [], "copy": [], name: []}
            for _ in range(3):
                for program in taken:
                    target = Path(folder, "converted")
                    code = conversion.PROGRAMS[program]
                    seconds, peak = conversion.measure(code, source, target)
                    conversion.remove(target)
                    taken[program].append(seconds)
                    peaks[program].append(peak)
            subject = f"convert to {name}, {size / 2**20:.0f} MiB"
            each = [a / b for a, b in zip(taken[name], taken["copy"], strict=True)]
            base = spread(taken["copy"]).median
            what = "time / decode and encode as Flax does"
            yield Figure(SECTION, subject, what, interval(each), base, "s", 1.0)
            above = [(a - b) / size for a, b in zip(peaks[name], peaks["imports"], strict=True)]
            what = "peak memory above the imports / file"
            yield Figure(SECTION, subject, what, interval(above), size / 2**20, "MiB", 1.0)


def _check() -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:

        def run() -> str:
            done = subprocess.run(
                _CHECK,
                check=False,
                capture_output=True,
                text=True,
                env={**os.environ, "JAX_COMPILATION_CACHE_DIR": folder},
            )
            return done.stdout.strip().splitlines()[-1] if done.stdout else done.stderr[-200:]

        yield _timed("check, nothing compiled before", run, 60.0)
        yield _timed("check again", run, 30.0)
