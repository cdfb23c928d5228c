"""Pins of an old Flax, in every notation that names a version."""

import tomllib
from pathlib import Path

import pytest

from migration_guide.codemod.reading import pins

OLD = [
    "flax==0.5.3",
    "flax == 0.3.4",
    "flax<0.6",
    "flax~=0.5.0",
    "flax ~= 0.5.1",
    "flax==0.5.*",
    "    flax<=0.5.3",
    '"flax>=0.3,<0.6",',
    "flax<0.6,>=0.3",
    "flax[all]==0.5.3",
    "flax [testing] >=0.3, <0.6 ; python_version<'3.11'",
    "flax==0.5.3  # last with optim",
    "flax==0.5.3 \\",
    "flax==0.5.3 --hash=sha256:abc",
    "git+https://github.com/google/flax.git@v0.5.3#egg=flax",
    "flax @ git+https://github.com/google/flax@v0.3.4",
    "flax @ https://files/flax-0.5.3-py3-none-any.whl",
    "  - flax=0.5.3",
    "  - conda-forge::flax=0.5",
    "  - flax 0.5.3",
    "  - flax >=0.3,<0.6",
    'flax = "^0.5"',
    'flax = "0.5.3"',
    'flax = {version = "~0.5.1", extras=["x"]}',
    'flax = { extras = ["x"], version = ">=0.3,<0.6" }',
    'flax = "==0.5.3"',
    "install_requires = flax==0.5.3; numpy",
    "install_requires=['jax', 'flax>=0.3,<0.6', 'x'],",
    "flax===0.5.3",
    "flax>=0.5.1,!=0.5.2,<=0.5.3",
    "Flax==0.5.3",
    "flax (<0.6)",
    "- pip: [flax==0.4]",
    "flax<0.7",
    "flax<1,<0.6",
    "flax>=0.6,<0.10",
    "flax==0.8.5",
]
FINE = [
    "flax",
    "flax>=0.5",
    "my-flax==0.5.3",
    "# flax==0.5.3",
    "flaxformer==0.1",
    "flax==0.12.*",
    "flax==0.12.8",
    "flax~=0.12.2",
    "flax~=0.10",
    "flax>=0.5,<1",
    "flax<=0.12.2",
    'flax = "*"',
    'flax = "^0.12"',
    "flax-extra==0.2",
    "flax.optim = 3",
    "flax!=0.5.3",
    "x/flax==3",
    "flax = {git = 'https://x', tag='v0.5'}",
    "jax==0.3 flax",
    'flax = ">=0.5"',
    "flax = '^1.0'",
    "flax=0.12",
]


def test_points_out(subtests: pytest.Subtests):
    for line in OLD:
        with subtests.test(line):
            ((number, said),) = pins.old_pins(f"numpy\n{line}\n")
            assert number == 2
            assert repr(line.strip()) in said
            assert f"flax>={pins.LOWEST}" in said


def test_says_nothing_of(subtests: pytest.Subtests):
    for line in FINE:
        with subtests.test(line):
            assert pins.old_pins(f"numpy\n{line}\n") == []


def test_the_first_version_that_a_clause_leaves_out(subtests: pytest.Subtests):
    for clause, left_out in [
        ("~=0.5.1", (0, 6)),
        ("~=0.5", (1,)),
        ("~1.2.3", (1, 3)),
        ("~1.2", (1, 3)),
        ("~1", (2,)),
        ("^0.5.1", (0, 6)),
        ("^0.0.3", (0, 0, 4)),
        ("^1.2.3", (2,)),
        ("^0", (1,)),
    ]:
        with subtests.test(clause):
            operator = clause.rstrip("0123456789.")
            version = tuple(map(int, clause.removeprefix(operator).split(".")))
            assert pins._next(operator, version) == left_out


def test_a_table_of_its_own():
    text = '[tool.poetry.dependencies.flax]\nextras = ["a"]\nversion = "^0.5"\n[x]\nversion = "1"\n'
    assert [number for number, _ in pins.old_pins(text)] == [3]


def test_which_files_name_versions(subtests: pytest.Subtests):
    for name, expected in [
        ("requirements.txt", True),
        ("requirements-dev.in", True),
        ("dev-requirements.txt", True),
        ("requirements/train.txt", True),
        ("constraints.txt", True),
        ("setup.py", True),
        ("setup.cfg", True),
        ("pyproject.toml", True),
        ("environment.yml", True),
        ("Pipfile", True),
        ("Dockerfile.gpu", True),
        ("train.py", False),
        ("notes.txt", False),
    ]:
        with subtests.test(name):
            assert pins.is_project_file(Path(name)) == expected


def test_the_lowest_flax_is_the_one_of_this_project():
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert f"flax>={pins.LOWEST}" in project["dependencies"]
