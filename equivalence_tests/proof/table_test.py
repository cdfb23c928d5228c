from pathlib import Path

import pytest

from equivalence_tests.proof.result import IDENTICAL
from equivalence_tests.proof.table import DTYPES, Task, prove_task, tasks
from optax_bridge.correspondence import ENTRIES

FIRST = [task for task in tasks() if task.case == 0 and task.dtype == DTYPES[0]]


@pytest.mark.parametrize("task", FIRST, ids=str)
def test_what_is_claimed_is_proved(task: Task):
    row = prove_task(task)
    assert row.held, "\n".join([row.note, *map(str, row.proofs)])
    if task.recipe == "exact":
        assert row.verdict == IDENTICAL


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_in_half_precision_too(dtype: str):
    assert prove_task(Task("adam", 1, "exact", dtype)).verdict == IDENTICAL
    assert prove_task(Task("momentum", 2, "stock", dtype)).verdict == IDENTICAL


def test_the_table_has_every_case():
    found = {(task.entry, task.case) for task in tasks()}
    assert found == {(n, i) for n, entry in ENTRIES.items() for i in range(len(entry.cases))}
    assert {task.dtype for task in tasks(["exact"])} == set(DTYPES)
    assert [str(task) for task in tasks(["sgd", "stock", "bfloat16"])] == ["sgd-0-stock-bfloat16"]


def test_claims_are_no_longer_held_than_proved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import dataclasses

    from optax_bridge.entry import identical

    entry = ENTRIES["adam"]
    bold = tuple(dataclasses.replace(stock, claim=identical()) for stock in entry.stock)
    monkeypatch.setitem(ENTRIES, "adam", dataclasses.replace(entry, stock=bold))
    row = prove_task(Task("adam", 0, "stock", "float32"))
    assert row.verdict == "equal over the reals"
    assert not row.held
