"""The time that commands take: migrate, prove, convert, check; and the trainer's step.

Where there is nothing to compare with, the second side of the ratio is the bar itself, in seconds.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks import trainer
from benchmarks.figures import Figure, Outcome, exactly
from benchmarks.timing import interval
from equivalence_tests.proof.claims import prove_task
from equivalence_tests.proof.table import tasks as proof_tasks
from migration_guide.codemod import driver
from migration_guide.codemod.results import Options
from optax_bridge.checkpoints.formats.flax_msgpack import write_msgpack

SECTION = "tools"
_CORPUS = Path(__file__).parents[1] / "migration_guide" / "corpus" / "programs"

# A program that reads a checkpoint and writes another; prints its seconds and peak memory (Linux).
_IMPORTS = """
import sys, time
from pathlib import Path
from flax import serialization
import legacy_optim
import jax; jax.devices()
from optax_bridge.checkpoints import convert_file
source, destination = map(Path, sys.argv[1:])
started = time.perf_counter()
"""
# The kernel's own mark of this process: `ru_maxrss` includes the parent's memory.
_REPORT = """
marks = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print("result", time.perf_counter() - started, 1024 * int(marks["VmHWM"].split()[0]))
"""
_ROWS = 8192  # of each of three kernels
_CONVERT = "convert_file(source, destination, legacy_optim.Adam(1e-3), verify=False"
_CONVERSIONS = {
    "imports": "",
    "copy": "tree = serialization.msgpack_restore(source.read_bytes())\n"
    "destination.write_bytes(serialization.msgpack_serialize(tree, in_place=True))",
    "orbax": f"{_CONVERT})",
    "msgpack": f"{_CONVERT}, file_format='msgpack')",
}


def measure(quick: bool) -> Iterator[Outcome]:
    """Each tool, the fast ones first; quick: small work, in this process."""
    yield _migrate(quick)
    yield _time_call("prove, every claim in float32", lambda: _prove(quick), 60.0)
    with tempfile.TemporaryDirectory() as folder:
        yield from trainer.measure(SECTION, Path(folder), quick)
    if not quick:
        yield from _convert()
        yield from _check()


def _time_call(subject: str, work: Callable[[], str], bar: float) -> Figure:
    """Runs work once; the ratio is its seconds over the bar, and its result is the note."""
    start = time.perf_counter()
    note = work()
    ratio = exactly((time.perf_counter() - start) / bar)
    return Figure(SECTION, subject, "seconds / bar", ratio, bar, "s", 1.0, note)


def _migrate(quick: bool) -> Figure:
    """The programs of the corpus, five to a file, by processor seconds."""
    files, programs = 1 if quick else 36, 5
    sources = [path.read_text(encoding="utf-8") for path in sorted(_CORPUS.glob("*.py"))]
    with tempfile.TemporaryDirectory() as folder:
        for index in range(files):
            texts = [sources[(7 * index + n) % len(sources)] for n in range(programs)]
            path = Path(folder, f"module_{index}.py")
            path.write_text("\n\n".join(texts), encoding="utf-8")
        start = time.process_time()
        driver.migrate([Path(folder)], Options())
        seconds = time.process_time() - start
    subject, bar = "migrate, files of five programs of the corpus each", 10.0
    note = f"{files} files, {files / seconds:.1f} a second of processor time"
    what = "processor seconds / bar"
    return Figure(SECTION, subject, what, exactly(seconds / bar), bar, "s", 1.0, note)


def _prove(quick: bool) -> str:
    tasks = proof_tasks(["sgd", "float32"] if quick else ["float32"])
    rows = [prove_task(task) for task in (tasks[:1] if quick else tasks)]
    return f"{len(rows)} claims, {sum(row.held for row in rows)} proved as claimed"


def _convert() -> Iterator[Outcome]:
    """A checkpoint of 256 MiB, against decoding and encoding it as Flax does."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "checkpoint_7")
        kernel = np.random.default_rng(0).normal(size=(_ROWS, 1024)).astype(np.float32)
        moments = {"grad_ema": kernel, "grad_sq_ema": np.square(kernel)}
        names = ("layer_0", "layer_1", "layer_2")  # of 32 MiB, and two moments of it each
        state = {"step": np.int32(7), "param_states": {name: {"kernel": moments} for name in names}}
        with source.open("wb") as file:
            write_msgpack(file, {"target": {n: {"kernel": kernel} for n in names}, "state": state})
        size = source.stat().st_size
        for name in ("orbax", "msgpack"):
            runs = [
                {p: _measure_conversion(_CONVERSIONS[p], source) for p in ("imports", "copy", name)}
                for _ in range(3)
            ]
            subject = f"convert to {name}, {size / 2**20:.0f} MiB"
            times = [run[name][0] / run["copy"][0] for run in runs]
            base = statistics.median(run["copy"][0] for run in runs)
            what = "time / decode and encode as Flax does"
            yield Figure(SECTION, subject, what, interval(times), base, "s", 1.0)
            above = [(run[name][1] - run["imports"][1]) / size for run in runs]
            what = "peak memory above the imports / file"
            yield Figure(SECTION, subject, what, interval(above), size / 2**20, "MiB", 1.0)


def _measure_conversion(program: str, source: Path) -> tuple[float, float]:
    """Returns seconds and peak resident bytes of a program in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        code = _IMPORTS + program + _REPORT
        arguments = (str(source), str(Path(folder, "converted")))
        command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, peak = map(float, done.stdout.split("result ")[1].split())
    return seconds, peak


def _check() -> Iterator[Outcome]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": folder}

        def run() -> str:
            command = [sys.executable, "-m", "optax_bridge", "check"]
            output = subprocess.check_output(command, text=True, env=environment)
            return output.strip().splitlines()[-1]

        yield _time_call("check, nothing compiled before", run, 60.0)
        yield _time_call("check again", run, 30.0)
