"""`python -m mutation --sample 500 --seed 0`: plants faults in a copy and says which live."""

import argparse
import collections
import contextlib
import importlib
import json
import os
import resource
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mutation.faults import Fault, sample
from mutation.modules import DESELECTED, modules, test_files
from mutation.reach import Main, Reach, Work
from mutation.report import (
    DEAD,
    GONE,
    KILLED,
    SURVIVED,
    TIMEOUT,
    UNREACHED,
    Recorded,
    living,
    page,
    read,
)

ROOT = Path(__file__).parents[1]
_PASSED = 0
# Seconds of processor, and times what the tests take without a fault: a loop that no longer ends is
# not waited for.
LEAST, TIMES = 20, 3
WAITING = 12  # times as long by the clock: what waits for ever uses no processor
# Imported once, before the processes of the faults are forked; nothing of the repository itself.
_LIBRARIES = (
    "jax.numpy", "flax.linen", "flax.nnx", "optax", "orbax.checkpoint", "chex", "hypothesis",
    "parameterized", "libcst.metadata", "typer.testing", "rich.progress", "sklearn.datasets",
)  # fmt: skip


def main() -> int:
    """Runs the sample; 1 if too many faults live."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=500, help="number of faults")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", default="", help="modules whose path has this in it")
    parser.add_argument("--goal", type=float, default=0.95, help="share that must be killed")
    parser.add_argument("--seconds", type=float, default=60, help="of tests for each fault")
    parser.add_argument("--shard", default="1/1", help="which part of them, of how many")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after so many")
    parser.add_argument(
        "--report", type=Path, default=Path(".cache", "mutants.jsonl"),
        help="a line for each fault; what was killed there is not run again",
    )  # fmt: skip
    parser.add_argument(
        "--again", action="store_true", help="only what lives by the report, on the code of now"
    )
    parser.add_argument("--results", type=Path, help="write the report as a page")
    given = parser.parse_args()
    mutated = modules(ROOT)
    given.report.parent.mkdir(exist_ok=True)
    earlier = read(given.report)
    known = {name: times[-1] for name, times in earlier.items()}
    faults: Sequence[Fault | Recorded] = living(earlier)
    if not given.again:
        faults = sample(ROOT, mutated, given.sample, given.seed)
    share, shares = map(int, given.shard.split("/"))
    faults = [fault for fault in faults if given.only in fault.module][share - 1 :: shares]
    runpy.run_path(str(ROOT / "conftest.py"))  # what JAX reads of the environment
    for library in _LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = _copy(Path(folder).resolve())
        reach = Reach(ROOT / ".cache" / "mutants-reach", copy, mutated)
        files = test_files(ROOT)
        first = len(files) * (share - 1) // shares
        reach.measure([*files[first:], *files[:first]], partial(_run, copy))
        until = time.monotonic() + 60 * given.minutes
        with given.report.open("a", encoding="utf-8") as report:
            for fault in faults:
                if known.get(str(fault), {}).get("outcome", SURVIVED) != SURVIVED:
                    continue
                if time.monotonic() > until:
                    break
                found = _tried(copy, fault, reach, given.seconds)
                known[str(fault)] = found
                print(json.dumps(found), file=report, flush=True)
                print(f"{found['outcome']:8} {found['seconds']:4.0f} s {fault}", flush=True)
    if given.results is not None:
        text = page(read(given.report), given.sample, given.seed)
        given.results.write_text(text, encoding="utf-8")
    names = known if given.again else [str(fault) for fault in faults if str(fault) in known]
    return _summary([known[name] for name in names], given.goal)


def _copy(folder: Path) -> Path:
    """The files that git knows, where they can be changed; compiled once by the first runs."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def _tried(copy: Path, fault: Fault | Recorded, reach: Reach, most: float) -> dict[str, Any]:
    file = copy / fault.module
    found = {"fault": str(fault), "outcome": SURVIVED, "test": UNREACHED, "seconds": 0}
    try:
        right = file.read_text(encoding="utf-8")
        wrong = fault.planted(right)
    except (FileNotFoundError, ValueError) as error:  # of an earlier run, and of another text
        return found | {"outcome": GONE, "test": str(error), "change": None}
    pairs = enumerate(zip(right.splitlines(), wrong.splitlines(), strict=False), 1)
    change = next(((n, *pair) for n, pair in pairs if pair[0] != pair[1]), None)
    found["change"] = change
    tests, expected = reach.tests(fault.module, change[0] if change else 0, most)
    if not tests:
        return found
    compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
    compiled.unlink(missing_ok=True)  # else it may pass for that of a file as long and as old
    work = partial(_only, tests)
    limit = LEAST + round(TIMES * expected)
    try:
        file.write_text(wrong, encoding="utf-8")
        outcome, said, seconds = _run(copy, work, limit)
    finally:
        file.write_text(right, encoding="utf-8")
    if outcome == TIMEOUT and _run(copy, work, limit)[0] == TIMEOUT:
        outcome, said = SURVIVED, f"as slow without the fault: {said}"
    return found | {"outcome": outcome, "test": said, "seconds": round(seconds, 1)}


def _only(tests: Sequence[str], main: Main) -> int:
    return main(tests, ())


def _run(copy: Path, work: Work, limit: int = 0) -> tuple[str, str, float]:
    """Work in a forked process: how it ended, what it said at last, seconds of processor.

    Args:
      copy: of the repository, where it works.
      work: is given a function that runs tests.
      limit: seconds of processor; without one nothing is wrong with the modules, and they are
        compiled for all that follow.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        with warnings.catch_warnings(action="ignore"):  # JAX: of forks while it computes
            child = os.fork()
        if child == 0:
            try:
                os.setpgid(0, 0)
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
                if limit:
                    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
                    signal.alarm(WAITING * limit)
                    sys.dont_write_bytecode = True
                _enter(copy)
                os._exit(work(_tested))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(70)
        _, status, _ = os.wait4(child, 0)
        with contextlib.suppress(ProcessLookupError):  # what its tests may have left running
            os.killpg(child, signal.SIGKILL)
        output.seek(0)
        lines = output.read().splitlines()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    code = os.waitstatus_to_exitcode(status)
    said = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), "")
    if code in (-signal.SIGXCPU, -signal.SIGALRM):
        return TIMEOUT, f"after {limit} s of processor", seconds
    return SURVIVED if code == _PASSED else KILLED, said or "\n".join(lines[-5:]), seconds


def _enter(copy: Path) -> None:
    """Makes the copy what this process, and those that it starts, import."""
    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "mutation"]:
        del sys.modules[name]


def _tested(tests: Sequence[str], plugins: Sequence[Any]) -> int:
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--tb=line"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
    options += ["-x", *tests] if not plugins else [f"--deselect={t}" for t in DESELECTED] + [*tests]
    return int(pytest.main(options, plugins=list(plugins)))


def _summary(found: Sequence[dict[str, Any]], goal: float) -> int:
    counts = collections.Counter(each["outcome"] for each in found)
    for each in found:
        if each["outcome"] == SURVIVED:
            line, right, wrong = each["change"] or (0, "", "")
            print(f"\n{each['fault']}\n  {line}: {right.strip()}\n  {line}: {wrong.strip()}")
    dead = sum(counts[outcome] for outcome in (*DEAD, GONE))
    share = dead / max(len(found), 1)
    print(f"\n{len(found)} faults: {dead} killed ({counts[TIMEOUT]} by time), {share:.1%}")
    return int(share < goal)


if __name__ == "__main__":
    sys.exit(main())
