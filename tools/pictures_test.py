"""The pictures of README.md show what the commands print today."""

import re

import pytest

from equivalence_tests.report.table import closing_line, table
from optax_bridge.correspondence import ENTRIES
from tools import pictures

SAVED = {name: (pictures.FOLDER / f"{name}.svg").read_text("utf-8") for name in (
    "check", "compare", "migrate",
)}  # fmt: skip
# Figures that another release of JAX may change.
_MEASURED = re.compile(r"^(  (?:difference|first difference|nature)|- (?!\.\.\.)).*", re.MULTILINE)


@pytest.mark.parametrize("name", ["compare", "migrate"])
def test_a_picture_shows_what_the_command_prints(name: str) -> None:
    drawn = getattr(pictures, f"{name}_picture")()
    old, new = (_MEASURED.sub(r"\1", pictures.text_of(text)) for text in (SAVED[name], drawn))
    assert old == new, "run: nox -s pictures"


def test_the_table_of_check_is_of_today() -> None:
    lines = pictures.text_of(SAVED["check"]).splitlines()
    columns = [column.header for column in table([], "", 110).columns]
    assert columns in [re.split(" {2,}", line.strip()) for line in lines], "run: nox -s pictures"
    assert " ".join(lines).split(";")[-1].strip() == closing_line([])
    for name in pictures.SHOWN:
        start = next(index for index, line in enumerate(lines) if line.startswith(f"  {name} "))
        rows = re.sub(" {2,}", "  ", " ".join(lines[start : start + 5]))
        for variant in ENTRIES[name].optax:
            assert variant.claim.verdict.value in rows, rows
            assert variant.claim.relation in rows, rows
