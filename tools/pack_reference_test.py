"""Recordings of cases are packed by optimizer, each with its case."""

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
    recorded, packed = tmp_path / "recorded", tmp_path / "packed"
    for name in ("adam/a", "adam/b", "sgd/a", "checkpoints/adam", "checkpoints/sgd"):
        Recorder(str(recorded / name), steps=1).step(params={"w": np.ones(2)}, grads={"w": 1.0})
        (recorded / name / "case.json").write_text(json.dumps(name))
    (recorded / "checkpoints/adam.msgpack").write_bytes(b"1")
    (packed / "checkpoints").mkdir(parents=True)
    monkeypatch.setattr(pack_reference, "_REFERENCE", packed)
    monkeypatch.setattr(sys, "argv", ["pack_reference", str(recorded)])
    pack_reference.main()
    assert (packed / "checkpoints/adam.msgpack").read_bytes() == b"1"
    cases = {
        str(file.relative_to(packed)): {name: run.index["case"] for name, run in runs.items()}
        for file, runs in ((file, read_packed(file)) for file in packed.rglob("*.npz"))
    }
    assert cases == {
        "adam.npz": {"adam/a": "adam/a", "adam/b": "adam/b"},
        "sgd.npz": {"sgd/a": "sgd/a"},
        "checkpoints/adam.npz": {"checkpoints/adam": "checkpoints/adam"},
        "checkpoints/sgd.npz": {"checkpoints/sgd": "checkpoints/sgd"},
    }
