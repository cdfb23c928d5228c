"""Cases as JUnit's XML, which CI services show as tests."""

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from equivalence_tests.output_files import write_text
from equivalence_tests.report.item import ERROR, NO_RECIPE, Item


def write(file: Path, items: Sequence[Item]) -> None:
    """Writes a suite of tests."""
    kinds = [_kind(item) for item in items]
    counts = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suites = ElementTree.Element("testsuites")
    about = {
        "name": "optax-bridge check",
        "tests": str(len(items)),
        "time": f"{sum(item.seconds for item in items):.3f}",
        **{name: str(kinds.count(kind)) for name, kind in counts.items()},
    }
    suite = ElementTree.SubElement(suites, "testsuite", about)
    for item, kind in zip(items, kinds, strict=True):
        test = ElementTree.SubElement(
            suite, "testcase", classname=item.group, name=item.id, time=f"{item.seconds:.3f}"
        )
        if kind:
            ElementTree.SubElement(test, kind, message=item.failure or item.headline)
    ElementTree.indent(suites)
    write_text(file, ElementTree.tostring(suites, encoding="unicode") + "\n")


def _kind(item: Item) -> str:
    if item.outcome == ERROR:
        return "error"
    if item.outcome == NO_RECIPE:
        return "skipped"
    return "" if item.held else "failure"
