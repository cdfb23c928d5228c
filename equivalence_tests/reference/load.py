"""Reads the recordings of the genuine flax.optim."""

import dataclasses
import functools
import json
from pathlib import Path

import numpy as np

from equivalence_tests.recordings.format import Recording, RecordingError, nest, read_packed
from equivalence_tests.reference.cases import Case
from equivalence_tests.reference.replay import Inputs, Tree
from optax_bridge._text import listing

FOLDER = Path(__file__).parent
_RECORD_AGAIN = "Record it again with `nox -s reference`, or restore it from version control."
_read = functools.cache(read_packed)


def recording(case: Case) -> Recording:
    """Reads the recording of one case."""
    path = checkpoint(case).with_suffix(".npz")
    if not case.name.startswith("checkpoints/"):
        path = FOLDER / f"{case.name.partition('/')[0]}.npz"
    runs = _read(path)
    if case.name not in runs:
        raise RecordingError(
            f"{path}: expected a recording of {case.name!r}, found {listing(list(runs))}. "
            f"{_RECORD_AGAIN}"
        )
    run = runs[case.name]
    # Through JSON, as the table itself has tuples where the file has lists.
    expected, recorded = json.loads(json.dumps(dataclasses.asdict(case))), run.index["case"]
    if changed := [key for key in expected if recorded.get(key) != expected[key]]:
        raise RecordingError(
            f"{path}: {case.name!r} was recorded with { {k: recorded.get(k) for k in changed} }, "
            f"the case table says { {k: expected[k] for k in changed} }. {_RECORD_AGAIN}"
        )
    return run


def checkpoint(case: Case) -> Path:
    """The file of a case that begins in mid-training."""
    return FOLDER / f"{case.name}.msgpack"


def initial(run: Recording) -> Tree:
    """The parameters before the first step."""
    return nest(run.steps[0].trees["params"])


def inputs(run: Recording) -> Inputs:
    """The gradients and the learning rates of each step."""
    rates = [[np.float32(rate) for rate in step.rates.values()] for step in run.steps]
    grads = [nest(step.trees["grads"]) for step in run.steps]
    return list(zip(grads, rates, strict=True))
