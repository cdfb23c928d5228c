"""`[tool.optax-bridge]` in pyproject.toml, and what the command line says against it."""

from pathlib import Path
from typing import Any

import pytest

from migration_guide import command

OLD = "import jax\nfrom flax import optim\nd = optim.Adam(lr)\njax.tree_map(f, x)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    for name in ("src/train.py", "other.py"):
        (tmp_path / name).write_text(OLD, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "src")
    return tmp_path


def _configure(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.optax-bridge]\n{text}\n", encoding="utf-8")


def test_the_settings_choose_paths_rules_and_the_recipe(project: Path):
    _configure(project, 'paths = ["src"]\nskip = ["gone_names"]\nrecipe = "exact"')
    (project / "src" / "pyproject.toml").write_text('[tool.ruff]\nsrc = ["src"]\n')
    assert command.run(write=True) == 0
    new = (project / "src" / "train.py").read_text(encoding="utf-8")
    assert "d = optax_bridge.adam(" in new and "jax.tree_map(f, x)" in new
    assert (project / "other.py").read_text(encoding="utf-8") == OLD


@pytest.mark.parametrize(
    ("chosen", "is_renamed"),
    [
        ({"recipe": "auto", "skip": ["dead_imports"]}, True),
        ({"only": ["gone_names"]}, True),
        ({"only": ["gone_names", "create"], "skip": ["gone_names"]}, False),
        ({"skip": ["schedule"]}, True),
        ({}, False),
    ],
    ids=["recipe and skip", "only", "both", "skip", "neither"],
)
def test_the_command_line_has_the_last_word(
    chosen: dict[str, Any], is_renamed: bool, project: Path
):
    _configure(project, 'paths = ["src"]\nskip = ["gone_names"]\nrecipe = "exact"')
    assert command.run([project / "other.py"], write=True, **chosen) in (0, 1)
    new = (project / "other.py").read_text(encoding="utf-8")
    assert ("jax.tree.map(f, x)" in new) is is_renamed
    assert "recipe" not in chosen or "d = optax.adam(" in new


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('recipes = "exact"', "no setting 'recipes'; is 'recipe' meant?"),
        ('recipe = "Exact"', "recipe is one of auto, exact, optax; found 'Exact'; is"),
        ('skip = ["gone_namess"]', "skip names no rule 'gone_namess'; is 'gone_names' meant?"),
        ('skip = "gone_names"', "skip must be a list of strings; found 'gone_names'"),
        ("paths = [1]", "paths must be a list of strings; found [1]"),
        ("paths = [", "pyproject.toml: cannot be read: "),
        ('paths = ["sources"]', "no such file or folder"),
    ],
)
def test_what_cannot_be_meant_is_misuse(
    text: str, message: str, project: Path, capsys: pytest.CaptureFixture[str]
):
    _configure(project, text)
    assert command.run() == command.MISUSE
    assert message in capsys.readouterr().err
