import json
from pathlib import Path

import pytest

from equivalence_tests.proof import claims
from equivalence_tests.proof.claims import prove_all, prove_task
from equivalence_tests.proof.table import Task

TASK = Task("sgd", 0, "exact", "float32")


def test_what_was_proved_before_is_checked_by_its_certificate(tmp_path: Path):
    first, second = prove_task(TASK, tmp_path), prove_task(TASK, tmp_path)
    assert (first.verdict, first.remembered) == ("identical", 0)
    assert (second.verdict, second.remembered) == ("identical", len(second.certificates))
    assert len(list(tmp_path.iterdir())) == len(second.certificates) == 2


def test_a_certificate_of_something_else_is_not_believed(tmp_path: Path):
    prove_task(Task("momentum", 0, "exact", "float32"), tmp_path)
    other = json.loads(next(tmp_path.iterdir()).read_text())
    prove_task(TASK, tmp_path / "of sgd")
    for file in (tmp_path / "of sgd").iterdir():
        file.write_text(json.dumps(other | {"verdict": "identical"}))
    assert prove_task(TASK, tmp_path / "of sgd").remembered == 0
    for file in (tmp_path / "of sgd").iterdir():
        file.write_text("{")
    assert prove_task(TASK, tmp_path / "of sgd").remembered == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_claims_are_proved_in_several_processes(processes: int):
    tasks = [TASK, Task("momentum", 0, "stock", "float32")]
    outcomes = {outcome.task: outcome for outcome in prove_all(tasks, processes=processes)}
    assert outcomes.keys() == set(tasks)
    assert all(outcome.held and outcome.certificates for outcome in outcomes.values())


def test_what_was_told_apart_before_is_told_apart_by_its_example(tmp_path: Path):
    task = Task("adagrad", 0, "stock", "float32")
    first, second = prove_task(task, tmp_path), prove_task(task, tmp_path)
    assert (first.verdict, first.remembered) == ("different", 0)
    assert (second.verdict, second.remembered) == ("different", 1)


def test_a_proof_is_not_kept_for_another_prover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prove_task(TASK, tmp_path)
    monkeypatch.setattr(claims, "sources_hash", lambda: "of other sources")
    assert prove_task(TASK, tmp_path).remembered == 0
