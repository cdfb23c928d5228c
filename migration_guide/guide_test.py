"""Every snippet of the guide runs, Sphinx warns of no page, everything public is in it."""

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

import jax
import pytest
from typer.testing import CliRunner

import legacy_optim
from migration_guide import build, cells, generated, pictures, tables
from migration_guide.docstrings import as_rest
from optax_bridge.cli.app import app
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.recipe import resolve

SHELL_OUTPUT = cells.shell_output
PAGES = cells.pages()
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
needs_sphinx = pytest.mark.skipif(
    not find_spec("myst_nb"), reason="Sphinx is not installed: .[guide]"
)


def _name(page: Path) -> str:
    return page.relative_to(cells.SOURCE).with_suffix("").as_posix()


def _output_of(command):
    """The output of a command; one of ours runs in this process, which has imported it all."""
    ours, _, then = command.partition(" | ")
    program, *arguments = shlex.split(ours)
    is_own = program == "optax-bridge" and arguments[0] not in ("run", "replay")
    if not is_own or re.search("[|;&>]", ours):
        return SHELL_OUTPUT(command)
    with warnings.catch_warnings(action="ignore"):
        done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return SHELL_OUTPUT(f"{then or 'cat'} <<'END'\n{done.stdout}END")


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


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_the_table_has_every_optimizer(entry):
    name = entry.legacy.__name__
    text = f"\n{tables.optimizers_markdown()}".replace("\n#   ", " ")
    section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    row = tables.overview_markdown().partition(f"[{name}](#{name.lower()})")[2].partition("\n")[0]
    parts = [entry.notes, "; ".join(entry.sources)]
    parts += [unsupported.message for unsupported in entry.unsupported]
    for hp in entry.hyper_params:
        parts.append(f"| `{hp.legacy}` | `{hp.port}` | {tables.default(hp.default)} |")
    for claim in (variant.claim for variant in entry.optax):
        bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP in"
        parts += [f"# optax: {claim.verdict.value}{bound}", claim.reason]
        assert claim.verdict.value in row and claim.relation in row
    assert [part for part in parts if part not in section] == []
    shown = re.findall(r"# was\n(.*?)\n\n# exact\n(\S*)", section, re.DOTALL)
    cases = [entry.definition(case, case.learning_rate).hyper_params for case in entry.cases]
    names = {"optim": legacy_optim, "jax": jax}
    assert all(eval(was, names).hyper_params in cases for was, _ in shown), shown
    assert all(exact.startswith("optax_bridge.") for _, exact in shown), shown
    assert bool(shown) != entry.takes_groups
    for field in entry.state:
        negated = re.escape(" (negated)" * (field.optax_sign < 0))
        here = rf"`{re.escape(field.legacy)}` \| `{re.escape(field.exact)}`"
        assert re.search(rf"{here} \| [^(]+{negated} \|", section)


def test_defaults_that_differ_are_those_of_both_signatures():
    def default(function, argument):
        return tables.default(inspect.signature(function).parameters[argument].default).strip("`")

    rows = tables.differences_markdown().splitlines()[2:]
    assert len(rows) >= 5
    for row in rows:
        name, own, ours, alias, argument, theirs = (
            cell.strip(" `") for cell in row.strip("|").split("|")
        )
        assert theirs == default(resolve(alias), argument) != ours
        assert not own.isidentifier() or ours == default(getattr(legacy_optim, name), own)


def test_a_quoted_message_is_raised_below_its_heading():
    text = TEXTS[cells.SOURCE / "troubleshooting.md"]
    sections = re.split(r"^### ", text, flags=re.MULTILINE)[1:]
    quoted = {match[1]: section for section in sections if (match := re.match("`(.+)`\n", section))}
    assert len(quoted) > 20
    for message, section in quoted.items():
        assert f'"{message}"' in section, message


def test_the_trainers_modules_are_in_the_reference():
    """A new module is either in the reference or named here."""
    folder = cells.SOURCE.parents[1] / "optax_bridge/spmd"
    names = {path.stem for path in folder.iterdir() if path.suffix in ("", ".py")}
    inner = {"__init__", "__pycache__", "_testing", "testdata"}
    inner |= {"command", "terminal", "examples", "progress"}
    public = {name for name in names - inner if not name.endswith("_test")}
    assert {f"optax_bridge.spmd.{name}" for name in public} <= {page.stem for page in PAGES}


@needs_sphinx
def test_sphinx_has_nothing_to_warn_of(tmp_path):
    """Builds the pages without running their cells."""
    command = [sys.executable, "-m", "migration_guide.build", "--without-cells"]
    done = subprocess.run([*command, "--output", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_reference_has_every_subcommand_and_its_options():
    text = generated.commands_markdown()
    for point in metadata.entry_points(group=generated.GROUP):
        assert f"Usage: optax-bridge {point.name} [OPTIONS]" in text


def test_marks_are_filled_in_with_menus_and_the_way_to_install():
    index = generated.filled_in(TEXTS[cells.SOURCE / "index.md"])
    pages = [_name(page) for page in PAGES if _name(page).startswith("torch/")]
    menu = ["```{toctree}", ":hidden:", ":caption: From PyTorch", "", *pages, "```"]
    assert "\n".join(menu) in index and ":caption: Examples\n\nexamples\n" in index
    assert not any("<!-- generated" in generated.filled_in(text) for text in TEXTS.values())


def test_docstrings_become_rest():
    head = ["`f`, two `Call`s:", ""]
    code = ["    x = f(1)", "    y = x", "", "Returns:", "  One: or none,", "      as `f` has it."]
    written = ["`f`, two `Call`\\ s:", "", ".. code-block:: python", "", *code]
    written[-2] = "  : One: or none,"
    assert as_rest([*head, *code]) == written
    assert as_rest(["", "    >>> 1"])[1] == ".. code-block:: pycon"
    assert as_rest(["Yields:", "  It."])[1] == "  : It."


def test_a_failing_cell_names_its_page_and_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```{code-cell} ipython3\n:tags: [x]\n\nx = 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        cells.run(page)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(page), 7)


def test_a_command_is_shown_as_text_below_the_current_folder(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    for colours in ("FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE"):
        monkeypatch.setenv(colours, "1")
    program = "import os; print(*[x for x in os.environ if 'COLO' in x], os.path.abspath('x'), '')"
    assert cells.shell_output(f'{sys.executable} -c "{program}"') == "x"
    cells.shell("echo ${PATH%%:*}")
    assert capsys.readouterr().out == f"$ echo ${{PATH%%:*}}\n{Path(sys.executable).parent}\n"
    assert "<figcaption>a &lt; b</figcaption>" in pictures.figures({"a < b": ""})
    assert pictures.diff("echo x") == "```console\n$ echo x\n```\n\n```diff\nx\n```\n"
    with pytest.raises(RuntimeError, match="ended with status 3"):
        cells.shell_output("exit 3")


@needs_sphinx
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
    assert re.search(r"no-such-package[^$]*pip install '.\[guide\]'", capsys.readouterr().err)
