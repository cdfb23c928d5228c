"""Running many checks: two at a time, with a bar, counting what was compiled."""

import gc
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from equivalence_tests.environment import xla_flags
from equivalence_tests.suite.case import Result
from equivalence_tests.suite.checks import Check, checks, groups, run
from equivalence_tests.suite.matrix import run as matrix_run
from equivalence_tests.suite.matrix.cases import MatrixCase, matrix
from equivalence_tests.suite.sharded import cases as sharded
from equivalence_tests.suite.sharded.training import LAYOUTS, ShardedCase
from equivalence_tests.suite.witness import WitnessCheck, run_witness
from optax_bridge.correspondence import names_of_entries

_COMPILED = "/jax/core/compile/backend_compile_duration"
_FROM_CACHE = "/jax/compilation_cache/cache_hits"

_AXES = tuple(field.name for field in fields(MatrixCase) if field.name != "setting")

# What one thread does in one go: a check, or cases that share their programs.
Job = tuple[str, Callable[[], list[Result]]]


class Compilations:
    """The number of programs that were compiled since it was made, and that came from the cache."""

    def __init__(self):
        self._asked = self._cached = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        jax.monitoring.register_event_listener(self._on_event)

    def __str__(self) -> str:
        return f"{self.compiled} programs compiled, {self._cached} taken from the cache"

    @property
    def compiled(self) -> int:
        """Programs that XLA compiled."""
        return self._asked - self._cached

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        del duration_secs
        self._asked += event == _COMPILED

    def _on_event(self, event: str, **_: Any) -> None:
        self._cached += event == _FROM_CACHE


class Chosen(NamedTuple):
    """The cases that a command asks for.

    Attributes:
      checks: the optimizers' own cases.
      matrix: cases of the matrix.
      sharded: trainings on eight devices.
      witness: checks against PyTorch.
    """

    checks: list[Check]
    matrix: list[MatrixCase]
    sharded: list[ShardedCase]
    witness: Sequence[WitnessCheck] = ()


def select_cases(only: Sequence[str], full: bool) -> Chosen:
    """The cases that a command asks for.

    Args:
      only: names, in any case, of optimizers, problems or layouts; with `full`, of any value on an
        axis of the matrix as well: cases must fit on every axis that is named.
      full: whether the matrix is wanted, and training in several processes.

    Raises:
      ValueError: an unknown name.
    """
    problems = {check.problem for check in checks()}
    only = names_of_entries(only, (*LAYOUTS, *problems))
    on_devices = sharded.chosen(only, full)
    others = [name for name in only if name not in LAYOUTS]
    some, cases = _without_layouts(others, full)
    return (
        Chosen([], [], on_devices) if len(others) < len(only) else Chosen(some, cases, on_devices)
    )


def _without_layouts(only: Sequence[str], full: bool) -> tuple[list[Check], list[MatrixCase]]:
    if not full:
        return checks(only), []
    cases = matrix()
    if not only:
        return checks(), cases
    values = {axis: {getattr(case, axis) for case in cases} for axis in _AXES}
    only = names_of_entries(only, [str(name) for names in values.values() for name in names])
    asked = {axis: names & {*only} for axis, names in values.items() if names & {*only}}
    beyond = [name for name in only if all(name not in names for names in values.values())]
    # A value on an axis that only the matrix has is nothing that a check could be asked for.
    some = checks(only) if beyond or {*asked} == {"entry"} else []
    fitting = [c for c in cases if all(getattr(c, axis) in names for axis, names in asked.items())]
    return some, fitting if asked else []


def jobs(
    some: Sequence[Check], cases: Sequence[MatrixCase], steps: int, *, keep: bool = False
) -> list[Job]:
    """The work as jobs; `keep` leaves the trajectories in the results, for recording."""

    def check_job(group: list[Check]) -> Job:
        return group[0].entry, lambda: run(group, steps, keep=keep)

    def matrix_job(group: list[MatrixCase]) -> Job:
        return group[0].entry, lambda: matrix_run.run_group(group, keep=keep)

    return [*map(check_job, groups(some)), *map(matrix_job, matrix_run.groups(cases))]


def witness_jobs(some: Sequence[WitnessCheck]) -> list[Job]:
    """The checks against PyTorch as jobs."""

    def job(check: WitnessCheck) -> Job:
        return check.entry, lambda: [run_witness(check)]

    return list(map(job, some))


def run_all(
    work: Sequence[Job], device: Any, ended: Callable[[Result], None] | None = None
) -> list[Result]:
    """Runs jobs, two at a time, with a progress bar on a terminal.

    Args:
      work: the jobs.
      device: where they run.
      ended: is called with each result as soon as there is one.

    Returns:
      The results, in the order of the jobs.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )

    def one(job: Job) -> list[Result]:
        with jax.default_device(device):  # the setting is a thread's own
            return job[1]()

    screen = Console(stderr=True)
    progress = Progress(*columns, console=screen, transient=True)
    # Disabled instead, it ends with an empty line before rich 14.1.
    with progress if screen.is_terminal else nullcontext(), ThreadPoolExecutor(2) as pool:
        bar = progress.add_task("checking", total=len(work))
        names = {pool.submit(one, job): job[0] for job in work}
        for future in as_completed(names):
            progress.update(bar, advance=1, description=f"checking {names[future]}")
            for result in future.result():
                if ended is not None:
                    ended(result)
    return [result for future in names for result in future.result()]


def use_host_devices(count: int) -> None:
    """Splits the CPU into that many devices; before JAX first asks for its devices."""
    os.environ["XLA_FLAGS"] = xla_flags(count)


def collect_garbage_seldom() -> None:
    """Else a process that traces a hundred programs looks through them all, again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def use_compilation_cache() -> None:
    """Keeps compiled programs between runs; JAX_COMPILATION_CACHE_DIR says where else."""
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "optax-bridge" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def cache_folder() -> Path:
    """Returns where a user's programs keep what can be made again."""
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"])
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
