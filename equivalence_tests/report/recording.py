"""Trajectories of the suite in a file: recorded on one platform, compared on another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from equivalence_tests.recordings.bounds import CLOSED_ULP, OPEN_ULP
from equivalence_tests.recordings.format import (
    Recording,
    Step,
    host_leaves,
    pack,
    path_text,
)
from equivalence_tests.recordings.stages import Stage, not_judged, stage_between
from equivalence_tests.sides.inputs import digits
from equivalence_tests.suite.case import Result
from optax_bridge.metadata.trees import PyTree

NOT_RUN = "recorded, but not run here"


def save(file: Path, results: Sequence[Result], environment: Mapping[str, object]) -> None:
    """Writes the trajectory of each result that has one."""
    ran = [result for result in results if result.trajectory is not None]
    runs = {str(result.case): _steps_of(result.trajectory) for result in ran}
    pack({name: Recording(str(file), environment, steps) for name, steps in runs.items()}, file)


def _steps_of(trajectory: PyTree) -> list[Step]:
    """The steps of a trajectory; what is beside its parameters is a state."""
    leaves = host_leaves(trajectory)
    params = {path[1:]: leaf for path, leaf in leaves.items() if path[0] == "params"}
    state = {path: leaf for path, leaf in leaves.items() if path[0] != "params"}
    return [
        Step(number, {
            tree: {path: np.asarray(leaf[number]) for path, leaf in flat.items()}
            for tree, flat in (("new_params", params), ("new_state", state))
        })
        for number in range(len(next(iter(leaves.values()))))
    ]  # fmt: skip


def against(results: Sequence[Result], recordings: Mapping[str, Recording]) -> list[Stage]:
    """Compares the trajectories here with the recorded ones, one outcome for each of either."""
    ran = {str(r.case): r for r in results if r.trajectory is not None}
    outcomes = [
        _between(name, result, recordings[name])
        if name in recordings
        else not_judged(name, "not in the recording")
        for name, result in ran.items()
    ]
    here = {str(result.case) for result in results}
    return outcomes + [not_judged(name, NOT_RUN) for name in recordings if name not in here]


def _between(name: str, result: Result, recorded: Recording) -> Stage:
    """The outcome of one trajectory and the recorded one."""
    closed = result.case.problem in digits.MODELS
    left_out = digits.without_gradient(result.case.problem) if closed else ()
    there = {("params", *path): x for path, x in recorded.stacks("new_params").items()}
    there |= recorded.stacks("new_state")
    sides = (
        {path_text(path[1:], str(path[0])): leaf for path, leaf in flat.items()}
        for flat in (there, host_leaves(result.trajectory))
    )
    sides = ({n: side[n] for n in side if n not in left_out} for side in sides)
    stage = stage_between(name, sides, recorded.steps, CLOSED_ULP if closed else OPEN_ULP)
    note = f"{', '.join(left_out)}: left out, its gradient is rounding" if left_out else ""
    return replace(stage, text="; ".join(filter(None, [stage.text, note])))
