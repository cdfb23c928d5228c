"""Replays a recording by today's program: finds the first stage, step and leaf that diverge."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equivalence_tests.compare.comparison import as_json
from equivalence_tests.recordings.bounds import CLOSED_ULP
from equivalence_tests.recordings.format import (
    Recording,
    RecordingError,
    named_leaves,
    path_text,
    read,
)
from equivalence_tests.recordings.gradients import judge_loss
from equivalence_tests.recordings.in_flax import in_flax, recorded_state
from equivalence_tests.recordings.optimizer import Stepper, as_settings, judge_steps
from equivalence_tests.recordings.stages import (
    Outcome,
    Stage,
    judge_batches,
    judge_rates,
    not_judged,
    stage_between,
)
from optax_bridge._text import listing
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.names import parse_names, read_names

# The stages in their order, and the argument that each needs.
_ASKED = {
    "batches": "batches",
    "loss and gradients": "loss",
    "rate": "optimizer",
    "optimizer": "optimizer",
}


@dataclass(frozen=True)
class Replay:
    """The stages of a replay in their order, and the explanation where they diverge.

    Attributes:
      stages: each with its `name`, `outcome`, `text`, and the first `step` and `leaf` that part.
      remarks: parts of the recording that were not judged, and why.
      explanation: the settings with which the program no longer parts; empty if none is known.
    """

    title: str
    stages: Sequence[Stage]
    remarks: Sequence[str] = ()
    explanation: str = ""

    @property
    def first(self) -> Stage | None:
        """The first stage that parts."""
        return next((stage for stage in self.stages if stage.parts), None)

    @property
    def outcome(self) -> Outcome:
        """That of the first that parts, else the least; not judged if one asked for is not."""
        if self.first is not None:
            return self.first.outcome
        judged = {stage.outcome for stage in self.stages}
        if any(stage.asked and stage.outcome is Outcome.NOT_JUDGED for stage in self.stages):
            return Outcome.NOT_JUDGED
        order = (Outcome.ROUNDING, Outcome.IDENTICAL)
        return next((outcome for outcome in order if outcome in judged), Outcome.NOT_JUDGED)

    @property
    def headline(self) -> str:
        """The first parting in a line."""
        if self.first is None:
            return f"{self.title}: {self.outcome.value}"
        return f"{self.title} parts first in {self.first}"

    def __str__(self) -> str:
        return "\n".join(
            filter(None, [*map(str, self.stages), *self.remarks, self.headline, self.explanation])
        )

    def as_dict(self) -> dict[str, object]:
        """The result for JSON."""
        rows = [
            vars(stage)
            | {"outcome": stage.outcome.value, "distance": list(map(as_json, stage.distance))}
            for stage in self.stages
        ]
        return {
            "verdict": self.outcome.value,
            "first": None if self.first is None else self.first.name,
            "explanation": self.explanation,
            "remarks": list(self.remarks),
            "stages": rows,
        }


def replay(
    recording: Recording | Path | str,
    *,
    optimizer: Any = None,
    loss: Callable[..., Any] | None = None,
    batches: Iterable[Any] | Callable[[], Any] | None = None,
    names: Path | str | Mapping[str, PyTree] | None = None,
    steps: int | None = None,
) -> Replay:
    """Replays a recorded training run by today's program and finds where they diverge.

        result = replay("run.rec", optimizer=optax.adamw(1e-3), loss=loss)
        print(result)

    Args:
      recording: a folder or a packed file that the recorder of `optax-bridge recorder` wrote.
      optimizer: what `check_equivalence` takes as a side, or a function that makes it; the
        function's arguments are tried where the two part.
      loss: `loss(params, batch, model_state, rng)`, or a function of the first two or three of
        these, that returns the loss, or the loss and the model's new state.
      batches: an iterable of the program's batches in their order.
      names: a names file, or what it says as nested dicts, where PyTorch's tensors have other
        names or shapes here.
      steps: how many of the recorded steps are replayed; all unless given.

    Returns:
      The stages in their order: batches, loss and gradients, rate, optimizer.

    Raises:
      RecordingError: the recording cannot be read, or is of another model.
      EquivalenceError: `optimizer` is none.
    """
    source = recording if isinstance(recording, Recording) else read(recording, steps=steps)
    source = source.until(steps)
    if "params" not in source.steps[0].trees:
        raise RecordingError(
            f"{source.place}: expected the parameters before each step, found those after it "
            "alone, as `optax-bridge check --record` writes them. Read it with `check --against`"
        )
    file = None
    if names is not None:
        is_file = isinstance(names, str | Path)
        file = read_names(names) if is_file else parse_names(names, "names")
    here, remarks = _judgeable(source if file is None else in_flax(source, file))
    title = f"{source.place} ({source.origin})"
    stages = [not_judged(name, f"no {of} given, see --{of}") for name, of in _ASKED.items()]
    if not here.steps:
        stages = [not_judged(name, "no step is left", asked=True) for name in _ASKED]
        return Replay(title, stages, remarks)
    if batches is not None:
        stages[0] = judge_batches(here, batches)
    if loss is not None:
        stages[1] = judge_loss(here, loss)
    if optimizer is None:
        return Replay(title, stages, remarks)
    finite = sum("new_params" in step.trees for step in here.steps)
    if not finite:
        stages[2:] = [not_judged(s.name, "no new parameters", asked=True) for s in stages[2:]]
        return Replay(title, stages, remarks)
    settings = as_settings(optimizer)
    state = functools.partial(recorded_state, source, file)
    stepper = Stepper(settings.build(), here.until(finite), state)
    stepper.check_params()
    stages[2:], explanation = judge_steps(stepper, settings)
    return Replay(title, stages, remarks, explanation)


def assert_replays(recording: Recording | Path | str, **how: Any) -> Replay:
    """Raises AssertionError if a program diverges from a recording, or nothing can be judged.

    Args:
      recording: see `replay`.
      **how: the arguments of `replay`.

    Returns:
      The result of `replay`.

    Raises:
      AssertionError: the text of the result.
      RecordingError: see `replay`.
    """
    result = replay(recording, **how)
    if result.outcome not in (Outcome.IDENTICAL, Outcome.ROUNDING):
        raise AssertionError(str(result))
    return result


def beside(recording: Recording, other: Recording) -> Replay:
    """Compares two recordings of one training run: the first step and stage that diverge."""
    steps = min(len(recording.steps), len(other.steps))
    if recording.first != other.first:
        raise RecordingError(
            f"{other.place}: expected its first step to be {recording.first}, as in "
            f"{recording.place}, found {other.first}"
        )
    both = [side.until(steps) for side in (recording, other)]
    batches = [step.batch for step in both[1].steps]
    has_none = any(batch is None for batch in batches)
    stages = [
        not_judged("batches", _ONE_HAS_NONE) if has_none else judge_batches(both[0], batches),
        *(_beside_tree(both, name, title) for name, title in _TITLES.items()),
    ]
    rates = [step.rates for step in both[1].steps]
    stages.insert(-1, judge_rates(both[0], rates if all(rates) else "one recording has no rates"))
    stages = sorted(stages, key=lambda s: s.step if s.parts and s.step is not None else -1)
    remarks = [side.remark for side in (recording, other) if side.remark]
    if len(recording.steps) != len(other.steps):
        remarks.append(f"the first {steps} steps are compared, those that both have")
    return Replay(f"{other.place} beside {recording.place}", stages, remarks)


_ONE_HAS_NONE = "one recording has none"
# In the order in which a step happens.
_TITLES = {
    "params": "parameters",
    "model_state": "model state",
    "raw_grads": "gradients before clipping",
    "grads": "gradients",
    "new_params": "new parameters",
}


def _beside_tree(both: Sequence[Recording], tree: str, title: str) -> Stage:
    sides = [named_leaves(side.stacks(tree), tree) for side in both]
    if not all(sides):
        return not_judged(title, _ONE_HAS_NONE)
    if differing := sorted(sides[0].keys() ^ sides[1].keys()):
        raise RecordingError(
            f"{both[1].place}: expected the leaves of {both[0].place}, found on one side alone "
            f"{listing(differing)}. Where the names differ, give --names"
        )
    return stage_between(title, sides, both[0].steps, CLOSED_ULP)


def _judgeable(recording: Recording) -> tuple[Recording, list[str]]:
    """Returns the recording up to its first step that cannot be judged, and remarks on it."""
    remarks = [recording.remark] if recording.remark else []
    paths = recording.steps[0].trees["params"].keys()
    for number, step in enumerate(recording.steps):
        faults = [
            f"{path_text(path)} comes or goes at"
            for path in sorted(step.trees["params"].keys() ^ paths, key=str)
        ]
        faults += [
            f"{path_text(path, tree)} is not finite from"
            for tree in (() if step.skipped else ("grads", "new_params"))
            for path, leaf in step.trees.get(tree, {}).items()
            if not np.isfinite(np.asarray(leaf).astype(np.float64)).all()
        ]
        if faults:
            before = f"the {number} steps before it are judged"
            return recording.until(number), [*remarks, f"{faults[0]} step {step.number}: {before}"]
    return recording, remarks
