# pyright: strict
"""Many claims at once: on all cores, and those that were proved before by their certificates.

A proof is kept under a hash of both programs, of the prover's own code and of JAX's version. Where
it is there, the checker, which knows nothing of the prover, runs the programs against it, which
takes a fraction of the time. What is not proved, or told apart, is done again.
"""

import functools
import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from equivalence_tests.output_files import write_text
from equivalence_tests.proof.certificate.checker import CertificateError, check
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.reading.sides import as_functions, check_inputs, trace_side
from equivalence_tests.proof.result import IDENTICAL, REALS, VERDICTS
from equivalence_tests.proof.table import Statement, Task, is_held, statements
from equivalence_tests.sides.programs import silence_deprecations
from optax_bridge.correspondence import UnsupportedSetting


@dataclass(frozen=True)
class Outcome:
    """The result for one claim, as plain data that goes from one process to another.

    Attributes:
      task: the claim.
      claim: the verdict that the correspondence claims; None if there is no such recipe.
      verdict: that of the weakest proof; None without a proof.
      held: whether what is proved is what is claimed, or more.
      note: why there is no proof.
      seconds: time taken.
      certificates: of the proofs.
      text: the proofs as text.
      remembered: how many of the certificates were checked instead of proved again.
    """

    task: Task
    claim: str | None
    verdict: str | None = None
    held: bool = True
    note: str = ""
    seconds: float = 0.0
    certificates: tuple[Json, ...] = ()
    text: str = ""
    remembered: int = 0


def prove_all(
    tasks: Sequence[Task], folder: Path | None = None, processes: int | None = None
) -> Iterator[Outcome]:
    """Proves claims, and yields the outcome of each as soon as possible.

    Args:
      tasks: the claims.
      folder: where certificates are kept; None to prove everything.
      processes: how many to use, by default one for each core that this process may use.
    """
    count = min(processes or _cores(), len(tasks))
    prove_one = functools.partial(prove_task, folder=folder)
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


def prove_task(task: Task, folder: Path | None = None, *, certified: bool = True) -> Outcome:
    """Proves one claim, or checks its stored certificates.

    Args:
      task: the claim.
      folder: where certificates are kept; None to prove it.
      certified: whether the outcome has the certificates, which take longer than most proofs.
    """
    started = time.perf_counter()
    try:
        claim, asked = statements(task)
    except UnsupportedSetting as error:
        return Outcome(task, None, note=str(error))
    certificates, texts, remembered = list[Json](), list[str](), 0
    verdicts = list[str]()
    try:
        for each in asked:
            checked = None if folder is None else _checked_certificate(folder, each)
            if checked is not None:
                certificates.append(checked)
                verdicts.append(str(checked["verdict"]))
                remembered += 1
                continue
            proof = prove_equivalence(
                each.legacy,
                each.recipe,
                each.params,
                hyper_params=each.hyper_params,
                names=("legacy", task.recipe),
            )
            verdicts.append(proof.verdict)
            if certified:
                certificates.append(proof.as_dict())
                texts.append(str(proof))
            if folder is not None and proof.verdict in (IDENTICAL, REALS):
                folder.mkdir(parents=True, exist_ok=True)
                write_text(_file_of(folder, each), proof.to_json())
        note = ""
    except ProofError as error:
        certificates, verdicts, note = [], [], str(error)
    verdict = max(verdicts, key=VERDICTS.index) if verdicts else None
    return Outcome(
        task,
        claim.verdict.value,
        verdict,
        is_held(claim, verdict, task.dtype),
        note,
        time.perf_counter() - started,
        tuple(certificates),
        "\n".join(texts),
        remembered,
    )


def _checked_certificate(folder: Path, statement: Statement) -> Json | None:
    """Returns the stored certificate of a statement once it is checked; None without one."""
    file = _file_of(folder, statement)
    try:
        certificate = json.loads(file.read_text(encoding="utf-8"))
        sides = statement.legacy, statement.recipe, statement.params
        check(certificate, *sides, hyper_params=statement.hyper_params, points=1, steps=2)
    except (OSError, ValueError, KeyError, TypeError, CertificateError):
        return None
    return certificate


def _file_of(folder: Path, statement: Statement) -> Path:
    return folder / f"{fingerprint(statement)}.json"


def fingerprint(statement: Statement) -> str:
    """Returns a hash of both programs of a statement, of the prover and of JAX's version."""
    digest = hashlib.sha256(_prover_hash().encode())
    inputs = check_inputs(statement.params, statement.hyper_params)
    for make in as_functions((statement.legacy, statement.recipe), statement.hyper_params):
        program = trace_side(make, inputs, "side")
        parts: list[object] = [program.paths, program.avals, program.asked, inputs.numbers]
        for jaxpr in (program.start, program.step):
            parts.append(str(jaxpr))
            parts += [np.asarray(const).tobytes() for const in jaxpr.consts]
        digest.update(repr(parts).encode())
    return digest.hexdigest()


@functools.cache
def _prover_hash() -> str:
    digest = hashlib.sha256(jax.__version__.encode())
    for file in sorted(Path(__file__).parent.rglob("*.py")):
        if not file.name.endswith("_test.py"):
            digest.update(file.read_bytes())
    return digest.hexdigest()
