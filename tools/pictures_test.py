"""The pictures of README.md show what the commands print today."""

import re
from pathlib import Path

import pytest

from equivalence_tests.report.table import closing_line, table
from optax_bridge.correspondence import ENTRIES
from tools import pictures


def saved(name: str) -> str:
    return (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["compare", "migrate"])
def test_a_picture_shows_what_the_command_prints(name: str) -> None:
    drawn = getattr(pictures, f"{name}_picture")()
    assert _settled(saved(name)) == _settled(drawn), "run: nox -s pictures"


def _settled(picture: str) -> str:
    """Returns the text without the figures that another release of JAX may change."""
    measured = r"^(  (?:difference|first difference|nature)|- ).*"
    return re.sub(measured, r"\1", pictures.text_of(picture), flags=re.MULTILINE)


def test_the_table_of_check_is_of_today() -> None:
    lines = pictures.text_of(saved("check")).splitlines()
    columns = [column.header for column in table([], "", 110).columns]
    assert columns in [line.split("  ") for line in map(_squeezed, lines)], "run: nox -s pictures"
    assert " ".join(lines).split(";")[-1].strip() == closing_line([])
    for name in pictures.SHOWN:
        start = next(index for index, line in enumerate(lines) if line.startswith(f"  {name} "))
        rows = _squeezed(" ".join(lines[start : start + 5]))
        for variant in ENTRIES[name].optax:
            assert variant.claim.verdict.value in rows, rows
            assert variant.claim.relation in rows, rows


def _squeezed(line: str) -> str:
    return re.sub(" {2,}", "  ", line.strip())


def test_the_text_of_a_picture_is_by_line_whatever_its_file_begins_with() -> None:
    at = pictures._COLUMN
    parts = {(0, 40): "a&#160;&lt;", (5 * at, 40): "b", (0, 20.5): "took 1.25 s", (2 * at, 60): "c"}
    texts = [f'<text class="x" x="{x:g}" y="{y}">{text}</text>' for (x, y), text in parts.items()]
    assert pictures.text_of("".join(texts)) == "took ... s\na <  b\n  c"


def test_a_command_that_fails_is_not_drawn(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exit code 3\nsaid"):
        pictures._run_command("echo said && exit 3", tmp_path)
