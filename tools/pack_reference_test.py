"""What is recorded case by case is packed by optimizer, each with its case."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from equivalence_tests.recordings.format import read_packed
from equivalence_tests.recordings.recorder import Recorder
from tools import pack_reference


def test_recordings_are_packed_by_optimizer_with_their_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("adam/a", "adam/b", "sgd/a", "checkpoints/adam", "checkpoints/sgd"):
        folder = tmp_path / "recorded" / name
        Recorder(str(folder), steps=1).step(params={"w": np.ones(2)}, grads={"w": np.ones(2)})
        (folder / "case.json").write_text(json.dumps({"name": name}))
    (tmp_path / "recorded/checkpoints/adam.msgpack").write_bytes(b"1")
    (tmp_path / "packed/checkpoints").mkdir(parents=True)
    monkeypatch.setattr(pack_reference, "_REFERENCE", tmp_path / "packed")
    monkeypatch.setattr(sys, "argv", ["pack_reference", str(tmp_path / "recorded")])
    pack_reference.main()
    assert (tmp_path / "packed/checkpoints/adam.msgpack").read_bytes() == b"1"
    files = {
        str(file.relative_to(tmp_path / "packed")): read_packed(file)
        for file in (tmp_path / "packed").rglob("*.npz")
    }
    assert {file: sorted(runs) for file, runs in files.items()} == {
        "adam.npz": ["adam/a", "adam/b"],
        "sgd.npz": ["sgd/a"],
        "checkpoints/adam.npz": ["checkpoints/adam"],
        "checkpoints/sgd.npz": ["checkpoints/sgd"],
    }
    assert files["adam.npz"]["adam/b"].index["case"] == {"name": "adam/b"}
