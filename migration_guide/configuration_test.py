"""`[tool.optax-bridge]` in pyproject.toml, and what the command line says against it."""

from pathlib import Path

import pytest

from migration_guide import command

OLD = "import jax\nfrom flax import optim\nd = optim.Adam(lr)\njax.tree_map(f, x)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "train.py").write_text(OLD, encoding="utf-8")
    (tmp_path / "other.py").write_text(OLD, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "src")
    return tmp_path


def _configure(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.optax-bridge]\n{text}\n", encoding="utf-8")


def test_paths_skipped_rules_and_the_recipe(project: Path):
    _configure(project, 'paths = ["src"]\nskip = ["gone_names"]\nrecipe = "exact"')
    assert command.run(write=True) == 0
    new = (project / "src" / "train.py").read_text(encoding="utf-8")
    assert "d = optax_bridge.adam(" in new and "jax.tree_map(f, x)" in new
    assert (project / "other.py").read_text(encoding="utf-8") == OLD


def test_the_command_line_has_the_last_word(project: Path):
    _configure(project, 'paths = ["src"]\nskip = ["gone_names"]\nrecipe = "exact"')
    other = project / "other.py"
    assert command.run([other], write=True, recipe="auto", skip=["dead_imports"]) == 0
    new = other.read_text(encoding="utf-8")
    assert "d = optax.adam(" in new and "jax.tree.map(f, x)" in new


@pytest.mark.parametrize(
    ("chosen", "is_renamed"),
    [
        ({"only": ["gone_names"]}, True),
        ({"only": ["gone_names", "create"], "skip": ["gone_names"]}, False),
        ({"skip": ["schedule"]}, True),
        ({}, False),
    ],
    ids=["only", "both", "skip", "neither"],
)
def test_rules_of_the_command_line_replace_those_of_the_settings(
    chosen: dict[str, list[str]], is_renamed: bool, project: Path
):
    _configure(project, 'skip = ["gone_names"]')
    assert command.run([project / "other.py"], write=True, **chosen) in (0, 1)  # type: ignore[arg-type]
    new = (project / "other.py").read_text(encoding="utf-8")
    assert ("jax.tree.map(f, x)" in new) is is_renamed


def test_a_table_of_another_tool_further_down_is_passed_over(project: Path):
    _configure(project, 'paths = ["other.py"]')
    (project / "src" / "pyproject.toml").write_text('[tool.ruff]\nsrc = ["src"]\n')
    assert command.run(write=True) == 0
    assert "optax.adam" in (project / "other.py").read_text(encoding="utf-8")


WRONG = {
    "key": ('recipes = "exact"', "no setting 'recipes'; is 'recipe' meant?"),
    "value": (
        'recipe = "Exact"',
        "recipe is one of auto, exact, optax; found 'Exact'; is",
    ),
    "rule": ('skip = ["gone_namess"]', "skip names no rule 'gone_namess'; is 'gone_names' meant?"),
    "type": ('skip = "gone_names"', "skip is a list of texts; found 'gone_names'"),
    "inner-type": ("paths = [1]", "paths is a list of texts; found [1]"),
    "syntax": ("paths = [", "pyproject.toml: cannot be read: "),
    "path": ('paths = ["sources"]', "no such file or folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_meant_is_misuse(
    case: str, project: Path, capsys: pytest.CaptureFixture[str]
):
    text, message = WRONG[case]
    _configure(project, text)
    assert command.run() == command.MISUSE
    assert message in capsys.readouterr().err
