"""Runs many checks, two at a time, with a bar."""

import gc
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from typing import Any

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
from equivalence_tests.sides.inputs.digits import MODELS
from equivalence_tests.suite.case import SYNTHETIC, AnyCase, Case, Result, groups
from equivalence_tests.suite.checks import Check, checks, run
from equivalence_tests.suite.matrix.cases import MatrixCase, matrix
from equivalence_tests.suite.matrix.run import run_group
from equivalence_tests.suite.witness import WitnessCheck, run_witness
from optax_bridge._text import did_you_mean
from optax_bridge.correspondence import ENTRIES, names_of_entries

# How cases of a kind that share their programs are run: (cases, steps) -> a result for each.
_RUNNERS: dict[type[Case], Callable[[Any, int], list[Result]]] = {
    Check: run,
    MatrixCase: lambda cases, steps: run_group(cases),
    WitnessCheck: lambda cases, steps: list(map(run_witness, cases)),
}


def select_cases(only: Sequence[str], full: bool) -> list[Case]:
    """The cases that a command asks for."""
    kinds = [list(checks()), matrix() if full else []]
    values = {
        getattr(case, field)
        for cases in kinds
        for case in cases
        for axis in case.axes
        for field in axis
    }
    names = names_of_entries(only, values)
    if unknown := [name for name in names if name not in values]:
        listed = {*ENTRIES, SYNTHETIC, *MODELS}
        raise ValueError(
            f"no optimizer or problem is called {', '.join(unknown)}"
            f"{did_you_mean(unknown[0], listed) or '.'} There are {', '.join(sorted(listed))}"
        )
    return [case for cases in kinds for case in _fitting(cases, {*names})]


def _fitting(cases: Sequence[AnyCase], names: set[str]) -> Sequence[AnyCase]:
    """The cases of one kind that fit on every axis that is named; a foreign name fits none."""
    for axis in cases[0].axes if cases else ():
        if named := names & {getattr(case, field) for case in cases for field in axis}:
            cases = [case for case in cases if named & {getattr(case, field) for field in axis}]
            names = names - named
    return () if names else cases


def run_all(
    cases: Sequence[Case],
    device: Any,
    steps: int,
    ended: Callable[[Result], None] | None,
    *,
    keep: bool = False,
) -> list[Result]:
    """Runs cases, two groups at a time, with a progress bar on a terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )

    def one(group: list[Case]) -> list[Result]:
        with jax.default_device(device):  # the setting is a thread's own
            results = _RUNNERS[type(group[0])](group, steps)
        for result in () if keep else results:
            result.trajectory = None
        return results

    work = groups(cases)
    screen = Console(stderr=True)
    progress = Progress(*columns, console=screen, transient=True)
    # Disabled instead, it ends with an empty line before rich 14.1.
    with progress if screen.is_terminal else nullcontext(), ThreadPoolExecutor(2) as pool:
        bar = progress.add_task("checking", total=len(work))
        names = {pool.submit(one, group): group[0].entry for group in work}
        for future in as_completed(names):
            progress.update(bar, advance=1, description=f"checking {names[future]}")
            for result in future.result():
                if ended is not None:
                    ended(result)
    return [result for future in names for result in future.result()]


def prepare_process(devices: int | None) -> None:
    """Prepares a process that runs many cases; before JAX first asks for its devices."""
    os.environ["XLA_FLAGS"] = xla_flags(devices)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        jax.config.update("jax_compilation_cache_dir", str(caches / "optax-bridge" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    # Else a process that traces a hundred programs looks through them all, again and again.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
