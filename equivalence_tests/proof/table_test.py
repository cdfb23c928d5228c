import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import legacy_optim
from equivalence_tests.proof.claims import prove_all, prove_task
from equivalence_tests.proof.result import IDENTICAL
from equivalence_tests.proof.table import DTYPES, Statement, Task, is_held, statements, tasks
from optax_bridge.correspondence import ENTRIES, TORCH
from optax_bridge.correspondence.claim import identical

TASK = Task("sgd", 0, "exact", "float32")


@pytest.mark.parametrize("processes", [1, 2])
def test_claims_are_proved_in_several_processes(processes: int):
    tasks = [TASK, Task("momentum", 0, "optax", "float32")]
    outcomes = {outcome.task: outcome for outcome in prove_all(tasks, processes=processes)}
    assert outcomes.keys() == set(tasks)
    assert all(outcome.held and outcome.proofs for outcome in outcomes.values())


FIRST = [task for task in tasks() if task.case == 0 and task.dtype == DTYPES[0]]


@pytest.mark.parametrize("task", FIRST, ids=str)
def test_what_is_claimed_is_proved(task: Task):
    row = prove_task(task)
    assert row.held, row.note or row.text
    if task.recipe == "exact":
        assert row.verdict == IDENTICAL


OTHERS = [
    # A root of less than zero is NaN, in flax.optim too: seen by the proof, by few gradients.
    Task("rmsprop", 1, "exact", "float32"),
    *(Task("adam", 1, "exact", dtype) for dtype in DTYPES[1:]),
    *(Task("momentum", 2, "optax", dtype) for dtype in DTYPES[1:]),
]


@pytest.mark.parametrize("task", OTHERS, ids=str)
def test_other_cases_and_half_precision_are_identical_too(task: Task):
    assert prove_task(task).verdict == IDENTICAL


def test_the_table_has_every_case():
    found = {(task.entry, task.case) for task in tasks()}
    assert found == {(n, i) for n, entry in ENTRIES.items() for i in range(len(entry.cases))}
    assert {task.dtype for task in tasks(["exact"])} == set(DTYPES)
    assert [str(task) for task in tasks(["sgd", "optax", "bfloat16"])] == ["sgd-0-optax-bfloat16"]


def test_a_claim_of_more_than_is_proved_is_not_held(monkeypatch: pytest.MonkeyPatch):
    entry = ENTRIES["adam"]
    bold = tuple(dataclasses.replace(variant, claim=identical()) for variant in entry.optax)
    monkeypatch.setitem(ENTRIES._entries, "adam", dataclasses.replace(entry, optax=bold))  # type: ignore[attr-defined]
    row = prove_task(Task("adam", 0, "optax", "float32"))
    assert row.verdict == "equal over the reals"
    assert not row.held


def test_the_weaker_of_two_statements_counts_and_is_told(monkeypatch: pytest.MonkeyPatch):
    claim, _ = statements(TASK)
    both = [Statement(optax.sgd(0.1), optax.sgd(rate), PARAMS, None) for rate in (0.1, 0.2)]
    monkeypatch.setattr("equivalence_tests.proof.claims.statements", lambda task: (claim, both))
    row = prove_task(TASK)
    assert (row.verdict, row.held) == ("different", False)
    assert "after step 1" in row.text


# Names that are asked for -> the entries of their claims; a name of another origin narrows none.
ASKED: dict[tuple[str, ...], set[str]] = {
    (): {*ENTRIES},
    ("torch", "float32"): {*TORCH},
    ("torch.sgd",): {"torch.sgd"},
    ("torch", "torch.sgd"): {"torch.sgd"},
    ("torch", "adam"): {*TORCH, "adam"},
    ("torch", "adam", "bfloat16"): {*TORCH, "adam"},
}


@pytest.mark.parametrize("names", ASKED)
def test_the_claims_about_other_origins_are_asked_for_by_name(names: tuple[str, ...]):
    assert {task.entry for task in tasks(names)} == ASKED[names]
    assert {task.dtype for task in tasks(names)} == ({*names} & {*DTYPES} or {*DTYPES})


def test_a_claim_about_pytorch_is_held():
    outcome = prove_task(Task("torch.sgd", 2, "optax", "float32"))
    assert outcome.held, outcome.note


def test_a_difference_that_a_dtype_hides_is_not_claimed_there():
    claim, _ = statements(Task("torch.radam", 0, "optax", "float32"))
    assert is_held(claim, "not decided", "float16")
    assert not is_held(claim, None, "float16")
    assert not any(is_held(claim, "not decided", dtype) for dtype in ("float32", "bfloat16"))


PARAMS = {"w": jnp.ones((2, 2))}


def test_what_is_proved_passes(assert_proved: Callable[..., Any]):
    proof = assert_proved(legacy_optim.Adam(0.1), optax.adam(0.1), PARAMS)
    assert proof.verdict == "equal over the reals"
    numbers = {"rate": 0.1}
    assert_proved(
        lambda hp: legacy_optim.Momentum(hp["rate"]),
        lambda hp: optax.sgd(hp["rate"], momentum=0.9),
        PARAMS,
        at_most="identical",
        hyper_params=numbers,
    )


def test_what_is_not_fails(assert_proved: Callable[..., Any]):
    message = r"(?s)^equal over.*\nexpected identical at most$"
    with pytest.raises(pytest.fail.Exception, match=message):
        assert_proved(legacy_optim.Adam(0.1), optax.adam(0.1), PARAMS, at_most="identical")
    with pytest.raises(pytest.fail.Exception, match="after step 1, params"):
        assert_proved(optax.sgd(0.1), optax.sgd(0.2), PARAMS)
    with pytest.raises(ValueError, match="at_most is 'rounding only'"):
        assert_proved(optax.sgd(0.1), optax.sgd(0.1), PARAMS, at_most="rounding only")
