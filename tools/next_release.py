"""`python -m tools.next_release JUNIT.xml`: what newer releases break, by class.

Reads the report of a run of the tests and says of each failure whether something does not import,
a name is gone, the prover met another primitive, bits changed, something is deprecated, or none of
these. Exits with 1 if there was a failure.
"""

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from optax_bridge.cli.installed import release_warning, versions

# Class -> a pattern of its messages; the first that fits counts.
CLASSES = {
    "does not import": r"ModuleNotFoundError|cannot import name|error during collection",
    "another primitive": r"primitive|no rule for",
    "gone name": r"has no attribute|unexpected keyword argument|MissingNameError|is not defined",
    "deprecated": r"DeprecationWarning|FutureWarning",
    "other bits": r"Arrays are not equal|Not equal to tolerance|ULP|rounding only|differ|bit",
    "other": r"",
}


def failures(report: Path) -> Iterator[tuple[str, str]]:
    """Yields each test that failed and its message."""
    for case in ElementTree.parse(report).iter("testcase"):
        for outcome in (*case.findall("failure"), *case.findall("error")):
            name = f"{case.get('classname', '')}::{case.get('name', '')}"
            yield name, f"{outcome.get('message', '')}\n{outcome.text or ''}"


def class_of(message: str) -> str:
    """Returns the class of a failure."""
    first = message.partition("\n")[0]
    for text in (first, message):
        for name, pattern in CLASSES.items():
            if pattern and re.search(pattern, text):
                return name
    return "other"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the failures by class."""
    parser = argparse.ArgumentParser(description="What newer releases break, by class.")
    parser.add_argument("report", type=Path, help="what pytest --junit-xml wrote")
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {version}" for name, version in versions().items()))
    print(release_warning() or "all of these releases are supported")
    by_class: dict[str, list[str]] = {name: [] for name in CLASSES}
    for test, message in failures(options.report):
        by_class[class_of(message)].append(f"{test}: {message.partition(chr(10))[0][:150]}")
    for name, lines in by_class.items():
        print(f"\n{name}: {len(lines)}")
        print("\n".join(f"  {line}" for line in lines), end="\n" if lines else "")
    return int(any(by_class.values()))


if __name__ == "__main__":
    sys.exit(main())
