"""The fuzzer of checkpoints, for a while: what is damaged is read or refused."""

import re
import sys
import time
from pathlib import Path

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import checkpoint_fuzz as fuzz


def test_an_error_of_inspect_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "_inspect", {}.__getitem__)
    assert fuzz.survives_folder("msgpack", 0).startswith("KeyError")
    assert fuzz.outcome(lambda: int("x")).startswith("ValueError: invalid literal")


def test_what_hangs_is_printed_by_its_number_and_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    naps = iter([0, 0, 9])
    monkeypatch.setattr(fuzz, "_inspect", lambda _: time.sleep(next(naps)))
    monkeypatch.setattr(fuzz, "SLOW", 1)
    arguments = ["fuzz", "--format", "npz", "--start", "5", "--count", "2", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    fuzz.main()
    printed = re.sub(r"\d+ (s|ms|MiB|before)\b", r"# \1", capsys.readouterr().out)
    assert printed == (
        "input 6: TimeoutError: more than 1 seconds\n"
        "npz, seed 1: 2 inputs in # s: 1 refused, 1 escaped; the slowest # ms; "
        "peak # MiB resident, # before\n"
    )


FILES: fuzz.Files = {
    "checkpoint": b'{"shape": [3], "b": null}',
    "a/.zarray": b'{"chunks": [2]}',
    "a/index": msgpack.packb({"a": [1, 2], "b": {"c": None}}),
    "a/0": b"0123456789",
}


def lines() -> list[str]:
    """The damage to `FILES` of each number: run as a program, this file prints them."""
    shown: list[str] = []
    for number in range(120):
        damaged = fuzz.damage(FILES, np.random.default_rng([0, number]))
        changed = [name for name in {**FILES, **damaged} if damaged.get(name, 0) != FILES.get(name)]
        texts = {name: repr(damaged.get(name, "gone")) for name in changed}
        short = (f"{name}: {text if len(text) < 90 else '...'}" for name, text in texts.items())
        shown.append(f"{number} {'; '.join(sorted(short))}".rstrip())
    return shown


def test_damage_is_of_every_kind_and_follows_from_the_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = Path(__file__).parent / "testdata" / "damage.txt"
    assert lines() == recorded.read_text(encoding="utf-8").splitlines()
    written: list[fuzz.Files] = []
    bases, read = [FILES, {"checkpoint": b"[1, 2, 3]"}], list[Path]()
    monkeypatch.setitem(fuzz._FORMATS, "t5x", fuzz.Format(bases, read.append))
    monkeypatch.setattr(fuzz, "write", lambda folder, files: written.append(files))
    monkeypatch.setattr(fuzz, "_inspect", lambda path: None)
    for seed, number in ((0, 0), (0, 3), (1, 3), (1, 3)):
        assert fuzz.survives_folder("t5x", number, seed) == "read"
        rng = np.random.default_rng([seed, number])
        assert written.pop() == fuzz.damage(bases[number % 2], rng)
        assert read[-1].name == "checkpoint_1" and not read[-1].parent.exists()


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


if __name__ == "__main__":
    print(*lines(), sep="\n")
