"""The fuzzer of checkpoints, for a while: what is damaged is read or refused."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.checkpoint_fuzz import (
    Format,
    damage,
    formats,
    main,
    mutate,
    survives,
    survives_folder,
    write,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert survives(data) in ("read", "refused")


# Inputs of each kind, as many as take about the same time.
INPUTS = {"msgpack": 300, "npz": 150, "t5x": 100, "orbax": 80}


@pytest.mark.parametrize(("kind", "count"), INPUTS.items())
def test_damaged_checkpoint_is_read_or_refused(kind: str, count: int) -> None:
    for number in range(count):
        assert survives_folder(kind, number) in ("read", "refused"), number


@pytest.mark.parametrize("kind", INPUTS)
def test_what_the_fuzzer_damages_is_whole_before(kind: str, tmp_path: Path) -> None:
    for number, base in enumerate(formats()[kind].bases):
        folder = tmp_path / str(number) / "checkpoint_1"
        write(folder, base)
        is_file = kind in ("msgpack", "npz")
        formats()[kind].read(folder / next(iter(base)) if is_file else folder)


def test_what_is_damaged_is_no_longer_whole() -> None:
    data, (base, *_) = bytes(range(200)), formats()["t5x"].bases
    generators = [np.random.default_rng([0, number]) for number in range(60)]
    assert [mutate(data, rng) for rng in generators].count(data) == 0
    assert [damage(base, rng) for rng in generators].count(base) <= 3  # exchanged with itself


def test_what_escapes_is_printed_by_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[bytes] = []

    def fails(path: Path) -> None:
        read.append(path.read_bytes())
        raise ValueError("gone")

    monkeypatch.setitem(formats(), "msgpack", Format(formats()["msgpack"].bases[:1], fails))
    monkeypatch.setattr(sys, "argv", ["checkpoint_fuzz", "--count", "12", "--start", "5"])
    main()
    *escaped, summary = capsys.readouterr().out.splitlines()
    assert escaped == [f"input {number}: ValueError: gone" for number in range(5, 17)]
    assert "12 inputs" in summary and " 12 escaped" in summary
    assert len(read) == 13 and len(set(read)) == 12  # the first one warms up
