"""README's program, versions and links hold, and a wheel has what users need, no more."""

import re
import tomllib
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from optax_bridge.cli.installed import NEWEST_TESTED

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


@pytest.mark.parametrize("name", NEWEST_TESTED)
def test_newest_versions_in_the_readme_are_those_that_the_command_knows(name: str) -> None:
    (row,) = re.findall(rf"^\| {name} \| (.*) \|$", README, re.MULTILINE)
    assert row.split(" | ")[-1] == NEWEST_TESTED[name]


def test_link_of_the_readme_leads_somewhere(subtests: pytest.Subtests) -> None:
    for path in sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))):
        with subtests.test(path):
            assert (ROOT / path).exists()


def test_the_changelog_dates_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased, newest = re.findall(r"^## \[(.*)$", changelog, re.MULTILINE)[:2]
    assert unreleased == "Unreleased]"
    assert re.fullmatch(rf"{re.escape(PROJECT['version'])}\] - \d{{4}}-\d\d-\d\d", newest)


def test_the_repository_has_one_address() -> None:
    repository = PROJECT["urls"]["Repository"]
    template = (ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text(encoding="utf-8")
    assert f"{repository}/security" in template
    assert PROJECT["urls"]["Documentation"] in README


@pytest.fixture(scope="module")
def in_wheel() -> list[str]:
    files = WheelBuilder(str(ROOT)).recurse_included_files()
    return sorted(Path(file.distribution_path).as_posix() for file in files)


PACKAGES = ("equivalence_tests", "legacy_optim", "migration_guide", "optax_bridge")


def test_a_wheel_has_four_typed_packages(in_wheel: list[str]) -> None:
    assert {name.split("/")[0] for name in in_wheel} == set(PACKAGES)
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(in_wheel)


def test_a_wheel_has_the_suite_and_no_other_tests(in_wheel: list[str]) -> None:
    tests = {name for name in in_wheel if name.endswith("_test.py")}
    suite = ("equivalence_tests/suite/", "equivalence_tests/reference/")
    assert "equivalence_tests/suite/checks_test.py" in tests
    assert [name for name in sorted(tests) if not name.startswith(suite)] == []
    assert [name for name in in_wheel if "/testdata/" in name] == []


def test_a_wheel_has_of_the_guide_the_codemod_alone(in_wheel: list[str]) -> None:
    folders = {name.split("/")[1] for name in in_wheel if name.startswith("migration_guide/")}
    assert folders == {"__init__.py", "codemod", "command.py", "py.typed"}
