"""`optax-bridge check`: runs the suite here and says what is identical, rounds or differs."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
from rich.console import Console

from equivalence_tests.environment import NOT_RUN, check_platform, environment
from equivalence_tests.output_files import Written, checked
from equivalence_tests.report import html as html_report
from equivalence_tests.report import junit, recording
from equivalence_tests.report import table as report
from equivalence_tests.sides.programs import silence_deprecations
from equivalence_tests.suite.case import Result
from equivalence_tests.suite.jobs import Compilations, chosen, jobs, run_all
from equivalence_tests.suite.jobs import collect_garbage_seldom as collect_garbage_seldom
from equivalence_tests.suite.jobs import use_compilation_cache as use_compilation_cache
from equivalence_tests.suite.jobs import use_host_devices as use_host_devices
from equivalence_tests.suite.sharded import cases as sharded
from optax_bridge._terminal import plain_terminal
from optax_bridge.correspondence import Verdict

HELD, BROKEN, MISUSE = 0, 1, 2


def check(
    only: Sequence[str] = (),
    json_file: Path | None = None,
    svg_file: Path | None = None,
    junit_file: Path | None = None,
    platform: str | None = None,
    steps: int = 100,
    console: Console | None = None,
    full: bool = False,
    record: Path | None = None,
    against: Path | None = None,
    report_folder: Path | None = None,
) -> int:
    """Runs the suite and prints its table.

    Args:
      only: names of optimizers or problems; empty for all.
      json_file: where to write the results as JSON as well.
      svg_file: where to draw the table as well.
      junit_file: where to write the results as JUnit's XML as well.
      platform: `cpu`, `gpu` or `tpu`; the default platform if None. One that is not there is "not
        run".
      steps: number of steps of each run, at least 1.
      console: where to print; standard output if None.
      full: whether to run the matrix as well.
      record: where to write the trajectories.
      against: a recording to compare with.
      report_folder: where to write the report as `index.html`.

    Returns:
      The exit code: 0 if every claim held, 1 if one did not, 2 for misuse, 3 if the platform is not
      there.
    """
    silence_deprecations()
    console = console or report.wide_console()
    problems = plain_terminal(stderr=True)
    try:
        if steps < 1:
            raise ValueError(f"--steps is {steps}; it must be at least 1")
        check_platform(platform)
        written = {"--json": json_file, "--svg": svg_file, "--junit": junit_file}
        checked({**written, "--record": record}, report_folder)
        recorded = None if against is None else recording.load(against)
        if recorded is not None and recorded.steps != steps:
            raise ValueError(f"--against {against}: it has {recorded.steps} steps, not {steps}")
        try:
            asked = chosen(only, full)
        except ValueError as error:
            raise ValueError(f"--only: {error}") from None
    except ValueError as error:
        problems.print(str(error), markup=False)
        return MISUSE
    try:
        device = jax.devices(platform)[0]
    except RuntimeError:
        here = ", ".join(sorted({d.platform for d in jax.devices()}))
        console.print(f"{platform}: not run, there is no such device here (there is {here})")
        console.print("0 comparisons: not run")
        with Written() as files:
            content = {"platform": platform, "ran": False, "results": []}
            files.text(json_file, json.dumps(content, indent=1) + "\n")
            if junit_file is not None:
                junit.write(junit_file, [])
                files.add(junit_file)
        return MISUSE if files.failed else NOT_RUN
    compilations = Compilations()
    keep = record is not None or recorded is not None
    on_devices = asked.sharded if device.platform == "cpu" and sharded.can_run() else []
    work = jobs(asked.checks, asked.matrix, steps, keep=keep) + sharded.jobs(on_devices)
    if not work:
        why = "nothing is all of these"
        if asked.sharded:
            why = f"layouts need a CPU as {sharded.DEVICES} devices, --devices {sharded.DEVICES}"
        problems.print(f"--only {', '.join(only)}: {why}", markup=False)
        return MISUSE
    # A terminal has the bar.
    ended = None if console.is_terminal else _printing(console)
    results = run_all(work, device, ended)
    here = environment(device)
    table = report.table(
        [result for result in results if not sharded.is_sharded(result)],
        f"{device.platform}, {steps} steps each",
        console.width,
    )
    if asked.checks or asked.matrix:
        report.print_table(console, table)
    if on_devices:
        report.print_table(console, sharded.table(results))
    report.print_reasons(console, results)
    report.print_broken(console, results)
    if natures := report.natures_line(results):
        console.print(natures)
    pinned = next((result.extra["pinned"] for result in results if "pinned" in result.extra), "")
    if pinned:
        console.print(f"real training with {pinned}")
    if full:
        console.print(f"{compilations}; {here['devices']} devices")
    outcomes = [] if recorded is None else recording.against(results, recorded)
    if recorded is not None:
        report.print_against(console, outcomes, recorded)
    ran = {"steps": steps, "compilations": str(compilations)}
    if pinned:
        ran["in real training"] = pinned
    content = {
        **here,
        "ran": True,
        "steps": steps,
        "compilations": compilations.compiled,
        "results": report.rows(results),
        "against": report.against_rows(outcomes),
    }
    closing = report.closing_line(results)
    with Written() as files:
        if record is not None:
            recording.save(record, results, here, steps)
            files.add(record)
        if svg_file is not None:
            files.text(svg_file, report.drawn(table, closing))
        if report_folder is not None:
            title = f"flax.optim against Optax on {device.platform}"
            items = list(map(html_report.item, results))
            files.add(html_report.write(report_folder, title, items, here | ran))
        if junit_file is not None:
            junit.write(junit_file, list(map(junit.case, results)))
            files.add(junit_file)
        files.text(json_file, json.dumps(content, indent=1) + "\n")
    console.print(closing)
    if files.failed:
        return MISUSE
    same = all(outcome.verdict is not Verdict.DIFFERENT for outcome in outcomes)
    return HELD if same and all(result.held for result in results) else BROKEN


def _printing(console: Console) -> Callable[[Result], None]:
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
