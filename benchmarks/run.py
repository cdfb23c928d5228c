"""Runs measurements with a bar, prints their figures as they come, and writes what is asked for."""

import contextlib
import json
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import cpu_step, gpu, growth, memory, results, start, step_time, tools
from benchmarks.figures import Figure, Measurement, NotRun, Outcome, as_rows, from_rows
from equivalence_tests.report.output_files import Written, why_no_file

MEASUREMENTS: dict[str, Measurement] = {
    "step": step_time.measure,
    "growth": growth.measure,
    "memory": memory.measure,
    "start": start.measure,
    "tools": tools.measure,
    "cpu": cpu_step.measure,
    "gpu": gpu.measure,
}
MISUSE = 2


def run(
    only: Sequence[str] = (),
    quick: bool = False,
    json_file: Path | None = None,
    compare: Path | None = None,
    page: Path | None = None,
) -> int:
    """Measures and prints.

    Args:
      only: names of measurements; empty for all.
      quick: tiny problems, to see that everything runs. Their figures are held to no bar: in so
        short a time anything may take half as long again.
      json_file: where to write the figures.
      compare: figures of another run.
      page: where to write the page; its picture lies beside it.

    Returns:
      0, or 2 for misuse, or if a file could not be written.
    """
    console, problems = Console(soft_wrap=True), Console(stderr=True, soft_wrap=True)
    try:
        before = _checked(only, json_file, compare, page)
    except ValueError as error:
        problems.print(str(error), markup=False)
        return MISUSE
    here, began = results.machine(), time.perf_counter()
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    chosen = [name for name in MEASUREMENTS if name in only or not only]
    with (
        compiling_for_real(),
        Progress(*columns, TimeElapsedColumn(), console=problems, transient=True) as progress,
    ):
        bar = progress.add_task("measuring", total=len(chosen))
        for name in chosen:
            progress.update(bar, description=f"measuring {name}")
            try:
                for outcome in _measured(name, quick):
                    outcomes.append(outcome)
                    console.print(_line(outcome), highlight=False)
                    progress.update(bar, description=f"measuring {name}: {outcome.subject}")
            except KeyboardInterrupt:  # what there is, is still written
                outcomes.append(NotRun(name, "what was to come", "interrupted"))
                break
            progress.advance(bar)
    above = [o for o in outcomes if isinstance(o, Figure) and not o.kept]
    judged = "a quick run is held to no bar" if quick else f"{len(above)} above their bar"
    console.print(f"{len(outcomes)} figures, {judged}")
    if before is not None:
        changed = results.changes(outcomes, before)
        console.print("\n".join(changed) if changed else "nothing changed beyond the spread")
    with Written() as files:
        content = {"machine": here, "quick": quick, "figures": as_rows(outcomes)}
        files.text(json_file, json.dumps(content, indent=1) + "\n")
        if page is not None:
            took = time.perf_counter() - began
            files.text(page, results.markdown(outcomes, here, took, quick))
            files.text(page.with_name(results.PICTURE), results.picture(outcomes))
    return MISUSE if files.failed else 0


def _checked(
    only: Sequence[str], json_file: Path | None, compare: Path | None, page: Path | None
) -> list[Outcome] | None:
    """The figures to compare with; a ValueError says what cannot be."""
    if unknown := [name for name in only if name not in MEASUREMENTS]:
        known = ", ".join(MEASUREMENTS)
        raise ValueError(
            f"--only: no measurement is called {', '.join(unknown)}; there are {known}"
        )
    for option, file in (("--json", json_file), ("--results", page)):
        if file is not None and (why := why_no_file(file)):
            raise ValueError(f"{option} {why}")
    if compare is None:
        return None
    try:
        return from_rows(json.loads(compare.read_text(encoding="utf-8"))["figures"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"--compare {compare}: expected a file written by `optax-bridge bench --json`: {error}"
        ) from None


def _measured(name: str, quick: bool) -> Iterator[Outcome]:
    """The outcomes of a measurement; one that breaks off says so, and the others still run."""
    try:
        for outcome in MEASUREMENTS[name](quick):
            is_figure = isinstance(outcome, Figure)
            yield replace(outcome, bar=None) if quick and is_figure else outcome
    except Exception as error:
        traceback.print_exc()
        why = f"it broke off: {type(error).__name__}: {error}"
        yield NotRun(name, "what was to come", why)


@contextlib.contextmanager
def compiling_for_real() -> Iterator[None]:
    """Within it nothing comes from the compilation cache: compilation is timed."""
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
        return escape(f"{outcome.section}: {outcome.subject}: not run: {outcome.why}")
    bar = "" if outcome.kept else f"  [red]above {outcome.bar:.2f}[/]"
    what = escape(f"{outcome.section}: {outcome.subject}: {outcome.what}")
    note = escape(f"  ({outcome.note})") if outcome.note else ""
    return f"{what}  [bold]{results.shown(outcome.ratio)}[/]{bar}{note}"
