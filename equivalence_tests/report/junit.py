"""Results as JUnit's XML, which CI services show as tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from equivalence_tests.compare.headline import headline
from equivalence_tests.compare.nature import explained
from equivalence_tests.output_files import write_text
from equivalence_tests.suite.case import Result


@dataclass(frozen=True)
class Case:
    """One test.

    Attributes:
      group: what it belongs to.
      name: its id.
      seconds: time taken.
      failure: what was expected and found; empty if it passed.
      error: what stopped it; empty if nothing did.
      skipped: why it was not run; empty if it was.
    """

    group: str
    name: str
    seconds: float = 0.0
    failure: str = ""
    error: str = ""
    skipped: str = ""


def case(result: Result) -> Case:
    """A result of the suite as a test."""
    found, claim = result.comparison, result.claim
    failure = ""
    if found is not None and claim is not None and not result.held:
        bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP"
        text = headline(found, found.verdict(claim), claim.ulp, result.wide)
        failure = (
            f"claimed: {claim.verdict.value}{bound}; found: {text}; first {found.first}; nature: "
            f"{explained(found, result.wide, result.about_wide)}"
        )
    return Case(
        group=f"optax_bridge.check.{result.case.entry}",
        name=str(result.case),
        seconds=result.seconds,
        failure=failure,
        error=result.note if result.failed else "",
        skipped=result.note if found is None and not result.failed else "",
    )


def write(file: Path, cases: Sequence[Case]) -> None:
    """Writes a suite of tests."""
    about = {
        "name": "optax-bridge check",
        "tests": str(len(cases)),
        "failures": str(sum(bool(one.failure) for one in cases)),
        "errors": str(sum(bool(one.error) for one in cases)),
        "skipped": str(sum(bool(one.skipped) for one in cases)),
        "time": f"{sum(one.seconds for one in cases):.3f}",
    }
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", about)
    for one in cases:
        test = ElementTree.SubElement(
            suite, "testcase", classname=one.group, name=one.name, time=f"{one.seconds:.3f}"
        )
        for kind in ("failure", "error", "skipped"):
            if message := getattr(one, kind):
                ElementTree.SubElement(test, kind, message=message)
    ElementTree.indent(suites)
    write_text(file, ElementTree.tostring(suites, encoding="unicode") + "\n")
