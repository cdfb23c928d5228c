"""The fuzzer of checkpoints, for a while: what is damaged is read or refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import checkpoint_fuzz as fuzz


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert fuzz.survives(data) in ("read", "refused")


# Inputs of each kind, as many as take about the same time.
@pytest.mark.parametrize(
    ("kind", "count"), [("msgpack", 300), ("npz", 150), ("t5x", 100), ("orbax", 80)]
)
def test_damaged_checkpoint_is_read_or_refused(kind: str, count: int, tmp_path: Path) -> None:
    for number, base in enumerate(fuzz.formats()[kind].bases):  # each whole, before the damage
        folder = tmp_path / str(number) / "checkpoint_1"
        fuzz.write(folder, base)
        is_file = kind in ("msgpack", "npz")
        fuzz.formats()[kind].read(folder / next(iter(base)) if is_file else folder)
    for number in range(count):
        assert fuzz.survives_folder(kind, number) in ("read", "refused"), number


def test_what_is_damaged_is_no_longer_whole() -> None:
    data, (base, *_) = bytes(range(200)), fuzz.formats()["t5x"].bases
    generators = [np.random.default_rng([0, number]) for number in range(60)]
    assert [fuzz.mutate(data, rng) for rng in generators].count(data) == 0
    assert [fuzz.damage(base, rng) for rng in generators].count(base) <= 3  # exchanged with itself


def test_what_escapes_is_printed_by_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: dict[bytes, str] = {}

    def fails(path: Path) -> None:
        read[path.read_bytes()] = path.name
        raise ValueError("gone")

    msgpack = fuzz.Format(fuzz.formats()["msgpack"].bases[:2], fails)
    monkeypatch.setitem(fuzz.formats(), "msgpack", msgpack)
    monkeypatch.setattr(sys, "argv", ["checkpoint_fuzz", "--count", "12", "--start", "5"])
    fuzz.main()
    *escaped, summary = capsys.readouterr().out.splitlines()
    assert escaped == [f"input {number}: ValueError: gone" for number in range(5, 17)]
    assert "12 inputs" in summary and " 12 escaped" in summary
    assert len(read) == 12 and len({*read.values()}) == 2  # of both files
