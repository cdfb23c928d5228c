"""Every snippet of the guide runs, every link leads somewhere, everything public is in it."""

import functools
import inspect
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import legacy_optim
from migration_guide import build, cells, generated, pictures
from migration_guide.docstrings import as_rest
from migration_guide.generated import GROUP, PARTS, commands_markdown, filled_in, marks
from migration_guide.tables import (
    default,
    differences_markdown,
    optimizers_markdown,
    overview_markdown,
)
from optax_bridge.cli.app import app
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.recipe import resolve

_TRAINER = "optax_bridge.spmd"
SHELL_OUTPUT = cells.shell_output
PAGES = cells.pages()
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
_LINK = re.compile(r"\]\(([^)]+)\)")
_MENU = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _name(page: Path) -> str:
    return page.relative_to(cells.SOURCE).with_suffix("").as_posix()


@functools.cache
def _filled(page: Path) -> str:
    return filled_in(TEXTS[page])


@functools.cache
def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as Sphinx makes them."""
    prose = re.sub(r"^```.*?^```$", "", _filled(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def _links() -> list[tuple[Path, str]]:
    return [
        (page, target)
        for page, text in TEXTS.items()
        for target in _LINK.findall(text)
        if "://" not in target
    ]


def test_there_are_pages():
    assert {"index", "quick_start", "have/training_step"} <= {_name(page) for page in PAGES}


def _output_of(command):
    """The output of a command; one of ours runs in this process, which has imported it all."""
    program, *arguments = shlex.split(command)
    if (
        program != "optax-bridge"
        or arguments[0] in ("run", "replay")
        or re.search("[|;&>]", command)
    ):
        return SHELL_OUTPUT(command)
    with warnings.catch_warnings(action="ignore"):
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.rstrip()


@pytest.mark.parametrize("page", [p for p in PAGES if "{code-cell}" in TEXTS[p]], ids=_name)
def test_snippets_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # pages write files
    for module in (cells, pictures):
        monkeypatch.setattr(module, "shell_output", _output_of)
    if "import torch" in TEXTS[page]:
        pytest.importorskip("torch")
    cells.run(page)


def test_no_code_block_is_overlooked():
    counts = {page: len(list(cells.cells(page))) for page in PAGES}
    assert counts == {page: text.count("{code-cell}") for page, text in TEXTS.items()}


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.parent.name in ("have", "torch")], ids=_name
)
def test_a_page_of_what_one_has_compares_old_and_new(page):
    assert ":tags: [old" in TEXTS[page]
    compares = ("agree(", "check_equivalence(", "optax-bridge compare ")
    assert any(call in TEXTS[page] for call in compares)
    assert f"({page.parent.name}/{page.name}" in TEXTS[cells.SOURCE / "index.md"]


def test_links_lead_somewhere():
    assert [(_name(page), target) for page, target in _links() if not _leads(page, target)] == []


def _leads(page, target):
    file, _, anchor = target.partition("#")
    linked = (page.parent / file).resolve() if file else page
    return linked.is_file() and (not anchor or anchor in _anchors(linked))


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_the_table_has_every_optimizer(entry):
    name = entry.legacy.__name__
    section = f"\n{optimizers_markdown()}".partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    row = overview_markdown().partition(f"[{name}](#{name.lower()})")[2].partition("\n")[0]
    assert entry.notes in section
    for hp in entry.hyper_params:
        assert f"| `{hp.legacy}` | `{hp.port}` |" in section
    for unsupported in entry.unsupported:
        assert unsupported.message in section
    for field in entry.state:
        negated = " (negated)" * (field.optax_sign < 0)
        assert re.search(
            rf"`{re.escape(field.legacy)}` \|.* \| [^(]+{re.escape(negated)} \|", section
        )
    for variant in entry.optax:
        assert variant.claim.verdict.value in row
        claim = f"# optax: {variant.claim.verdict.value}"
        bound = "" if variant.claim.ulp is None else f", at most {variant.claim.ulp:g} ULP in"
        assert f"{claim}{bound}" in section


def test_defaults_that_differ_are_those_of_both_signatures():
    rows = differences_markdown().splitlines()[2:]
    assert len(rows) >= 5
    for row in rows:
        cells_of_row = [cell.strip(" `") for cell in row.strip("|").split("|")]
        name, own, ours, alias, argument, theirs = cells_of_row
        assert theirs == default(_default(resolve(alias), argument)).strip("`")
        if own.isidentifier():
            assert ours == default(_default(getattr(legacy_optim, name), own)).strip("`")
        assert ours != theirs


def _default(function, argument):
    return inspect.signature(function).parameters[argument].default


def test_a_quoted_message_is_raised_below_its_heading():
    text = TEXTS[cells.SOURCE / "troubleshooting.md"]
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    quoted = {match[1]: section for section in sections if (match := re.match("`(.+)`\n", section))}
    assert len(quoted) > 20
    for message, section in quoted.items():
        assert f'"{message}"' in section, message


def test_every_part_stands_on_a_page():
    assert {name for text in TEXTS.values() for name, *_ in marks(text)} == PARTS.keys()


def test_the_trainers_modules_are_in_the_reference():
    """A new module is either in the reference or named here."""
    folder = Path(cells.SOURCE.parents[1], *_TRAINER.split("."))
    names = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
    inner = {"__init__", "__pycache__", "_testing", "command", "terminal", "examples", "progress"}
    public = {f"{_TRAINER}.{name}" for name in names - inner if not name.endswith("_test")}
    assert public <= {page.stem for page in PAGES}


def test_every_page_is_in_a_menu_once():
    """Sphinx fails where a page is in none, or an entry is no page, but only after minutes."""
    entries = [
        _name(page.parent / f"{line}.md")
        for page in PAGES
        for block in _MENU.findall(_filled(page))
        for line in block.splitlines()
        if line and not line.startswith(":")
    ]
    assert sorted([*entries, "index"]) == sorted(map(_name, PAGES))


@pytest.mark.skipif(not find_spec("myst_nb"), reason="Sphinx is not installed: .[guide]")
def test_sphinx_has_nothing_to_warn_of(tmp_path):
    """Builds the pages without running their cells."""
    command = [sys.executable, "-m", "migration_guide.build", "--without-cells"]
    done = subprocess.run([*command, "--output", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_reference_has_every_subcommand_and_its_options():
    text = commands_markdown()
    for point in metadata.entry_points(group=GROUP):
        section = text.partition(f"## optax-bridge {point.name}\n")[2].partition("\n## ")[0]
        assert "--" in section, point.name


def test_options_are_told_with_their_other_names_and_defaults():
    def run(
        path: Annotated[str, typer.Argument(help="`a` | b.")],
        fast: Annotated[bool, typer.Option("--fast/--slow", help="See --level.")] = True,
        level: int = 3,
        secret: Annotated[str, typer.Option(hidden=True)] = "",
    ) -> None: ...

    lines = generated._section("run", generated._command(run)).splitlines()
    assert [line for line in lines if line.startswith("| `")] == [
        r"| `PATH` | `a` \| b. Required. |",
        "| `--fast`, `--slow` | See `--level`. |",
        "| `--level LEVEL` |  Default: `3`. |",
    ]


def test_docstrings_become_rest():
    code = ["`f`, two `Call`s:", "", "    x = f(1)", "", "Returns:", "  One: or none,"]
    code += ["      as `f` has it."]
    code[3:3] = ["    y = x"]
    assert as_rest(code) == [
        "`f`, two `Call`\\ s:",
        "",
        ".. code-block:: python",
        "",
        "    x = f(1)",
        "    y = x",
        "",
        "Returns:",
        "  : One: or none,",
        "      as `f` has it.",
    ]


def test_a_failing_cell_names_its_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```{code-cell} ipython3\n:tags: [x]\n\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        cells.run(page)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 7)


def test_a_command_is_shown_as_text_below_the_current_folder(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    program = "import os; print(os.environ.get('FORCE_COLOR'), os.path.abspath('x'), ' ')"
    assert cells.shell_output(f'{sys.executable} -c "{program}"') == "None x"
    with pytest.raises(RuntimeError, match="ended with status 3"):
        cells.shell_output("exit 3")


@pytest.mark.skipif(not find_spec("myst_nb"), reason="Sphinx is not installed: .[guide]")
@pytest.mark.parametrize(
    ("page", "status"),
    [
        ("print(1)\n```\n", 0),
        ("1 / 0\n```\n", 1),
        ("import sys; print(1, file=sys.stderr)\n```\n", 1),
        ("print(1)\n```\n\n```{toctree}\nnowhere\n```\n", 1),
    ],
)
def test_a_page_that_fails_or_warns_fails_the_build(page, status, tmp_path, monkeypatch):
    shutil.copy(cells.SOURCE / "conf.py", tmp_path)
    shutil.copytree(cells.SOURCE / "_static", tmp_path / "_static")
    head = TEXTS[cells.SOURCE / "costs.md"].partition("\n\n")[0]
    text = f"{head}\n\n# Page\n\n```{{code-cell}} ipython3\n{page}"
    (tmp_path / "index.md").write_text(text)
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    assert build.main(["--output", str(tmp_path / "built")]) == status


def test_build_says_what_is_missing(monkeypatch, capsys):
    monkeypatch.setitem(build.NEEDS, "no_such_package_here", "no-such-package")
    assert build.main([]) == build.MISUSE
    said = capsys.readouterr().err
    assert "no-such-package" in said
    assert "pip install '.[guide]'" in said
