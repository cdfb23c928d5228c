"""A sample; `python -m tools.prover_fuzz` runs as many as wanted."""

import sys

import pytest

from tools import prover_fuzz


def test_rewrites_are_proved_and_no_fault_that_runs_tell_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    sample = ["prover_fuzz", "--faults", "8", "--rewrites", "12", "--seed", "3"]
    monkeypatch.setattr(sys, "argv", sample)
    assert prover_fuzz.main() == 0
    assert "faults that runs tell apart: " in capsys.readouterr().out
    for verdict in (prover_fuzz.IDENTICAL, prover_fuzz.REALS):
        proved = [("adam", "a planted fault", True, verdict)]
        monkeypatch.setattr(prover_fuzz, "faults", lambda *_, rows=proved: rows)
        assert prover_fuzz.main() == 1
        assert "PROVED: adam: a planted fault" in capsys.readouterr().out
