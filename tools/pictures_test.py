"""The pictures of README.md show what the commands print today, and fit a screen."""

import re

import pytest

from equivalence_tests.report.table import closing_line, table
from optax_bridge.correspondence import ENTRIES
from tools import pictures

NAMES = ("check", "compare", "migrate")


def saved(name: str) -> str:
    return (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["compare", "migrate"])
def test_a_picture_shows_what_the_command_prints(name: str) -> None:
    drawn = getattr(pictures, f"{name}_picture")()
    assert _settled(saved(name)) == _settled(drawn), "run: nox -s pictures"


def _settled(picture: str) -> list[str]:
    """Returns the lines without those whose figures another release of JAX may change."""
    measured = r"  (difference|first difference|nature)|- "
    lines = pictures.text_of(picture).splitlines()
    return [line for line in lines if not re.match(measured, line)]


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


@pytest.mark.parametrize("name", NAMES)
def test_a_picture_is_one_screen_tall_and_breaks_no_word(name: str) -> None:
    picture = saved(name)
    ((width, height),) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)
    assert float(height) <= float(width)
    lines = pictures.text_of(picture).splitlines()
    assert not [line for line in lines if len(line) > 110]
    assert not re.search(r"\b(diff|ident|round|equa|adagra|moment)$", "\n".join(lines), re.M)


def test_the_text_of_a_picture_is_by_line_whatever_its_file_begins_with() -> None:
    at = pictures._COLUMN
    parts = {(0, 40): "a&#160;&lt;", (5 * at, 40): "b", (0, 20.5): "took 1.25 s", (2 * at, 60): "c"}
    texts = [f'<text class="x" x="{x:g}" y="{y}">{text}</text>' for (x, y), text in parts.items()]
    assert pictures.text_of("".join(texts)) == "took ... s\na <  b\n  c"
