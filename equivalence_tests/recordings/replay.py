"""Replays a recording by today's program: finds the first stage, step and leaf that diverge."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equivalence_tests.compare.comparison import as_json
from equivalence_tests.recordings.format import (
    Flat,
    Recording,
    RecordingError,
    nest,
    path_text,
    read,
)
from equivalence_tests.recordings.optimizer import Stepper, as_settings, judge_steps
from equivalence_tests.recordings.stages import (
    CLOSED_ULP,
    Outcome,
    Stage,
    judge_batches,
    judge_loss,
    judge_rates,
    not_judged,
    stage_between,
)
from optax_bridge._text import listing
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import torch_checkpoint
from optax_bridge.torch.checkpoints.moves import as_legacy
from optax_bridge.torch.checkpoints.names import NamesFile, Rule, parse_names, read_names

# The stages in their order, and the argument that each needs.
_ASKED = {
    "batches": "batches",
    "loss and gradients": "loss",
    "rate": "optimizer",
    "optimizer": "optimizer",
}
_BY_NAME = ("params", "half_params", "raw_grads", "grads", "new_params", "model_state")
_ONE_HAS_NONE = "one recording has none"


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
        lines = [*map(str, self.stages), *self.remarks, self.headline, self.explanation]
        return "\n".join(filter(None, lines))

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
    batches, rates = zip(*((step.batch, step.rates) for step in both[1].steps), strict=True)
    has_none = any(batch is None for batch in batches)
    stages = [  # in the order in which a step happens
        not_judged("batches", _ONE_HAS_NONE) if has_none else judge_batches(both[0], batches),
        _beside_tree(both, "params", "parameters"),
        _beside_tree(both, "model_state", "model state"),
        _beside_tree(both, "raw_grads", "gradients before clipping"),
        _beside_tree(both, "grads", "gradients"),
        judge_rates(both[0], rates if all(rates) else "one recording has no rates"),
        _beside_tree(both, "new_params", "new parameters"),
    ]
    stages = sorted(stages, key=lambda s: s.step if s.parts and s.step is not None else -1)
    remarks = [side.remark for side in (recording, other) if side.remark]
    if len(recording.steps) != len(other.steps):
        remarks.append(f"the first {steps} steps are compared, those that both have")
    return Replay(f"{other.place} beside {recording.place}", stages, remarks)


def _beside_tree(both: Sequence[Recording], tree: str, title: str) -> Stage:
    sides = [side.stacks(tree, tree) for side in both]
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
        differing = sorted(step.trees["params"].keys() ^ paths, key=str)
        faults = [f"{path_text(path)} comes or goes at" for path in differing]
        faults += [
            f"{path_text(path, tree)} is not finite from"
            for tree in (() if step.skipped else ("grads", "new_params"))
            for path, leaf in step.trees.get(tree, {}).items()
            if leaf is not None and not np.isfinite(leaf.astype(np.float64)).all()
        ]
        if faults and not number:
            raise RecordingError(f"{recording.place}: {faults[0]} its first step on")
        if faults:
            before = f"the {number} steps before it are judged"
            return recording.until(number), [*remarks, f"{faults[0]} step {step.number}: {before}"]
    return recording, remarks


def in_flax(recording: Recording, file: NamesFile) -> Recording:
    """Returns a recording of PyTorch with the names and the layout of a names file."""
    tensors = list(recording.steps[0].tensors)
    entries = {name: entry for name, entry in file.entries.items() if name in tensors}
    file = dataclasses.replace(file, model=None, optimizer=None, entries=entries)
    rules = {rule.name: rule for rule in file.rules(tensors)}
    groups = [
        {**g, "params": [p[1:] for (n,) in g["params"] if n in rules for p in rules[n].paths]}
        for g in recording.index.get("groups", [])
    ]
    steps = [
        dataclasses.replace(step, trees={t: _in_flax(x, t, rules) for t, x in step.trees.items()})
        for step in recording.steps
    ]
    return dataclasses.replace(recording, index={**recording.index, "groups": groups}, steps=steps)


def _in_flax(flat: Flat, tree: str, rules: Mapping[str, Rule]) -> Flat:
    """A tree of a step with the paths and the layout of Flax; what is missing stays missing."""
    collections = 0 if tree == "model_state" else 1  # in front of a parameter's path
    if tree not in _BY_NAME:
        return flat
    moved: Flat = {}
    for name, leaf in flat.items():
        if rule := rules.get("/".join(map(str, name))):
            arrays = dict.fromkeys(rule.paths) if leaf is None else rule.to_flax(leaf)
            moved |= {path[collections:]: array for path, array in arrays.items()}
    return moved


def recorded_state(source: Recording, names: NamesFile | None) -> PyTree:
    """The optimizer's state before the first step, in the layout of flax.optim or Optax's own."""
    first, state = source.steps[0], source.steps[0].trees.get("state")
    if state is None:
        return None
    tree = nest({tuple(map(str, path)): leaf for path, leaf in state.items()})
    if "param_groups" not in tree:
        is_legacy = "param_states" in tree
        return {"state": tree} if is_legacy else {"step": source.first, "opt_state": tree}
    if names is None:
        entries = {str(name): f"params/{name}" for (name,) in first.trees["params"]}
        drop = [str(name) for (name,) in first.trees.get("model_state", {})]
        names = NamesFile(source.place, None, None, drop, None, entries)
    order = [str(name) for group in source.index.get("groups", []) for (name,) in group["params"]]
    names = dataclasses.replace(names, model="model", optimizer="optimizer", order=order)
    saved = {"model": first.tensors, "optimizer": nest(state)}
    checkpoint = torch_checkpoint(saved, source.place, "model", "optimizer")
    return as_legacy(checkpoint, names, step=source.first)[0]["optimizer"]
