"""Replays a recording by today's program: finds the first stage, step and leaf that diverge."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from equivalence_tests.compare.comparison import as_json
from equivalence_tests.recordings.bounds import CLOSED_ULP
from equivalence_tests.recordings.format import (
    Flat,
    Path_,
    Recording,
    RecordingError,
    Step,
    named_leaves,
    nest,
    path_text,
    read,
)
from equivalence_tests.recordings.optimizer import (
    NAME,
    NotJudgedError,
    Stepper,
    as_settings,
    explain,
    judge_optimizer,
    own_rates,
)
from equivalence_tests.recordings.stages import (
    Outcome,
    Stage,
    compared,
    judge_batches,
    judge_loss,
    judge_rates,
    not_judged,
    stage_of,
)
from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.names import NamesFile, Rule, parse_names, read_names

NAMES = ("batches", "loss and gradients", "rate", NAME)
_OF_PARAMS = ("params", "half_params", "raw_grads", "grads", "new_params")


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
            {
                **vars(stage),
                "outcome": stage.outcome.value,
                "distance": list(map(as_json, stage.distance)),
            }
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
    source = dataclasses.replace(source, steps=source.steps[:steps])
    if "params" not in source.steps[0].trees:
        raise RecordingError(
            f"{source.place}: expected the parameters before each step, found those after it "
            "alone, as `optax-bridge check --record` writes them. Read it with `check --against`"
        )
    file = None if names is None else _names(names)
    here, remarks = _judgeable(source if file is None else in_flax(source, file))
    if not here.steps:
        return Replay(
            _title(source), [not_judged(name, "no step is left") for name in NAMES], remarks
        )
    stages = [
        not_judged("batches", "no batches were given")
        if batches is None
        else judge_batches(here, batches),
        not_judged("loss and gradients", "no loss was given")
        if loss is None
        else judge_loss(here, loss),
    ]
    explanation = ""
    if optimizer is None:
        stages += [not_judged(name, "no optimizer was given") for name in NAMES[2:]]
    elif "new_params" not in here.steps[0].trees:
        why = "no step has new parameters"
        stages += [not_judged("rate", why), not_judged(NAME, why, asked=True)]
    else:
        settings = as_settings(optimizer)
        finite = sum("new_params" in step.trees for step in here.steps)
        stepper = Stepper(settings.build(), here, file, source)
        _check_params(stepper, here)
        try:
            rates = own_rates(stepper, finite)
        except NotJudgedError as error:
            rates = str(error)
        stages.append(judge_rates(dataclasses.replace(here, steps=here.steps[:finite]), rates))
        factors = _factors(stages[-1], here, rates)
        stages.append(judge_optimizer(stepper, finite, factors))
        if factors:
            text = f"at the recorded rates; {stages[-1].text}".rstrip("; ")
            stages[-1] = dataclasses.replace(stages[-1], text=text)
        if stages[-1].parts:
            explanation = explain(stepper, settings, finite, factors)
        elif stages[-2].parts:
            explanation = f"with the recorded rates it is {stages[-1].outcome.value}"
    return Replay(_title(source), stages, remarks, explanation)


def _title(recording: Recording) -> str:
    return f"{recording.place} ({recording.origin})"


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


def beside(left: Recording, right: Recording) -> Replay:
    """Compares two recordings of one training run: the first step and stage that diverge."""
    steps = min(len(left.steps), len(right.steps))
    if left.first != right.first:
        raise RecordingError(
            f"{right.place}: expected its first step to be {left.first}, as in {left.place}, found "
            f"{right.first}"
        )
    both = [dataclasses.replace(side, steps=side.steps[:steps]) for side in (left, right)]
    batches = [
        step.digest or (nest(step.trees["batch"]) if step.tree("batch") else None)
        for step in both[1].steps
    ]
    stages = [
        not_judged("batches", "one recording has none")
        if any(batch is None for batch in batches)
        else judge_batches(both[0], batches)
    ]
    stages += [_beside_tree(both, name, title) for name, title in _TITLES.items()]
    rates = [dict(step.rates) for step in both[1].steps]
    stages.insert(-1, judge_rates(both[0], rates if all(rates) else "one recording has no rates"))
    stages = sorted(stages, key=lambda s: s.step if s.parts and s.step is not None else -1)
    remarks = [side.remark for side in (left, right) if side.remark]
    if len(left.steps) != len(right.steps):
        remarks.append(f"the first {steps} steps are compared, those that both have")
    return Replay(f"{right.place} beside {left.place}", stages, remarks)


# In the order in which a step happens.
_TITLES = {
    "params": "parameters",
    "model_state": "model state",
    "raw_grads": "gradients before clipping",
    "grads": "gradients",
    "new_params": "new parameters",
}


def _beside_tree(both: Sequence[Recording], tree: str, title: str) -> Stage:
    sides = [named_leaves(side.stacked(tree), tree) for side in both]
    if not all(sides):
        return not_judged(title, "one recording has none")
    if differing := sorted(sides[0].keys() ^ sides[1].keys()):
        raise RecordingError(
            f"{both[1].place}: expected the leaves of {both[0].place}, found on one side alone "
            f"{listing(differing)}. Where the names differ, give --names"
        )
    try:
        comparison = compared(*sides)
    except ValueError as error:
        return Stage(title, Outcome.DIFFERENT, str(error), both[0].first)
    return stage_of(title, comparison, both[0].steps, CLOSED_ULP)


def _factors(stage: Stage, here: Recording, rates: Any) -> list[dict[str, float]]:
    """Returns the factors from our rates to the recorded ones, where these differ."""
    if not stage.parts or isinstance(rates, str):
        return []
    return [
        {g: there / own[g] if own.get(g) else 1.0 for g, there in step.rates.items()}
        for step, own in zip(here.steps, rates, strict=False)
    ]


def _judgeable(recording: Recording) -> tuple[Recording, list[str]]:
    """Returns the recording up to its first step that cannot be judged, and remarks on it."""
    remarks = [recording.remark] if recording.remark else []
    for number, step in enumerate(recording.steps):
        for tree in ("grads", "new_params"):
            bad = [p for p, leaf in (step.tree(tree) or {}).items() if not _is_finite(leaf)]
            if bad and not step.skipped:
                remarks.append(
                    f"{path_text(bad[0], tree)} is not finite from step {step.number}: the "
                    f"{number} steps before it are judged"
                )
                return dataclasses.replace(recording, steps=recording.steps[:number]), remarks
    paths = [step.trees["params"].keys() for step in recording.steps]
    odd = next((n for n, these in enumerate(paths) if these != paths[0]), None)
    if odd is not None:
        at = recording.steps[odd].number
        leaf = path_text(sorted(paths[odd] ^ paths[0], key=str)[0])
        remarks.append(f"{leaf} comes or goes at step {at}: the {odd} steps before it are judged")
        return dataclasses.replace(recording, steps=recording.steps[:odd]), remarks
    return recording, remarks


def _is_finite(leaf: Any) -> bool:
    return bool(np.isfinite(np.asarray(leaf).astype(np.float64)).all())


def _check_params(stepper: Stepper, here: Recording) -> None:
    """Raises an error where the optimizer brings parameters of another model."""
    own = getattr(stepper.value, "params", getattr(stepper.value, "target", None))
    if own is None:
        return
    from equivalence_tests.compare.trees import first_mismatch, signature

    recorded = nest(here.steps[0].trees["params"])
    fault = first_mismatch(signature(own, "params"), signature(recorded, "params"))
    if fault is not None:
        raise RecordingError(f"{here.place}: {fault}. Where only the names differ, give --names")


def _names(names: Path | str | Mapping[str, PyTree]) -> NamesFile:
    return read_names(names) if isinstance(names, str | Path) else parse_names(names, "names")


def in_flax(recording: Recording, file: NamesFile) -> Recording:
    """Returns a recording with the names and the layout of a names file."""
    first = recording.steps[0]
    tensors = [
        "/".join(map(str, p)) for t in ("params", "model_state") for p in first.trees.get(t, {})
    ]
    entries = {name: entry for name, entry in file.entries.items() if name in tensors}
    if not entries:
        raise CheckpointError(
            file.path, "a line for each recorded tensor", f"none of {listing(tensors)}",
            "Draft it: optax-bridge replay RECORDING --draft-names new.py:make_state.",
        )  # fmt: skip
    rules = dataclasses.replace(file, model=None, optimizer=None, entries=entries).rules(tensors)
    to = {rule.name: [path[1:] for path in rule.paths] for rule in rules}
    groups = [
        {**group, "params": [path for (name,) in group["params"] for path in to.get(name, ())]}
        for group in recording.index.get("groups", [])
    ]
    return dataclasses.replace(
        recording,
        index={**recording.index, "groups": groups},
        steps=[_step_in_flax(step, rules) for step in recording.steps],
    )


def _step_in_flax(step: Step, rules: Sequence[Rule]) -> Step:
    trees = dict(step.trees)
    for tree in (*_OF_PARAMS, "model_state"):
        if tree in step.trees:
            trees[tree] = _moved(step.trees[tree], rules, tree)
    by_name = {rule.name: rule for rule in rules}
    missing = {
        (tree, path[1:])
        for tree, names in step.missing
        if (rule := by_name.get("/".join(map(str, names)))) is not None
        for path in rule.paths
    }
    return dataclasses.replace(step, trees=trees, missing=frozenset(missing))


def _moved(flat: Flat, rules: Sequence[Rule], tree: str) -> Flat:
    arrays = {"/".join(map(str, path)): leaf for path, leaf in flat.items()}
    moved: dict[Path_, Any] = {}
    for rule in rules:
        if rule.name in arrays:
            for path, array in rule.to_flax(arrays[rule.name]).items():
                moved[path[1:] if tree in _OF_PARAMS else path] = np.ascontiguousarray(array)
    return moved
