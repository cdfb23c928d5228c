"""The fuzzer of checkpoints, for a while: what is damaged is read or refused."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.correspondence import UnsupportedSetting
from tools.checkpoint_fuzz import formats, outcome, survives, survives_folder, write


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert survives(data) in ("read", "refused")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (None, "read"),
        (CheckpointError("a", "b", "c", "d"), "refused"),
        (UnsupportedSetting("e"), "refused"),
        (ValueError("e"), "ValueError: e"),
        (RecursionError("e"), "RecursionError: e"),
    ],
    ids=repr,
)
def test_a_clear_error_alone_is_a_refusal(error: Exception | None, expected: str) -> None:
    def read() -> None:
        if error is not None:
            raise error

    assert outcome(read) == expected


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
