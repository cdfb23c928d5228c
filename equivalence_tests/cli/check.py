"""`optax-bridge check`: runs the suite on this machine.

What needs JAX is imported by the functions that need it: no help does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from equivalence_tests.cli.options import (
    EXIT_CODES_ON_PLATFORM,
    SEE_WHICH_COMMAND,
    Json,
    Junit,
    Platform,
    ReportFolder,
)
from optax_bridge.cli.app import STYLE
from optax_bridge.cli.options import Devices

if TYPE_CHECKING:
    from rich.console import Console

    from equivalence_tests.recordings.format import Recording
    from equivalence_tests.report.outputs import Outputs
    from equivalence_tests.suite.case import Case, Result

app = typer.Typer(**STYLE)
FLAX = "flax"

_ABOUT = f"""Train with the old API and with Optax, side by side, and compare at every step.

*exact* is this project's transformation in legacy arithmetic, *optax* the nearest recipe of public
Optax alone. {SEE_WHICH_COMMAND}
{EXIT_CODES_ON_PLATFORM}
Examples:
- `optax-bridge check`

- `optax-bridge check --only adam --only lamb --json result.json`

- `optax-bridge check --full --report report`

- `optax-bridge check --platform gpu --against cpu.zip`

- `optax-bridge check --from torch --only adamw`
"""


@app.command(help=_ABOUT)
def check(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="An optimizer or a problem, e.g. `adam` or `mlp`; with --full any word of a "
            "case's id; may be repeated."
        ),
    ] = None,
    json: Json = None,
    junit: Junit = None,
    svg: Annotated[Path | None, typer.Option(help="Also draw the table into this file.")] = None,
    platform: Platform = None,
    steps: Annotated[int, typer.Option(help="Number of steps in each run.")] = 100,
    full: Annotated[
        bool, typer.Option("--full", help="Run the whole matrix, on eight devices.")
    ] = False,
    devices: Devices = None,
    report: ReportFolder = None,
    record: Annotated[
        Path | None, typer.Option(help="Write every trajectory into this file.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Compare with a file that --record wrote elsewhere.")
    ] = None,
    origin: Annotated[
        Literal["flax", "torch"],
        typer.Option(
            "--from",
            help="Check the optimizers of flax.optim, or of PyTorch: against its recorded "
            "numbers, and itself where it is installed.",
        ),
    ] = "flax",
    list_checks: Annotated[
        bool, typer.Option("--list", help="List the checks and run nothing.")
    ] = False,
) -> None:
    """See `_ABOUT`."""
    from equivalence_tests.report.outputs import Outputs  # JAX, which no help needs
    from equivalence_tests.suite.jobs import prepare_process

    prepare_process(devices or (8 if full else None))
    outputs = Outputs(json, junit, report, svg, record)
    raise typer.Exit(
        run_suite(
            only or (),
            outputs,
            platform=platform,
            steps=steps,
            full=full,
            against=against,
            origin=origin,
            lists=list_checks,
        )
    )


def run_suite(
    only: Sequence[str],
    outputs: "Outputs",
    *,
    platform: str | None = None,
    steps: int = 100,
    full: bool = False,
    against: Path | None = None,
    origin: str = FLAX,
    lists: bool = False,
) -> int:
    """Runs the suite, or lists its checks, prints its table, and returns the exit code."""
    import jax

    from equivalence_tests.environment import first_device
    from equivalence_tests.report.outputs import MISUSE, NOT_RUN, SAME
    from equivalence_tests.report.table import wide_console
    from equivalence_tests.sides.programs import silence_deprecations
    from equivalence_tests.suite.witness import STEPS
    from optax_bridge.cli.terminal import plain_terminal

    silence_deprecations()
    console = wide_console()
    try:
        if steps < 1:
            raise ValueError(f"--steps is {steps}; it must be at least 1")
        device = first_device(platform)
        outputs.check()
        recorded = _load_recordings(against, steps)
        cases = _select(only, full, origin)
        if origin != FLAX and (full or against or outputs.record):
            raise ValueError(
                f"--from {origin} cannot be combined with --full, --record or --against"
            )
    except ValueError as error:
        plain_terminal(stderr=True).print(str(error), markup=False)
        return MISUSE
    if lists:
        print(*cases, sep="\n")
        return SAME
    if device is None:
        here = ", ".join(sorted({d.platform for d in jax.devices()}))
        console.print(f"{platform}: not run, this machine has no such device (it has {here})")
        console.print("0 comparisons: not run")
        content = {"platform": platform, "ran": False, "results": []}
        return NOT_RUN if outputs.write(content) else MISUSE
    steps = steps if origin == FLAX else STEPS
    return _run(console, outputs, _Plan(cases, device, origin, steps, full, recorded))


@dataclass(frozen=True)
class _Plan:
    """The cases to run: of which library, on which device, and the recording to compare with."""

    cases: "Sequence[Case]"
    device: Any
    origin: str
    steps: int
    full: bool
    recorded: "Mapping[str, Recording] | None"

    @property
    def library(self) -> str:
        """The package that the optimizers come from."""
        from optax_bridge.correspondence import ORIGINS

        return next(table.origin for table in ORIGINS if table.name == self.origin)


def _run(console: "Console", outputs: "Outputs", plan: _Plan) -> int:
    """Runs the cases, prints and writes their results, and returns the exit code."""
    from equivalence_tests.environment import environment
    from equivalence_tests.report import recording
    from equivalence_tests.report import table as report
    from equivalence_tests.report.item import of_result
    from equivalence_tests.report.outputs import DIFFERENT, MISUSE, SAME
    from equivalence_tests.suite.jobs import run_all

    recorded = plan.recorded

    def print_result(result: "Result") -> None:
        console.print(report.result_line(result), markup=False)

    printer = None if console.is_terminal else print_result  # a terminal has the bar
    keep = outputs.record is not None or recorded is not None
    results = run_all(plan.cases, plan.device, plan.steps, printer, keep=keep)
    ran = _facts(results, plan.steps)
    table = report.table(
        results, f"{plan.device.platform}, {plan.steps} steps each", console.width, plan.library
    )
    report.print_table(console, table)
    report.print_reasons(console, results)
    report.print_broken(console, results)
    if "parameters" in ran:
        console.print(f"parameters of odd shapes: {ran['parameters']}")
    if "in real training" in ran:
        console.print(f"real training: float32, with {ran['in real training']}")
    outcomes = [] if recorded is None else recording.against(results, recorded)
    if recorded is not None:
        report.print_against(console, outcomes, recorded)
    here, closing = environment(plan.device), report.closing_line(results)
    content = {
        **here,
        "ran": True,
        "steps": plan.steps,
        "parameters": ran.get("parameters", ""),
        "results": report.rows(results),
        "against": [
            {"id": outcome.name, "verdict": outcome.outcome.value, "note": outcome.text}
            for outcome in outcomes
        ],
    }
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
    same = not any(outcome.parts for outcome in outcomes)
    return SAME if same and all(result.held for result in results) else DIFFERENT


def _load_recordings(against: Path | None, steps: int) -> "Mapping[str, Recording] | None":
    """Returns the recordings to compare with."""
    if against is None:
        return None
    from equivalence_tests.recordings.format import read_packed

    recorded = read_packed(against)
    if {len(run.steps) for run in recorded.values()} != {steps}:
        count = len(next(iter(recorded.values())).steps)
        raise ValueError(f"--against {against}: it has {count} steps, not {steps}")
    return recorded


def _select(only: Sequence[str], full: bool, origin: str) -> "Sequence[Case]":
    """Returns the cases that are asked for."""
    from equivalence_tests.suite.jobs import select_cases
    from equivalence_tests.suite.witness import witness_checks
    from optax_bridge.correspondence import ORIGINS

    tables = {table.name: table for table in ORIGINS}
    try:
        cases = select_cases(only, full) if origin == FLAX else witness_checks(tables[origin], only)
    except ValueError as error:
        raise ValueError(f"--only: {error}") from None
    if not cases:
        raise ValueError(f"--only {', '.join(only)}: no case matches all of these")
    return cases


def _facts(results: "Sequence[Result]", steps: int) -> dict[str, object]:
    """Returns the facts of the runs, label -> text, for the terminal and the page."""
    from equivalence_tests.compare.trees import shapes_text, signature
    from equivalence_tests.report.table import RECIPES
    from equivalence_tests.sides.inputs import problems
    from equivalence_tests.suite.case import SYNTHETIC

    facts: dict[str, object] = {"steps": steps, **RECIPES}
    if any(result.case.problem == SYNTHETIC for result in results):
        tree = signature(problems.odd_tree(), "params")
        facts["parameters"] = f"{shapes_text(tree.values())} (optax: float32 alone)"
    pinned = next((result.extra["pinned"] for result in results if "pinned" in result.extra), "")
    if pinned:
        facts["in real training"] = pinned
    return facts
