# pyright: strict
"""Many claims at once: on all cores, and those that were proved before by their certificates.

A proof is kept under a hash of the claim, of this project's source and Optax's, and of the versions
of the packages below. Where it is there, the checker, which knows nothing of the prover, runs the
programs against it, or both sides along its example, which takes a fraction of the time. What the
checker does not confirm is proved again.
"""

import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax.numpy as jnp

from equivalence_tests.output_files import write_text
from equivalence_tests.proof.certificate.check import check
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.result import IDENTICAL, REALS, UNDECIDED, VERDICTS
from equivalence_tests.proof.table import Statement, Task, is_held, statements
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
    certificates: tuple[Json, ...] = ()
    text: str = ""
    remembered: int = 0


def prove_all(
    tasks: Sequence[Task], folder: Path | None = None, processes: int | None = None
) -> Iterator[Outcome]:
    """Proves claims, and yields the outcome of each as soon as possible."""
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
    """Proves one claim, or checks its stored certificates."""
    started = time.perf_counter()
    try:
        claim, asked = statements(task)
    except UnsupportedSetting as error:
        return Outcome(task, None, note=str(error))
    certificates, texts, remembered = list[Json](), list[str](), 0
    verdicts = list[str]()
    try:
        for number, each in enumerate(asked):
            file = None if folder is None else _file_of(folder, task, number)
            checked = None if file is None else _checked_certificate(file, each)
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
            if file is not None and proof.verdict != UNDECIDED:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_text(file, proof.to_json())
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


def _checked_certificate(file: Path, statement: Statement) -> Json | None:
    """Returns the certificate in a file once it is checked; None without one that holds."""
    sides = statement.legacy, statement.recipe, statement.params
    try:
        certificate = json.loads(file.read_text(encoding="utf-8"))
        checked = check(
            certificate, *sides, hyper_params=statement.hyper_params, points=1, steps=2, shapes=1
        )
    except (OSError, ValueError, KeyError, TypeError, ProofError):
        return None
    decided = certificate["verdict"] in (IDENTICAL, REALS) or checked.examples > 0
    return certificate if decided else None


def _file_of(folder: Path, task: Task, number: int) -> Path:
    digest = hashlib.sha256(f"{sources_hash()} {task} {number}".encode())
    return folder / f"{digest.hexdigest()}.json"


@functools.cache
def sources_hash() -> str:
    """Returns a hash of all that makes a claim's programs, and of the prover."""
    versions = [version(name) for name in ("jax", "jaxlib", "flax", "numpy", "python-flint")]
    options = [sys.version, *versions, str(jnp.result_type(float))]
    digest = hashlib.sha256(repr(options).encode())
    for package in ("legacy_optim", "optax_bridge", "equivalence_tests", "optax"):
        folder = Path(str(importlib.import_module(package).__file__)).parent
        for file in sorted(folder.rglob("*.py")):
            if not file.name.endswith("_test.py"):
                digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    return digest.hexdigest()
