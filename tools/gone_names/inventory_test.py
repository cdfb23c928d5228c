"""What old releases had and today's lack, with the last release that had it."""

import enum
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tools.gone_names import __main__ as gone_names
from tools.gone_names import releases, today

KINDS = ("today", "moved", "modules", "objects", "names", "attributes", "keywords")
INVENTORY = json.loads(gone_names.TARGET.read_text(encoding="utf-8"))


def _compared(package: str, snapshots: list[Any], old: int) -> dict[str, Any]:
    inventory: dict[str, Any] = {kind: {} for kind in KINDS}
    gone_names._compare(package, snapshots, old, inventory)
    return {kind: table for kind, table in inventory.items() if table}


def test_what_is_gone_has_the_last_release_that_had_it():
    attributes = {"c_or_r": [], "deriv": ["m", "degree"], "plot": []}
    members = {"float": {}, "poly1d": {"keywords": ["r", "roots"], "attributes": attributes}}
    old = {"numpy": members, "numpy.testing": {}, "numpy.rand": {"a": {}}}
    later = {"numpy": {"float": {}, "never_old": {}}}
    assert _compared("numpy", [{"numpy": {}}, old, later, {}], 2) == {
        "modules": {"numpy.rand": 1},
        "names": {"numpy": {"float": 2}},
        "keywords": {"numpy.poly1d": {"roots": 1}, "numpy.poly1d.deriv": {"degree": 1}},
        "attributes": {"numpy.poly1d": {"plot": 1}},  # `c_or_r` is what `__init__` takes
    }
    # A name that moved; modules that are objects today, a function for nothing but itself.
    objects = {"jax.config": {"FLAGS": {}, "update": {}}, "jax.numpy.vectorize": {"other": {}}}
    old = {"jax.api": {"jit": {}, "no": {}}, "chex": {"no": {}}, **objects}
    assert _compared("jax", [old, {"jax.config": {}}], 1) == {
        "moved": {"jax.api.jit": "jax.jit"},
        "modules": {"jax.api": 0},
        "objects": {"jax.config": 1, "jax.numpy.vectorize": 0},
        "names": {"jax.config": {"FLAGS": 0}},
    }


def test_a_file_that_was_behind_ends_with_1_and_an_older_release_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert gone_names._text(INVENTORY) == gone_names.TARGET.read_text(encoding="utf-8")

    def read(_: str, version: str, cache: Path) -> Any:
        later = {"no_longer": {}} if version == "0.4.16" else {}
        return releases.Read({"jax": {"tree_map": {}, "jit": {}, **later}}, cache.name)

    monkeypatch.setattr(releases, "RELEASES", {"jax": ("jax", "0.2.0 x==0.2.5", "0.4.16")})
    monkeypatch.setattr(releases, "read", read)
    file = tmp_path / "names.json"
    monkeypatch.setattr(gone_names, "TARGET", file)
    old, newer = (json.dumps({"today": {"jax": version}}) for version in ("0.9.2", "999.0"))
    for text, status in ((old, 1), ("", 0), (newer, 2)):
        file.write_text(text or file.read_text())
        assert gone_names.main(["--cache", str(tmp_path / "cache")]) == status
        assert status == 2 or json.loads(file.read_text()) == {
            **{kind: {} for kind in KINDS},
            "today": {"jax": jax.__version__},
            "read": {"jax": [[version, "cache"] for version in ("0.2.0", "0.2.5", "0.4.16")]},
            "names": {"jax": {"tree_map": 2}},
            "moved": {"jax.tree_map": "jax.tree_util.tree_map"},
        }
    assert file.read_text() == newer
    counts = "{'modules': 0, 'names': 1, 'attributes': 0, 'keywords': 0}"
    assert capsys.readouterr().err.splitlines() == [
        f"{file}: jax {jax.__version__}: {counts}",
        "It was behind, and is now up to date: see `git diff`",
        f"{file}: jax {jax.__version__}: {counts}",
        f"jax: expected 999.0 or later, found {jax.__version__}",
    ]


def test_names_of_today_are_there_or_missing_or_cannot_be_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "needs_more.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)
    for name, kind in {"needs_more": today.UNKNOWN, "numpy.rand": today.MISSING}.items():
        assert today.module(name) is kind and today.value(f"{name}.x") is today.MISSING
    assert (today.value("int"), today.value("numpy.linalg.norm")) == (int, np.linalg.norm)
    kinds = (lambda a, /, b: (a, b), lambda **k: k, enum.Enum, 3)
    assert [today.takes(function, "a") for function in kinds] == [False, True, None, None]
    assert [today.takes(kinds[0], name) for name in "bc"] == [True, False]


def test_a_release_is_read_off_the_files_of_its_package_and_once(tmp_path: Path):
    folder = tmp_path / "files" / "orbax-0.0.5" / "orbax-0.0.5"
    for name in ("orbax/checkpoint", "orbax/checkpoint/below/checkpoint"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"def {Path(name).parent.name}(a): pass")
    for _ in range(2):
        read = releases.read("orbax.checkpoint", "orbax==0.0.5", tmp_path)
        assert (read.how, read.names["orbax.checkpoint"]["orbax"]) == (
            "source",
            {"keywords": ["a"]},
        )
        shutil.rmtree(folder, ignore_errors=True)
    for package, (_, old, later) in releases.RELEASES.items():
        versions = [version.rpartition("==")[2] for version in f"{old} {later}".split()]
        assert versions == [version for version, _ in INVENTORY["read"][package]]


def test_a_release_is_downloaded_or_installed_with_pip_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    commands: list[list[str]] = []

    def pip(python: str, arguments: list[str]) -> None:
        commands.append([python, *arguments])
        archive, source = Path(arguments[-2]), tmp_path / "source" / "small"
        if arguments[0] == "download":
            kind = "zip" if arguments[-1] == "small==1" else "gztar"
            name = shutil.make_archive(str(archive / "small"), kind, source.parent)
            Path(name).rename(archive / f"small.{'whl' if kind == 'zip' else 'tar.gz'}")
        else:
            shutil.copytree(source, tmp_path / "installed" / "small-3" / "small")

    (tmp_path / "source" / "small").mkdir(parents=True)
    text = "import os\nprint('hello', os.environ['JAX_PLATFORMS'])\ndef f(a): pass\n"
    (tmp_path / "source" / "small" / "__init__.py").write_text(text, encoding="utf-8")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)  # the import needs it
    monkeypatch.setattr(releases, "_pip", pip)
    monkeypatch.setattr(releases, "_python", lambda version: sys.executable)
    monkeypatch.setitem(releases.RELEASES, "small", ("small", "1", ""))
    monkeypatch.setitem(releases.IMPORTED, ("small", "3"), ("3.8", ("more==1",)))
    found = [releases.read("small", version, tmp_path) for version in ("1", "small==2", "3", "3")]
    assert [read.how for read in found] == ["source", "source", *["import, Python 3.8"] * 2]
    assert [read.names for read in found] == [{"small": {"f": {"keywords": ["a"]}}}] * 4
    download = ["download", "--quiet", "--no-deps", "--ignore-requires-python", "--dest"]
    folders = [str(tmp_path / "downloads" / f"small-{number}") for number in "12"]
    target = str(tmp_path / "installed" / "small-3")
    assert commands == [
        *(
            [sys.executable, *download, f, f"small=={n}"]
            for f, n in zip(folders, "12", strict=True)
        ),
        [sys.executable, "install", "--quiet", "--target", target, "small==3", "more==1"],
    ]


def test_a_python_is_one_that_runs_or_one_of_pyenv_and_what_pip_says_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    pyenv = tmp_path / ".pyenv" / "versions" / "9.8.1" / "bin"
    pyenv.mkdir(parents=True)
    paths = [tmp_path / "python9.9", tmp_path / "python9.8", pyenv / "python"]
    for path, code in zip(paths, (0, 1, 0), strict=True):
        path.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
        path.chmod(0o755)
    found = [releases._python(version) for version in ("9.9", "9.8", "9.7")]
    assert found == [str(paths[0]), str(paths[2]), None]
    with pytest.raises(RuntimeError, match=r"^pip nothing-like-it --x: \S"):
        releases._pip(sys.executable, ["nothing-like-it", "--x"])
