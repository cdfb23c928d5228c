# pyright: strict
"""Many claims at once, on all cores."""

import functools
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import VERDICTS, Proof
from equivalence_tests.proof.table import Task, is_held, statements
from equivalence_tests.sides.programs import silence_deprecations
from optax_bridge.correspondence import UnsupportedSetting


@dataclass(frozen=True)
class Outcome:
    """The result for one claim, as plain data that goes from one process to another."""

    task: Task
    claim: str | None
    verdict: str | None = None
    held: bool = True
    note: str = ""
    seconds: float = 0.0
    proofs: tuple[Json, ...] = ()
    text: str = ""


def prove_all(
    tasks: Sequence[Task], processes: int | None = None, *, details: bool = True
) -> Iterator[Outcome]:
    """Proves claims, and yields the outcome of each as soon as possible."""
    count = min(processes or _cores(), len(tasks))
    prove_one = functools.partial(prove_task, details=details)
    if count <= 1:
        yield from map(prove_one, tasks)
        return
    context = multiprocessing.get_context("spawn")  # JAX's threads do not outlive a fork
    with ProcessPoolExecutor(count, context, initializer=silence_deprecations) as pool:
        try:
            for done in as_completed([pool.submit(prove_one, task) for task in tasks]):
                yield done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _cores() -> int:
    """Returns how many cores this process may use; not every system says so of a process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prove_task(task: Task, *, details: bool = True) -> Outcome:
    """Proves one claim; its proofs as data, with their scopes, on request."""
    started, note = time.perf_counter(), ""
    try:
        claim, to_prove = statements(task)
    except UnsupportedSetting as error:
        return Outcome(task, None, note=str(error))
    proofs = list[Proof]()
    try:
        for statement in to_prove:
            proofs.append(
                prove_equivalence(
                    statement.legacy,
                    statement.recipe,
                    statement.params,
                    hyper_params=statement.hyper_params,
                    names=("legacy", task.recipe),
                )
            )
    except ProofError as error:
        proofs, note = [], str(error)
    verdicts = [proof.verdict for proof in proofs]
    verdict = max(verdicts, key=VERDICTS.index) if verdicts else None
    holds = is_held(claim, verdict, task.dtype)
    return Outcome(
        task,
        claim.verdict.value,
        verdict,
        holds,
        note,
        time.perf_counter() - started,
        tuple(proof.as_dict() for proof in proofs if details),
        "" if holds else "\n".join(map(str, proofs)),
    )
