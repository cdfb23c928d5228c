"""What old releases had and today's lack, with the last release that had it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tools.gone_names import __main__ as gone_names
from tools.gone_names import releases

NOTHING: dict[str, Any] = {
    kind: {} for kind in ("today", "moved", "modules", "objects", "names", "attributes", "keywords")
}


def test_what_is_gone_has_the_last_release_that_had_it():
    poly = {
        "keywords": ["r", "roots"],
        "attributes": {"c_or_r": [], "deriv": ["m", "degree"], "plot": []},
    }
    old = {"numpy": {"float": {}, "poly1d": poly}, "numpy.testing": {}, "numpy.rand": {"a": {}}}
    later = {"numpy": {"float": {}, "never_old": {}}}
    inventory = json.loads(json.dumps(NOTHING))
    gone_names._compare("numpy", [{"numpy": {}}, old, later, {}], 2, inventory)
    assert inventory == {
        **NOTHING,
        "modules": {"numpy.rand": 1},
        "names": {"numpy": {"float": 2}},
        "keywords": {"numpy.poly1d": {"roots": 1}, "numpy.poly1d.deriv": {"degree": 1}},
        "attributes": {"numpy.poly1d": {"plot": 1}},  # `c_or_r` is what `__init__` takes
    }


def test_a_file_that_was_behind_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gone_names, "TARGET", tmp_path / "names.json")
    monkeypatch.setattr(gone_names, "_inventory", lambda cache: NOTHING)
    for version, status in (("1.0", 1), ("10.0", 2)):  # 10 is later than 2
        (tmp_path / "names.json").write_text(json.dumps({"today": {"numpy": version}}))
        assert gone_names.main([]) == status
    (tmp_path / "names.json").write_text(gone_names._text(NOTHING))
    assert gone_names.main([]) == 0


def test_a_release_is_read_once_from_its_outermost_folder(tmp_path: Path):
    for name, text in (("other/jax", "inner = 1\n"), ("jax", "def jit(fun): pass\n")):
        folder = tmp_path / "files/jax-0.1" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(text)
    for _ in range(2):
        read = releases.read("jax", "0.1", tmp_path)
        assert (read.how, read.names) == ("source", {"jax": {"jit": {"keywords": ["fun"]}}})
        (folder / "__init__.py").write_text("")
