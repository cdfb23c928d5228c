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
from pathlib import Path
from typing import Any

from mutation.faults import Fault, sample
from mutation.modules import DESELECTED, modules
from mutation.report import DEAD, GONE, KILLED, SURVIVED, TIMEOUT, Recorded, living, page, read

ROOT = Path(__file__).parents[1]
_PASSED = 0
# Seconds of processor, and times what the tests take without a fault: a loop that no longer ends is
# not waited for.
LEAST, TIMES = 20, 3
WAITING = 4  # times as long by the clock: what waits for ever uses no processor
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
    tests = {module: own for module, own in modules(ROOT).items() if given.only in module}
    given.report.parent.mkdir(exist_ok=True)
    earlier = read(given.report)
    known = {name: times[-1] for name, times in earlier.items()}
    faults: Sequence[Fault | Recorded] = [f for f in living(earlier) if f.module in tests]
    if not given.again:
        faults = sample(ROOT, sorted(tests), given.sample, given.seed)
    runpy.run_path(str(ROOT / "conftest.py"))  # what JAX reads of the environment
    for library in _LIBRARIES:
        importlib.import_module(library)
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = _copy(Path(folder).resolve())
        limits: dict[tuple[str, ...], int] = {}
        for own in sorted({tuple(tests[fault.module]) for fault in faults}):
            outcome, said, seconds = _run(copy, own)
            limits[own] = LEAST + round(TIMES * seconds)
            print(f"without a fault: {seconds:.0f} s {own[0]}", flush=True)
            if outcome != SURVIVED:
                print(f"without a fault: {said}", file=sys.stderr)
                return 2
        until = time.monotonic() + 60 * given.minutes
        with given.report.open("a", encoding="utf-8") as report:
            for fault in faults:
                if known.get(str(fault), {}).get("outcome", SURVIVED) != SURVIVED:
                    continue
                if time.monotonic() > until:
                    break
                own = tuple(tests[fault.module])
                found = _tried(copy, fault, own, limits[own])
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


def _tried(copy: Path, fault: Fault | Recorded, tests: Sequence[str], limit: int) -> dict[str, Any]:
    file = copy / fault.module
    right = file.read_text(encoding="utf-8")
    try:
        wrong = fault.planted((ROOT / fault.module).read_text(encoding="utf-8"))
    except ValueError as error:  # of an earlier run, and the line is another now
        found = {"fault": str(fault), "outcome": GONE, "test": str(error), "seconds": 0}
        return found | {"change": None}
    compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
    compiled.unlink(missing_ok=True)  # else it may pass for that of a file as long and as old
    try:
        file.write_text(wrong, encoding="utf-8")
        outcome, said, seconds = _run(copy, tests, limit)
    finally:
        file.write_text(right, encoding="utf-8")
    pairs = enumerate(zip(right.splitlines(), wrong.splitlines(), strict=False), 1)
    change = next(((n, *pair) for n, pair in pairs if pair[0] != pair[1]), None)
    return {
        "fault": str(fault), "outcome": outcome, "test": said, "seconds": round(seconds, 1),
        "change": change,
    }  # fmt: skip


def _run(copy: Path, tests: Sequence[str], limit: int = 0) -> tuple[str, str, float]:
    """Tests in a forked process: how it ended, what it said at last, seconds of processor.

    Without a limit nothing is wrong with the modules, and they are compiled for all that follow.
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
                os._exit(_tested(copy, tests))
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


def _tested(copy: Path, tests: Sequence[str]) -> int:
    import pytest  # in the process that runs the tests, not in the one that counts them

    os.chdir(copy)
    os.environ["PYTHONPATH"] = str(copy)  # of processes that the tests start
    sys.path[:] = [str(copy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "mutation"]:
        del sys.modules[name]
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=line"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported already
    return int(pytest.main([*options, *(f"--deselect={t}" for t in DESELECTED), *tests]))


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
