"""`optax-bridge check --pair module:left module:right`: a pair of the user's own."""

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from equivalence_tests.compare.headline import poisoned_line
from equivalence_tests.compare.nature import explained
from equivalence_tests.environment import NOT_RUN, check_platform, environment
from equivalence_tests.equivalence import check_equivalence
from equivalence_tests.explaining import explanation
from equivalence_tests.loading import loaded, old_names
from equivalence_tests.named_sides import NamedSide, named_side
from equivalence_tests.output_files import Written, checked
from equivalence_tests.report import html as html_report
from equivalence_tests.report import junit
from equivalence_tests.report.pair import Report
from equivalence_tests.sides import problems
from equivalence_tests.sides.adapt import EquivalenceError
from equivalence_tests.warned import silence_deprecations
from optax_bridge.correspondence import Verdict


@old_names()
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
    kwargs: tuple[str, str] = ("", ""),
) -> int:
    """Compares two optimizers by their names and prints the report.

    Args:
      left: `module:name` of a side, of a function that makes it, or of a class of `torch.optim`.
      right: the other side.
      params: `module:name` of the parameters; leaves of every rank unless given.
      gradients: name of a stream, or `module:name` of what `check_equivalence` takes.
      steps: number of steps.
      json_file: where to write the report as JSON.
      junit_file: where to write it as JUnit's XML, as one case.
      report_folder: where to write it as `index.html`.
      platform: where to run; JAX's default unless given.
      kwargs: for each side the arguments of what makes it, as in a call: `"lr=1e-3"`.

    Returns:
      The exit code: 0 if the two are identical or differ by rounding, 1 if they differ, 2 for
      misuse, 3 if the platform is not there.
    """
    silence_deprecations()
    try:
        check_platform(platform)
        checked({"--json": json_file, "--junit": junit_file}, report_folder)
        named = [named_side(*given) for given in zip((left, right), kwargs, strict=True)]
        chosen = (
            problems.odd_tree(dtypes=("float32",)) if params is None else loaded(params, make=True)
        )
        stream = loaded(gradients) if ":" in gradients else gradients
        try:
            device = jax.devices(platform)[0]
        except RuntimeError:
            print(f"{platform}: not run, there is no such device here")
            return NOT_RUN
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    names = (str(named[0]), str(named[1]))
    compared = functools.partial(
        check_equivalence, params=chosen, gradients=stream, steps=steps, names=names
    )
    why = ""
    try:
        with jax.default_device(device):
            found = compared(named[0].made(), named[1].made())
            print(found, flush=True)  # the search takes its time
            if found.verdict is Verdict.DIFFERENT and (why := _explained(named, compared)):
                print(f"  {why}")
    except EquivalenceError as error:
        found = str(error)
        print(found, file=sys.stderr)
        code = 2
    else:
        code = 1 if found.verdict is Verdict.DIFFERENT else 0
    if isinstance(found, str):
        content = {"verdict": "error", "error": found}
    else:
        content = {**found.as_dict(), "explanation": why}
    pairs, texts = {" / ".join(names): found}, json.dumps(content, indent=1)
    return written("pair", pairs, texts, json_file, junit_file, report_folder, code, why)


def _explained(named: Sequence[NamedSide], compared: Callable[..., Report]) -> str:
    """Which settings of one of the two sides make their difference vanish; empty if none was found.

    The right side's are tried first.
    """
    for fixed, varied in (named, reversed(named)):

        def judge(other: Any, fixed: NamedSide = fixed) -> str | None:
            pair = (fixed.made(), other)
            # Few steps tell most of them apart; what they do not is compared in full.
            if compared(*pair, steps=_FEW, decide=False).verdict is Verdict.DIFFERENT:
                return None
            verdict = compared(*pair).verdict
            return None if verdict is Verdict.DIFFERENT else verdict.value

        if why := explanation(fixed, varied, judge):
            return str(why)
    return ""


_FEW = 16


class Difference(str):
    """What is different, in words, of something that took no steps: no error."""


def written(
    group: str,
    reports: Mapping[str, Report | str],
    content: str,
    json_file: Path | None,
    junit_file: Path | None,
    report_folder: Path | None,
    code: int,
    why: str = "",
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
      why: what explains a difference, where that is known.

    Returns:
      The exit code, 2 if something could not be written.
    """
    with Written() as files:
        files.text(json_file, content + "\n")
        if junit_file is not None:
            junit.write(junit_file, [_junit_case(group, *item) for item in reports.items()])
            files.add(junit_file)
        if report_folder is not None:
            files.add(write_reports(report_folder, reports, why))
    return 2 if files.failed else code


def _junit_case(group: str, name: str, report: Report | str) -> junit.Case:
    if isinstance(report, Difference):
        return junit.Case(group, name, failure=report)
    if isinstance(report, str):
        return junit.Case(group, name, error=report)
    different = report.verdict is Verdict.DIFFERENT
    return junit.Case(group, name, failure=str(report) if different else "")


def write_reports(folder: Path, reports: Mapping[str, Report | str], why: str = "") -> Path:
    """Writes the reports of pairs as one page and returns its path."""
    items = [item(name, report, why) for name, report in reports.items()]
    title = next(iter(reports)) if len(items) == 1 else "Equivalence"
    return html_report.write(folder, title, items, environment(jax.devices()[0]))


def item(name: str, report: Report | str, why: str = "") -> html_report.Item:
    """A report as a case on the page, or the message that says why there is none."""
    if isinstance(report, str):
        is_found = isinstance(report, Difference)
        return html_report.Item(
            id=name,
            row=name,
            column="as restored" if is_found else "not compared",
            outcome=Verdict.DIFFERENT.value if is_found else "error",
            held=False,
            title=name,
            headline=report,
            claims=False,
        )
    found = report.agreeing
    facts = html_report.measured(found)
    if found.first is not None:
        facts["nature"] = explained(found, report.wide, report.about_wide, report.bound)
    facts |= {"compared": report.compared, "steps": str(report.steps)}
    facts["gradients"] = report.tried or ("each side its own" if report.closed_loop else "as given")
    if report.about_states:
        facts["states"] = report.about_states
    return html_report.Item(
        id=name,
        row=report.names[0],
        column=report.names[1],
        outcome=report.verdict.value,
        held=report.verdict is not Verdict.DIFFERENT,
        title=name,
        headline=report.headline,
        claims=False,
        about=(f"{report.steps} steps", f"{found.leaves} tensors"),
        why=why,
        apart=poisoned_line(found, report.headline),
        pictures=html_report.figure(found, name, report.wide, report.bound),
        facts=facts,
        sources=dict(zip(_distinct(report.names), report.sources, strict=True)),
    )


def _distinct(names: Sequence[str]) -> list[str]:
    return [f"{side}: {name}" for side, name in zip(("left", "right"), names, strict=True)]
