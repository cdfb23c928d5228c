"""The suite on this machine: what is identical, rounds or differs, and whether as claimed."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from equivalence_tests.compare.trees import shapes_text, signature
from equivalence_tests.environment import NOT_RUN, check_platform, environment
from equivalence_tests.output_files import Written, checked
from equivalence_tests.report import html as html_report
from equivalence_tests.report import junit, recording
from equivalence_tests.report import table as report
from equivalence_tests.sides.inputs import problems
from equivalence_tests.sides.programs import silence_deprecations
from equivalence_tests.suite.case import SYNTHETIC, Result
from equivalence_tests.suite.jobs import Chosen, Compilations, chosen, jobs, run_all
from equivalence_tests.suite.jobs import collect_garbage_seldom as collect_garbage_seldom
from equivalence_tests.suite.jobs import use_compilation_cache as use_compilation_cache
from equivalence_tests.suite.jobs import use_host_devices as use_host_devices
from equivalence_tests.suite.sharded import cases as sharded
from optax_bridge.cli.terminal import plain_terminal
from optax_bridge.correspondence import Verdict

HELD, BROKEN, MISUSE = 0, 1, 2


@dataclass(frozen=True)
class Files:
    """The files that a run writes; None for those that are not wanted.

    Attributes:
      json: the results.
      junit: the results as JUnit's XML.
      svg: the table.
      report: the folder of `index.html`.
      record: the trajectories.
    """

    json: Path | None = None
    junit: Path | None = None
    svg: Path | None = None
    report: Path | None = None
    record: Path | None = None


def check(
    only: Sequence[str] = (),
    files: Files | None = None,
    *,
    platform: str | None = None,
    steps: int = 100,
    full: bool = False,
    against: Path | None = None,
) -> int:
    """Runs the suite and prints its table.

    Args:
      only: names of optimizers or problems; empty for all.
      files: what to write.
      platform: `cpu`, `gpu` or `tpu`; the default platform if None. One that is not there is "not
        run".
      steps: number of steps of each run, at least 1.
      full: whether to run the matrix as well.
      against: a recording to compare with.

    Returns:
      The exit code: 0 if every claim held, 1 if one did not, 2 for misuse, 3 if the platform is not
      there.
    """
    silence_deprecations()
    console, files = report.wide_console(), files or Files()
    try:
        asked, recorded = _asked(only, files, platform, steps, full, against)
        device = _device(platform)
        if device is None:
            return _not_run(console, files, platform)
        on_devices = device.platform == "cpu" and sharded.can_run()
        asked = asked if on_devices else asked._replace(sharded=[])
        keep = files.record is not None or recorded is not None
        work = jobs(asked.checks, asked.matrix, steps, keep=keep) + sharded.jobs(asked.sharded)
        if not work:
            why = "nothing is all of these"
            if not on_devices and chosen(only, full).sharded:
                why = (
                    f"layouts need a CPU as {sharded.DEVICES} devices, --devices {sharded.DEVICES}"
                )
            raise ValueError(f"--only {', '.join(only)}: {why}")
    except ValueError as error:
        plain_terminal(stderr=True).print(str(error), markup=False)
        return MISUSE
    compilations = Compilations()
    # A terminal has the bar.
    results = run_all(work, device, None if console.is_terminal else _printer(console))
    ran = _facts(results, steps, str(compilations) if full else "")
    shown = _print(console, asked, results, ran, device)
    outcomes = [] if recorded is None else recording.against(results, recorded)
    if recorded is not None:
        report.print_against(console, outcomes, recorded)
    content = _content(results, outcomes, ran, compilations.compiled, environment(device))
    written = _write(files, results, content, shown, environment(device) | ran)
    console.print(report.closing_line(results))
    if not written:
        return MISUSE
    same = all(outcome.verdict is not Verdict.DIFFERENT for outcome in outcomes)
    return HELD if same and all(result.held for result in results) else BROKEN


def _asked(
    only: Sequence[str],
    files: Files,
    platform: str | None,
    steps: int,
    full: bool,
    against: Path | None,
) -> tuple[Chosen, recording.Recording | None]:
    """Returns the cases that are asked for, and the recording to compare with.

    Raises:
      ValueError: something that is asked for cannot be done; the message begins with the option.
    """
    if steps < 1:
        raise ValueError(f"--steps is {steps}; it must be at least 1")
    check_platform(platform)
    wanted = {"--json": files.json, "--svg": files.svg, "--junit": files.junit}
    checked({**wanted, "--record": files.record}, files.report)
    recorded = None if against is None else recording.load(against)
    if recorded is not None and recorded.steps != steps:
        raise ValueError(f"--against {against}: it has {recorded.steps} steps, not {steps}")
    try:
        return chosen(only, full), recorded
    except ValueError as error:
        raise ValueError(f"--only: {error}") from None


def _device(platform: str | None) -> Any:
    try:
        return jax.devices(platform)[0]
    except RuntimeError:
        return None


def _not_run(console: Console, files: Files, platform: str | None) -> int:
    """Says that there is no such device, in the files as well; returns the exit code."""
    here = ", ".join(sorted({d.platform for d in jax.devices()}))
    console.print(f"{platform}: not run, there is no such device here (there is {here})")
    console.print("0 comparisons: not run")
    content = {"platform": platform, "ran": False, "results": []}
    with Written() as written:
        written.text(files.json, json.dumps(content, indent=1) + "\n")
        if files.junit is not None:
            junit.write(files.junit, [])
            written.add(files.junit)
    return MISUSE if written.failed else NOT_RUN


def _facts(results: Sequence[Result], steps: int, compilations: str) -> dict[str, Any]:
    """Returns what ran, label -> text, for the terminal and the page."""
    facts: dict[str, Any] = {"steps": steps, **report.RECIPES}
    if compilations:
        facts["compilations"] = compilations
    if any(result.case.problem == SYNTHETIC for result in results):
        tree = signature(problems.odd_tree(), "params")
        facts["parameters"] = f"{shapes_text(tree.values())} (stock: float32 alone)"
    pinned = next((result.extra["pinned"] for result in results if "pinned" in result.extra), "")
    if pinned:
        facts["in real training"] = pinned
    return facts


def _print(
    console: Console, asked: Chosen, results: list[Result], ran: Mapping[str, Any], device: Any
) -> Any:
    """Prints the tables and what is to be said of them; returns the first table."""
    plain = [result for result in results if not sharded.is_sharded(result)]
    title = f"{device.platform}, {ran['steps']} steps each"
    table = report.table(plain, title, console.width)
    if asked.checks or asked.matrix:
        report.print_table(console, table)
    if asked.sharded:
        report.print_table(console, sharded.table(results))
    report.print_reasons(console, results)
    report.print_broken(console, results)
    if natures := report.natures_line(results):
        console.print(natures)
    if "parameters" in ran:
        console.print(f"parameters of odd shapes: {ran['parameters']}")
    if "in real training" in ran:
        console.print(f"real training: float32, with {ran['in real training']}")
    if "compilations" in ran:
        console.print(f"{ran['compilations']}; {len(jax.devices(device.platform))} devices")
    return table


def _content(
    results: Sequence[Result],
    outcomes: Sequence[recording.Against],
    ran: Mapping[str, Any],
    compilations: int,
    here: Mapping[str, Any],
) -> dict[str, Any]:
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


def _write(
    files: Files,
    results: Sequence[Result],
    content: Mapping[str, Any],
    table: Any,
    about: Mapping[str, Any],
) -> bool:
    """Writes what is wanted; returns whether all of it could be written."""
    closing = report.closing_line(results)
    with Written() as written:
        if files.record is not None:
            recording.save(files.record, results, content, content["steps"])
            written.add(files.record)
        if files.svg is not None:
            written.text(files.svg, report.drawn(table, closing))
        if files.report is not None:
            title = f"flax.optim against Optax on {content['platform']}"
            items = list(map(html_report.item, results))
            written.add(html_report.write(files.report, title, items, about, closing))
        if files.junit is not None:
            junit.write(files.junit, list(map(junit.case, results)))
            written.add(files.junit)
        written.text(files.json, json.dumps(content, indent=1) + "\n")
    return not written.failed


def _printer(console: Console) -> Callable[[Result], None]:
    def ended(result: Result) -> None:
        console.print(report.result_line(result), markup=False)
        console.file.flush()

    return ended


def print_list(only: Sequence[str] = (), full: bool = False, devices: int = 1) -> int:
    """Prints the ids of the checks that `check` would run; returns the exit code."""
    silence_deprecations()
    try:
        asked = chosen(only, full)
        on_devices = asked.sharded if devices >= sharded.DEVICES else []
        for item in (*asked.checks, *asked.matrix, *on_devices):
            print(item)
    except ValueError as error:
        plain_terminal(stderr=True).print(f"--only: {error}")
        return MISUSE
    return HELD
