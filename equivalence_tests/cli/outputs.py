"""The files of the commands on two sides, JSON, JUnit's XML, a page, and their exit codes."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from equivalence_tests.compare.headline import poisoned_line
from equivalence_tests.compare.nature import explained
from equivalence_tests.environment import environment
from equivalence_tests.output_files import Written, checked
from equivalence_tests.report import html as html_report
from equivalence_tests.report import junit
from equivalence_tests.report.pair import Report
from optax_bridge.correspondence import Verdict

SAME, DIFFERENT, MISUSE = 0, 1, 2


class Difference(str):
    """A difference in words, of something that took no steps: no error."""


@dataclass(frozen=True)
class Outputs:
    """The files of a command.

    Attributes:
      group: what its cases belong to in JUnit's XML.
      json_file: where the results go as JSON.
      junit_file: where they go as JUnit's XML.
      report_folder: where they go as `index.html`.
    """

    group: str
    json_file: Path | None = None
    junit_file: Path | None = None
    report_folder: Path | None = None

    def check(self) -> None:
        """Raises a ValueError if one of the files cannot be written."""
        checked({"--json": self.json_file, "--junit": self.junit_file}, self.report_folder)

    def write(
        self,
        reports: Mapping[str, Report | str],
        content: Any,
        code: int,
        why: str = "",
        headline: str = "",
    ) -> int:
        """Writes reports, or the messages that say why there is none.

        Args:
          reports: name -> report, or message.
          content: what the JSON file gets, as plain data.
          code: the exit code so far.
          why: what explains a difference, where that is known.
          headline: what the page says first; that of the reports unless given.

        Returns:
          The exit code, 2 if something could not be written.
        """
        with Written() as files:
            files.text(self.json_file, json.dumps(content, indent=1) + "\n")
            if self.junit_file is not None:
                cases = [_junit_case(self.group, *one) for one in reports.items()]
                junit.write(self.junit_file, cases)
                files.add(self.junit_file)
            if self.report_folder is not None:
                items = [item(name, report, why) for name, report in reports.items()]
                title = next(iter(reports)) if len(items) == 1 else "Equivalence"
                here = environment(jax.devices()[0])
                files.add(html_report.write(self.report_folder, title, items, here, headline))
        return MISUSE if files.failed else code

    def write_error(self, name: str, message: str) -> int:
        """Prints what is wrong on standard error, writes it into every file; returns 2."""
        print(message, file=sys.stderr)
        return self.write({name: message}, {"verdict": "error", "error": message}, MISUSE)


def _junit_case(group: str, name: str, report: Report | str) -> junit.Case:
    if isinstance(report, Difference):
        return junit.Case(group, name, failure=report)
    if isinstance(report, str):
        return junit.Case(group, name, error=report)
    different = report.verdict is Verdict.DIFFERENT
    return junit.Case(group, name, failure=str(report) if different else "")


def item(name: str, report: Report | str, why: str = "") -> html_report.Item:
    """Returns a report as a case on the page, or the message that says why there is none."""
    if isinstance(report, str):
        is_result = isinstance(report, Difference)
        return html_report.Item(
            id=name,
            row=name,
            column="as restored" if is_result else "not compared",
            outcome=Verdict.DIFFERENT.value if is_result else "error",
            held=False,
            title=name,
            headline=report,
            claims=False,
        )
    comparison = report.agreeing
    facts = html_report.measured(comparison)
    if comparison.first is not None:
        facts["nature"] = explained(comparison, report.wide, report.about_wide, report.bound)
    facts |= {"compared": report.compared, "steps": str(report.steps)}
    facts["parameters"] = report.about_shapes
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
        about=(f"{report.steps} steps", f"{comparison.leaves} tensors"),
        why=why,
        apart=poisoned_line(comparison, report.headline),
        pictures=html_report.figure(comparison, name, report.wide, report.bound),
        facts=facts,
        sources={
            f"{side}: {name}": source
            for side, name, source in zip(
                ("left", "right"), report.names, report.sources, strict=True
            )
        },
    )
