"""What was recorded is what the recorders draw today."""

from collections.abc import Iterable

import numpy as np

from equivalence_tests.recordings.format import Step
from equivalence_tests.reference import load
from equivalence_tests.reference.cases import CASES, CHECKPOINTS, HALF_PRECISION
from equivalence_tests.suite import witness
from optax_bridge.correspondence import TORCH
from tools import record_torch, reference_inputs


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
