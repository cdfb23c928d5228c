"""Trajectories of the suite in a file: recorded on one platform, compared on another."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from equivalence_tests.recordings.format import (
    Flat,
    Recording,
    Step,
    flat_like,
    pack,
    path_text,
)
from equivalence_tests.recordings.stages import (
    CLOSED_ULP,
    OPEN_ULP,
    Stage,
    not_judged,
    stage_between,
)
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
    """The steps of a trajectory: its parameters, its state and what else it has, after each."""
    leaves = _arrays(trajectory)
    steps = [Step(number, {}) for number in range(len(next(iter(leaves.values()))))]
    for (tree, *path), leaf in leaves.items():
        for step, value in zip(steps, leaf, strict=True):
            step.trees.setdefault(f"new_{tree}", {})[tuple(path)] = np.asarray(value)
    return steps


def _arrays(trajectory: PyTree) -> Flat:
    """The arrays of a trajectory, without the empty containers of a state."""
    leaves = flat_like(trajectory).items()
    return {path: leaf for path, leaf in leaves if isinstance(leaf, np.ndarray)}


def against(results: Sequence[Result], recordings: Mapping[str, Recording]) -> list[Stage]:
    """Compares the trajectories here with the recorded ones, one outcome for each of either."""
    ran = {str(r.case): r for r in results if r.trajectory is not None}
    outcomes = [
        _compare(name, result, recordings[name])
        if name in recordings
        else not_judged(name, "not in the recording")
        for name, result in ran.items()
    ]
    case_names = {str(result.case) for result in results}
    return outcomes + [not_judged(name, NOT_RUN) for name in recordings if name not in case_names]


def _compare(name: str, result: Result, recorded: Recording) -> Stage:
    """The outcome of one trajectory and the recorded one."""
    closed = result.case.problem in digits.MODELS
    left_out = digits.without_gradient(result.case.problem) if closed else ()
    expected: dict[str, np.ndarray] = {}
    for tree in recorded.steps[0].trees:
        expected |= recorded.stacks(tree, tree.removeprefix("new_"))
    leaves = _arrays(result.trajectory).items()
    actual = {path_text(path[1:], str(path[0])): leaf for path, leaf in leaves}
    sides = ({n: side[n] for n in side if n not in left_out} for side in (expected, actual))
    stage = stage_between(name, sides, recorded.steps, CLOSED_ULP if closed else OPEN_ULP)
    note = f"{', '.join(left_out)}: left out, its gradient is rounding" if left_out else ""
    return replace(stage, text="; ".join(filter(None, [stage.text, note])))
