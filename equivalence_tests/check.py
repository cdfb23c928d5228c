"""The suite on this machine: what is identical, rounds or differs, and whether as claimed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table

from equivalence_tests.compare.trees import shapes_text, signature
from equivalence_tests.environment import Device, environment, first_device
from equivalence_tests.recordings.format import Recording
from equivalence_tests.report import recording
from equivalence_tests.report import table as report
from equivalence_tests.report.item import of_result
from equivalence_tests.report.outputs import DIFFERENT, MISUSE, NOT_RUN, SAME, Outputs
from equivalence_tests.sides.inputs import problems
from equivalence_tests.sides.programs import silence_deprecations
from equivalence_tests.suite.case import SYNTHETIC, Case, Result
from equivalence_tests.suite.jobs import Compilations, run_all, select_cases
from equivalence_tests.suite.witness import STEPS, witness_checks
from optax_bridge.cli.terminal import plain_terminal
from optax_bridge.correspondence import ORIGINS, Verdict

FLAX = "flax"
_TABLES = {table.name: table for table in ORIGINS}


def check(
    only: Sequence[str] = (),
    outputs: Outputs | None = None,
    *,
    platform: str | None = None,
    steps: int = 100,
    full: bool = False,
    against: Path | None = None,
    origin: str = FLAX,
) -> int:
    """Runs the suite and prints its table."""
    silence_deprecations()
    console, outputs = report.wide_console(), outputs or Outputs()
    try:
        if steps < 1:
            raise ValueError(f"--steps is {steps}; it must be at least 1")
        device = first_device(platform)
        outputs.check()
        recorded = _load_recordings(against, steps)
        cases = _select(only, full, origin)
        if origin != FLAX and (full or against or outputs.record):
            raise ValueError(
                f"--from {origin}: it goes with none of --full, --record and --against"
            )
    except ValueError as error:
        plain_terminal(stderr=True).print(str(error), markup=False)
        return MISUSE
    if device is None:
        here = ", ".join(sorted({d.platform for d in jax.devices()}))
        return _not_run(
            console, outputs, platform, f"there is no such device here (there is {here})"
        )
    steps = steps if origin == FLAX else STEPS
    return _run(
        console, outputs, _Plan(cases, device, _TABLES[origin].origin, steps, full, recorded)
    )


@dataclass(frozen=True)
class _Plan:
    """The cases to run: whose they are, on which device, and the recording to compare with."""

    cases: Sequence[Case]
    device: Device
    library: str
    steps: int
    full: bool
    recorded: Mapping[str, Recording] | None


def _run(console: Console, outputs: Outputs, plan: _Plan) -> int:
    """Runs the cases, prints and writes what came out, and returns the exit code."""
    compilations, recorded = Compilations(), plan.recorded
    # A terminal has the bar.
    printer = None if console.is_terminal else _printer(console)
    keep = outputs.record is not None or recorded is not None
    results = run_all(plan.cases, plan.device, plan.steps, printer, keep=keep)
    ran = _facts(results, plan.steps, str(compilations) if plan.full else "")
    table = _print(console, results, ran, plan)
    outcomes = [] if recorded is None else recording.against(results, recorded)
    if recorded is not None:
        report.print_against(console, outcomes, recorded)
    here, closing = environment(plan.device), report.closing_line(results)
    content = _content(results, outcomes, ran, compilations.count, here)
    written = outputs.write(
        content,
        list(map(of_result, results)) if outputs.junit or outputs.report else [],
        title=f"{plan.library} against Optax on {plan.device.platform}",
        about=here | ran,
        headline=closing,
        svg=report.drawn(table, closing) if outputs.svg else "",
        record=lambda file: recording.save(file, results, here),
    )
    console.print(closing)
    if not written:
        return MISUSE
    same = all(outcome.verdict is not Verdict.DIFFERENT for outcome in outcomes)
    return SAME if same and all(result.held for result in results) else DIFFERENT


def _load_recordings(against: Path | None, steps: int) -> Mapping[str, Recording] | None:
    """Returns the recordings to compare with."""
    if against is None:
        return None
    recorded = recording.load(against)
    if {len(run.steps) for run in recorded.values()} != {steps}:
        count = len(next(iter(recorded.values())).steps)
        raise ValueError(f"--against {against}: it has {count} steps, not {steps}")
    return recorded


def _select(only: Sequence[str], full: bool, origin: str) -> Sequence[Case]:
    """Returns the cases that are asked for."""
    try:
        cases = (
            select_cases(only, full) if origin == FLAX else witness_checks(_TABLES[origin], only)
        )
    except ValueError as error:
        raise ValueError(f"--only: {error}") from None
    if not cases:
        raise ValueError(f"--only {', '.join(only)}: nothing is all of these")
    return cases


def _not_run(console: Console, outputs: Outputs, what: str | None, why: str) -> int:
    """Says what cannot run here, in the files as well; returns the exit code."""
    console.print(f"{what}: not run, {why}")
    console.print("0 comparisons: not run")
    content = {"platform": what, "ran": False, "results": []}
    return NOT_RUN if outputs.write(content) else MISUSE


def _facts(results: Sequence[Result], steps: int, compilations: str) -> dict[str, object]:
    """Returns what ran, label -> text, for the terminal and the page."""
    facts: dict[str, object] = {"steps": steps, **report.RECIPES}
    if compilations:
        facts["compilations"] = compilations
    if any(result.case.problem == SYNTHETIC for result in results):
        tree = signature(problems.odd_tree(), "params")
        facts["parameters"] = f"{shapes_text(tree.values())} (optax: float32 alone)"
    pinned = next((result.extra["pinned"] for result in results if "pinned" in result.extra), "")
    if pinned:
        facts["in real training"] = pinned
    return facts


def _print(
    console: Console,
    results: Sequence[Result],
    ran: Mapping[str, object],
    plan: _Plan,
) -> Table:
    """Prints the table and what is to be said of it."""
    title = f"{plan.device.platform}, {plan.steps} steps each"
    table = report.table(results, title, console.width, plan.library)
    report.print_table(console, table)
    report.print_reasons(console, results)
    report.print_broken(console, results)
    if natures := report.natures_line(results):
        console.print(natures)
    if "parameters" in ran:
        console.print(f"parameters of odd shapes: {ran['parameters']}")
    if "in real training" in ran:
        console.print(f"real training: float32, with {ran['in real training']}")
    if "compilations" in ran:
        console.print(f"{ran['compilations']}; {len(jax.devices(plan.device.platform))} devices")
    return table


def _content(
    results: Sequence[Result],
    outcomes: Sequence[recording.Against],
    ran: Mapping[str, object],
    compilations: int,
    here: Mapping[str, object],
) -> dict[str, object]:
    """Returns what the JSON file gets."""
    return {
        **here,
        "ran": True,
        "steps": ran["steps"],
        "compilations": compilations,
        "parameters": ran.get("parameters", ""),
        "results": report.rows(results),
        "against": report.against_rows(outcomes),
    }


def _printer(console: Console) -> Callable[[Result], None]:
    def print_result(result: Result) -> None:
        console.print(report.result_line(result), markup=False)
        console.file.flush()

    return print_result


def print_list(only: Sequence[str], full: bool, origin: str) -> int:
    """Prints the ids of the checks that `check` would run; returns the exit code."""
    silence_deprecations()
    try:
        print(*_select(only, full, origin), sep="\n")
    except ValueError as error:
        plain_terminal(stderr=True).print(str(error), markup=False)
        return MISUSE
    return SAME
