"""Every snippet of the guide runs, every link leads somewhere, every optimizer is in the table."""

import re
from pathlib import Path

import pytest

from migration_guide import build, cells, tables
from optax_bridge.correspondence import ENTRIES

PAGES = cells.pages()
_LINK = re.compile(r"\]\(([^)]+)\)")


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Sphinx makes them."""
    text = page.read_text(encoding="utf-8").replace(tables.MARK, tables.correspondence_markdown())
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def _links() -> list[tuple[Path, str]]:
    return [
        (page, target)
        for page in PAGES
        for target in _LINK.findall(page.read_text(encoding="utf-8"))
        if "://" not in target
    ]


def test_there_are_pages():
    assert {"index", "quick_start", "in_steps", "flip_1009"} <= {page.stem for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write files
    cells.run(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_code_block_is_overlooked(page):
    text = page.read_text(encoding="utf-8")
    assert len(list(cells.cells(page))) == text.count("{code-cell}")


@pytest.mark.parametrize(
    ("page", "target"), _links(), ids=lambda value: str(getattr(value, "stem", value))
)
def test_links_lead_somewhere(page, target):
    file, _, anchor = target.partition("#")
    linked = page.parent / file if file else page
    assert linked.is_file()
    assert not anchor or anchor in _anchors(linked)


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_the_table_has_every_optimizer(entry):
    text = tables.correspondence_markdown()
    name = entry.legacy.__name__
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f"[{name}](#{name.lower()})" in text
    assert entry.notes in section
    for hp in entry.hyper_params:
        assert f"| `{hp.legacy}` | `{hp.port}` |" in section
    for stock in entry.stock:
        assert stock.claim.verdict.value in section


def test_a_failing_cell_names_its_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```{code-cell} ipython3\n:tags: [x]\n\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        cells.run(page)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 7)


def test_build_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(build.NEEDS, "no_such_package_here", "no-such-package")
    assert build.main([]) == build.MISUSE
    said = capsys.readouterr().err
    assert "no-such-package" in said
    assert "pip install '.[guide]'" in said
