"""`optax-bridge check --pair module:left module:right`: a pair of the user's own."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax

from equivalence_tests.environment import check_platform, environment
from equivalence_tests.equivalence import check_equivalence
from equivalence_tests.loading import loaded, side
from equivalence_tests.output_files import checked, write_text
from equivalence_tests.report import html as html_report
from equivalence_tests.report import junit
from equivalence_tests.report.pair import Report
from equivalence_tests.sides import problems
from equivalence_tests.sides.adapt import EquivalenceError
from optax_bridge.correspondence import Verdict


def check_pair(
    left: str,
    right: str,
    params: str | None = None,
    gradients: str = "all",
    steps: int = 160,
    json_file: Path | None = None,
    junit_file: Path | None = None,
    report_folder: Path | None = None,
    platform: str | None = None,
) -> int:
    """Compares two optimizers by their names and prints the report.

    Args:
      left: `module:name` of a side, or of a function without arguments that makes it.
      right: the other side.
      params: `module:name` of the parameters; leaves of every rank unless given.
      gradients: name of a stream, or `module:name` of what `check_equivalence` takes.
      steps: number of steps.
      json_file: where to write the report as JSON.
      junit_file: where to write it as JUnit's XML, as one case.
      report_folder: where to write it as `index.html`.
      platform: where to run; JAX's default unless given.

    Returns:
      The exit code: 0 if the two are identical or differ by rounding, 1 if they differ, 2 for
      misuse.
    """
    try:
        check_platform(platform)
        checked({"--json": json_file, "--junit": junit_file}, report_folder)
        sides = [side(name) for name in (left, right)]
        chosen = (
            problems.odd_tree(dtypes=("float32",)) if params is None else loaded(params, make=True)
        )
        stream = loaded(gradients) if ":" in gradients else gradients
        try:
            device = jax.devices(platform)[0]
        except RuntimeError:
            print(f"{platform}: not run, there is no such device here")
            return 0
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    name = f"{left} / {right}"
    try:
        with jax.default_device(device):
            found = check_equivalence(
                sides[0], sides[1], chosen, gradients=stream, steps=steps, names=(left, right)
            )
    except EquivalenceError as error:
        found = str(error)
        print(found, file=sys.stderr)
        code = 2
    else:
        print(found)
        code = 1 if found.verdict is Verdict.DIFFERENT else 0
    failed = isinstance(found, str)
    content = json.dumps({"verdict": "error", "error": found}) if failed else found.to_json()
    return written("pair", {name: found}, content, json_file, junit_file, report_folder, code)


def written(
    group: str,
    reports: Mapping[str, Report | str],
    content: str,
    json_file: Path | None,
    junit_file: Path | None,
    report_folder: Path | None,
    code: int,
) -> int:
    """Writes reports, or the messages that say why there is none, wherever it is asked for.

    Args:
      group: what the cases belong to in JUnit's XML.
      reports: name -> report, or message.
      content: what the JSON file gets.
      json_file: see `check_pair`.
      junit_file: see `check_pair`.
      report_folder: see `check_pair`.
      code: the exit code so far.

    Returns:
      The exit code, 2 if something could not be written.
    """
    try:
        if json_file is not None:
            write_text(json_file, content + "\n")
        if junit_file is not None:
            junit.write(junit_file, [_junit_case(group, *item) for item in reports.items()])
        if report_folder is not None:
            write_reports(report_folder, reports)
    except OSError as error:  # the disk is full, the folder gone since
        print(f"{error.filename}: not written: {error.strerror}", file=sys.stderr)
        return 2
    return code


def _junit_case(group: str, name: str, report: Report | str) -> junit.Case:
    if isinstance(report, str):
        return junit.Case(group, name, error=report)
    different = report.verdict is Verdict.DIFFERENT
    return junit.Case(group, name, failure=str(report) if different else "")


def write_reports(folder: Path, reports: Mapping[str, Report | str]) -> Path:
    """Writes the reports of pairs as one page and returns its path."""
    items = [item(name, report) for name, report in reports.items()]
    return html_report.write(folder, "Equivalence", items, environment(jax.devices()[0]))


def item(name: str, report: Report | str) -> html_report.Item:
    """A report as a case on the page, or the message that says why there is none."""
    if isinstance(report, str):
        return html_report.Item(
            name, name, "not compared", "error", False, None, [], {"error": report}, {}
        )
    found = report.comparison
    return html_report.Item(
        id=name,
        row=report.names[0],
        column=report.names[1],
        outcome=report.verdict.value,
        held=report.verdict is not Verdict.DIFFERENT,
        ulp=found.ulp,
        ulp_by_step=list(map(float, found.ulp_by_step)),
        facts={"report": str(report), "first difference": str(found.first or "none")},
        sources=dict(zip(_distinct(report.names), report.sources, strict=True)),
    )


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{side}: {name}" for side, name in zip(("left", "right"), names, strict=True)]
