"""What the README says holds: its program runs, its versions are those of pyproject.toml."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda text: text.splitlines()[0])
def test_program_of_the_readme_runs(program: str) -> None:
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})


def test_readme_has_a_program() -> None:
    assert PROGRAMS


@pytest.mark.parametrize("name", ["jax", "flax", "optax"])
def test_lowest_versions_in_the_readme_are_those_of_pyproject(name: str) -> None:
    (in_readme,) = re.findall(rf"^\| {name} \| ([\d.]+) \|", README, re.MULTILINE)
    assert f"{name}>={in_readme}" in PROJECT["dependencies"]


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))))
def test_link_of_the_readme_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
