"""The files that a command writes, JSON, JUnit's XML, a page and others, and its exit codes."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from equivalence_tests.output_files import why_no_file, why_not_writable, write_text
from equivalence_tests.report import html
from equivalence_tests.report.item import ERROR, NO_RECIPE, Item, of_message

# Nothing held and nothing broke where the platform is not there.
SAME, DIFFERENT, MISUSE, NOT_RUN = 0, 1, 2, 3


@dataclass(frozen=True)
class Outputs:
    """The files of a command; None for those that are not wanted."""

    json: Path | None = None
    junit: Path | None = None
    report: Path | None = None
    svg: Path | None = None
    record: Path | None = None
    shows_traceback: bool = False

    def check(self) -> None:
        """Checks before a long run that every file can be written."""
        if self.report is not None and (why := why_not_writable(self.report)):
            raise ValueError(f"--report {why}")
        for option in ("json", "svg", "junit", "record"):  # which may go into that folder
            file = getattr(self, option)
            if file is not None and (why := why_no_file(file)):
                raise ValueError(f"--{option} {why}")

    def write(
        self,
        content: object,
        items: Sequence[Item] = (),
        *,
        title: str = "",
        about: Mapping[str, object] | None = None,
        headline: str = "",
        svg: str = "",
        record: Callable[[Path], None] | None = None,
    ) -> bool:
        """Writes the requested files; standard error names them, or the failure."""
        text = content if isinstance(content, str) else json.dumps(content, indent=1) + "\n"
        writers: list[tuple[Path | None, Callable[[Path], object]]] = [
            (self.record if record else None, record or (lambda file: None)),
            (self.json, lambda file: write_text(file, text)),
            (self.svg if svg else None, lambda file: write_text(file, svg)),
            (self.junit, lambda file: _write_junit(file, items)),
            (
                self.report / html.NAME if self.report and title else None,
                lambda file: html.write(file, title, items, about or {}, headline),
            ),
        ]
        wanted = [(file, write) for file, write in writers if file is not None]
        try:
            for file, write in wanted:
                write(file)
        except OSError as error:  # the disk is full, the folder gone since
            print(f"{error.filename}: not written: {error.strerror}", file=sys.stderr)
            return False
        if wanted:
            print(f"written: {', '.join(str(file) for file, _ in wanted)}", file=sys.stderr)
        return True

    def write_error(self, name: str, error: ValueError, group: str, advice: str = "") -> int:
        """Prints an error on standard error, writes it into every file; returns 2."""
        message = f"{error}{advice}"
        if self.shows_traceback:
            traceback.print_exception(error)
        print(message, file=sys.stderr)
        try:
            self.check()
        except ValueError:  # as a rule this error itself: one file is refused, so none is written
            return MISUSE
        content = {"verdict": "error", "error": message}
        self.write(content, [of_message(name, message, group)], title=name)
        return MISUSE


def _write_junit(file: Path, items: Sequence[Item]) -> None:
    """Writes the cases as JUnit's XML, which CI services show as tests."""
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
    return "" if item.is_as_claimed else "failure"
