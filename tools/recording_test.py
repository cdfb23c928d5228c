"""What was recorded is what the recorders draw today."""

import dataclasses
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from equivalence_tests.recordings.format import Step, read_packed
from equivalence_tests.recordings.recorder import Recorder
from equivalence_tests.reference import load
from equivalence_tests.reference.cases import CASES, CHECKPOINTS, HALF_PRECISION
from equivalence_tests.suite import witness
from equivalence_tests.suite.case import SYNTHETIC, Result
from optax_bridge.correspondence import TORCH, claim
from tools import pack_reference, record_seen, record_torch, reference_inputs


def _bytes(steps: Iterable[Step], tree: str = "grads") -> list[dict[str, bytes]]:
    """The arrays of each step."""
    flats = [step.trees[tree] for step in steps]
    return [{"/".join(map(str, p)): np.asarray(x).tobytes() for p, x in f.items()} for f in flats]


def test_what_was_recorded_is_what_is_drawn() -> None:
    for case in (*CASES, *HALF_PRECISION, *CHECKPOINTS):
        run, (params, grads) = load.recording(case), reference_inputs.draw(case)
        rates = reference_inputs.learning_rates(case)
        start = len(rates) - len(run.steps)
        assert [list(step.rates.values()) for step in run.steps] == rates[start:].tolist(), case
        drawn = [{name: x[i].tobytes() for name, x in grads.items()} for i in range(len(rates))]
        assert _bytes(run.steps) == drawn[start:], case
        initial = {name: leaf.tobytes() for name, leaf in params.items()}
        assert start or _bytes(run.steps[:1], "params") == [initial], case
    for entry in TORCH.values():
        for dtype in witness.DTYPES:
            steps = record_torch.problem(entry, dtype).steps
            recorded = witness.recordings()[witness.case_name(entry, 0, dtype)].steps
            assert _bytes(recorded) == _bytes(steps), entry.name
            assert _bytes(recorded[:1], "params") == _bytes(steps[:1], "params"), entry.name


def test_recordings_are_packed_by_their_last_name_with_their_cases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("adam/plain", "adam/decay", "checkpoints/adam"):
        recorder = Recorder(tmp_path / "recorded" / name, steps=1)
        leaf = {"w": np.full(2, len(name), np.float32)}
        recorder.step(params=leaf, grads=leaf, new_params=leaf, new_state={"step": 1})
        (tmp_path / "recorded" / name / "case.json").write_text(json.dumps({"name": name}))
    (tmp_path / "recorded" / "checkpoints" / "adam.msgpack").write_bytes(b"saved")
    (tmp_path / "checkpoints").mkdir()
    monkeypatch.setattr(pack_reference, "_REFERENCE", tmp_path)
    monkeypatch.setattr(sys, "argv", ["pack_reference", str(tmp_path / "recorded")])
    pack_reference.main()
    assert (tmp_path / "checkpoints" / "adam.msgpack").read_bytes() == b"saved"
    for stem, names in {"adam": ["adam/decay", "adam/plain"], "checkpoints/adam": [""]}.items():
        runs = read_packed(tmp_path / f"{stem}.npz")
        assert sorted(runs) == [name or stem for name in names]
        for name, run in runs.items():
            assert run.index["case"] == {"name": name}
            assert _bytes(run.steps) == [{"w": np.full(2, len(name), np.float32).tobytes()}]


def test_what_is_seen_is_written_only_where_every_claim_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    optax = [check for check in record_seen.checks() if check.recipe == "optax"]
    chosen = [check for check in optax if check.problem == SYNTHETIC][:1]
    others = [check for check in optax if check.problem != SYNTHETIC][:1]
    monkeypatch.setattr(record_seen, "checks", lambda: [*chosen, *others])
    run, written, results = record_seen.run, list[tuple[Path, str]](), list[Result]()
    monkeypatch.setattr(record_seen, "run", lambda group: results.extend(run(group)) or results)
    monkeypatch.setattr(record_seen, "write_text", lambda *args: written.append(args))
    record_seen.main()
    ((file, text),) = written
    assert file == Path(claim.__file__).with_name(claim.FILE)
    assert text.endswith("}\n") and capsys.readouterr().out == f"{file} written\n"
    recorded = json.loads(file.read_text(encoding="utf-8"))
    assert json.loads(text).keys() <= recorded.keys() and text != "{}\n"
    broken = [dataclasses.replace(result, proof_held=False) for result in results]
    monkeypatch.setattr(record_seen, "run", lambda group: broken)
    with pytest.raises(SystemExit, match=f"do not hold: {re.escape(str(broken[0].case))}$"):
        record_seen.main()
    assert len(written) == 1
