"""Trajectories of the suite in a file: recorded on one platform, compared on another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.recordings.bounds import CLOSED_LOOP, OPEN_LOOP
from equivalence_tests.recordings.format import (
    Recording,
    RecordingError,
    host_leaves,
    named_leaves,
    of_stacks,
    pack,
    path_text,
    read_packed,
)
from equivalence_tests.sides.inputs import digits
from equivalence_tests.suite.case import Result
from optax_bridge.correspondence import Verdict
from optax_bridge.metadata.trees import PyTree

NOT_RUN = "recorded, but not run here"


@dataclass(frozen=True)
class Against:
    """One run here and the recorded one."""

    id: str
    comparison: Comparison | None
    verdict: Verdict | None
    note: str = ""


def save(file: Path, results: Sequence[Result], environment: Mapping[str, object]) -> None:
    """Writes the trajectory of each result that has one."""
    pack(
        {
            str(result.case): of_stacks(str(file), environment, _trees(result.trajectory))
            for result in results
            if result.trajectory is not None
        },
        file,
    )


def load(file: Path) -> dict[str, Recording]:
    """Reads a file of `save`."""
    try:
        if not (recordings := read_packed(file)):
            raise RecordingError("Nothing is recorded in it")
        return recordings
    except RecordingError as error:
        raise RecordingError(
            f"{file}: expected a file written by `optax-bridge check --record`. {error}"
        ) from None


def against(results: Sequence[Result], recordings: Mapping[str, Recording]) -> list[Against]:
    """Compares the trajectories here with the recorded ones, one outcome for each of either."""
    outcomes = []
    for result in results:
        if result.trajectory is None:
            continue
        recorded = recordings.get(str(result.case))
        if recorded is None:
            outcomes.append(Against(str(result.case), None, None, "not in the recording"))
            continue
        closed = result.case.problem in digits.MODELS
        left_out = digits.without_gradient(result.case.problem) if closed else ()
        sides = (_leaves(recorded), _leaves(of_stacks("here", {}, _trees(result.trajectory))))
        try:
            comparison = compare(
                *({name: side[name] for name in side if name not in left_out} for side in sides)
            )
        except ValueError as error:
            outcomes.append(Against(str(result.case), None, Verdict.DIFFERENT, str(error)))
            continue
        note = f"{', '.join(left_out)}: left out, its gradient is rounding" if left_out else ""
        claim = CLOSED_LOOP if closed else OPEN_LOOP
        outcomes.append(Against(str(result.case), comparison, comparison.verdict(claim), note))
    here = {str(result.case) for result in results}
    outcomes += [Against(name, None, None, NOT_RUN) for name in recordings if name not in here]
    return outcomes


def _trees(trajectory: PyTree) -> dict[str, dict[tuple[Any, ...], np.ndarray]]:
    """A trajectory as the trees of a recording; what is beside its parameters is a state."""
    trees: dict[str, dict[tuple[Any, ...], np.ndarray]] = {"new_params": {}, "new_state": {}}
    for path, stack in host_leaves(trajectory).items():
        is_param = path[0] == "params"
        trees["new_params" if is_param else "new_state"][path[int(is_param) :]] = stack
    return trees


def _leaves(recording: Recording) -> dict[str, np.ndarray]:
    states = recording.stacked("new_state")
    return {
        **named_leaves(recording.stacked("new_params")),
        **{path_text(path[1:], str(path[0])): leaf for path, leaf in states.items()},
    }
