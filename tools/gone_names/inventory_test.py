"""What old releases had and today's lack, with the last release that had it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.gone_names import __main__ as gone_names
from tools.gone_names import releases

KINDS = ("today", "moved", "modules", "objects", "names", "attributes", "keywords")


def test_what_is_gone_has_the_last_release_that_had_it():
    attributes = {"c_or_r": [], "deriv": ["m", "degree"], "plot": []}
    members = {"float": {}, "poly1d": {"keywords": ["r", "roots"], "attributes": attributes}}
    old = {"numpy": members, "numpy.testing": {}, "numpy.rand": {"a": {}}}
    later = {"numpy": {"float": {}, "never_old": {}}}
    inventory: dict[str, Any] = {kind: {} for kind in KINDS}
    gone_names._compare("numpy", [{"numpy": {}}, old, later, {}], 2, inventory)
    assert {kind: table for kind, table in inventory.items() if table} == {
        "modules": {"numpy.rand": 1},
        "names": {"numpy": {"float": 2}},
        "keywords": {"numpy.poly1d": {"roots": 1}, "numpy.poly1d.deriv": {"degree": 1}},
        "attributes": {"numpy.poly1d": {"plot": 1}},  # `c_or_r` is what `__init__` takes
    }


def test_a_file_that_was_behind_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, nothing = tmp_path / "names.json", {kind: {} for kind in KINDS}
    monkeypatch.setattr(gone_names, "TARGET", file)
    monkeypatch.setattr(gone_names, "_inventory", lambda cache: nothing)
    behind, newer = (json.dumps({"today": {"numpy": version}}) for version in ("1.0", "10.0"))
    for text, status in ((behind, 1), (newer, 2), (gone_names._text(nothing), 0)):
        file.write_text(text)
        assert gone_names.main([]) == status


def test_a_release_is_read_once_from_its_outermost_folder(tmp_path: Path):
    for name, text in (("other/jax", "inner = 1\n"), ("jax", "def jit(fun): pass\n")):
        folder = tmp_path / "files/jax-0.1" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    for _ in range(2):
        read = releases.read("jax", "0.1", tmp_path)
        assert (read.how, read.names) == ("source", {"jax": {"jit": {"keywords": ["fun"]}}})
        (folder / "__init__.py").write_text("")
