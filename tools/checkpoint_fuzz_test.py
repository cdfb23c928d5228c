"""The fuzzer of checkpoints, for a while: what is damaged is read or refused."""

import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import checkpoint_fuzz as fuzz


def test_an_error_of_inspect_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "_inspect", {}.__getitem__)
    assert fuzz.survives_folder("msgpack", 0).startswith("KeyError")


def test_what_hangs_is_printed_by_its_number_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    naps = iter([0, 0, 9])
    monkeypatch.setattr(fuzz, "_inspect", lambda _: time.sleep(next(naps)))
    monkeypatch.setattr(fuzz, "SLOW", 1)
    arguments = ["fuzz", "--format", "npz", "--start", "5", "--count", "2", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    fuzz.main()
    told, counts = capsys.readouterr().out.splitlines()
    assert told == "input 6: TimeoutError: more than 1 seconds"
    assert counts.startswith("npz, seed 1: 2 inputs in ") and "1 escaped" in counts


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
    outcomes = [fuzz.survives_folder(kind, number) for number in range(count)]
    assert set(outcomes) == {"read", "refused"}, outcomes  # both, as damage is of every kind
