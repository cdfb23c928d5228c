"""Replays a recording by today's program: finds the first stage, step and leaf that diverge."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import legacy_optim
from equivalence_tests.compare.comparison import VISIBLE, LeafDistance, as_json, compare
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.compare.relation import fitted_factor
from equivalence_tests.pair.explanation import FEW, TRIES, Settings, search
from equivalence_tests.pair.named import NamedSide, ObjectSide
from equivalence_tests.pair.settings import search_members
from equivalence_tests.recordings import format as files
from equivalence_tests.recordings import stages
from equivalence_tests.recordings.format import Leaves, Recording, RecordingError, Step
from equivalence_tests.recordings.recorder import path_text
from equivalence_tests.recordings.stages import Outcome, Stage, not_judged
from equivalence_tests.sides.adapt import as_side
from equivalence_tests.sides.in_float64 import wide as in_float64
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.side import Side
from optax_bridge import TrainState
from optax_bridge._hyper_params import RATES
from optax_bridge._text import listing
from optax_bridge.checkpoints import CheckpointError, from_state_dict
from optax_bridge.cli.errors import error_text
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.names import read_names

_NAME = "optimizer"
# The stages in their order, and the argument that each needs.
_NEEDS = {"batches": "batches", stages.LOSS: "loss", "rate": "optimizer", _NAME: "optimizer"}
_NONE = "one recording has none"
# In ULP: the rounding of a run where float64 shows no more, free or in lockstep (with the recorded
# parameters at each step). Beyond that, four times the replay's own rounding counts as rounding, up
# to `OPEN_ULP`; a distance above both is different, one in between is not decided.
_LOCKSTEP, _FREE, _OWN = 4.0, 16.0, 4.0


@dataclass(frozen=True)
class Replay:
    """The stages of a replay in their order, and the explanation where they diverge.

    Attributes:
      stages: each with its `name`, `outcome`, `text`, and the first diverging `step` and `leaf`.
      remarks: parts of the recording that were not judged, and why.
      explanation: settings with which the program follows the recording; empty if none is known.
    """

    title: str
    stages: Sequence[Stage]
    remarks: Sequence[str] = ()
    explanation: str = ""

    @property
    def first(self) -> Stage | None:
        """The first stage that diverges."""
        return next((stage for stage in self.stages if stage.parts), None)

    @property
    def outcome(self) -> Outcome:
        """That of the first divergence, else the weakest; not judged if a requested one is not."""
        if self.first is not None:
            return self.first.outcome
        counted = [s.outcome for s in self.stages if s.asked or s.outcome is not Outcome.NOT_JUDGED]
        order = (Outcome.NOT_JUDGED, Outcome.ROUNDING, Outcome.IDENTICAL)
        return next((outcome for outcome in order if outcome in counted), Outcome.NOT_JUDGED)

    @property
    def headline(self) -> str:
        """The first divergence in a line."""
        if self.first is None:
            return f"{self.title}: {self.outcome.value}"
        return f"{self.title} diverges first in {self.first}"

    def __str__(self) -> str:
        lines = [*map(str, self.stages), *self.remarks, self.headline, self.explanation]
        return "\n".join(filter(None, lines))

    def as_dict(self) -> dict[str, object]:
        """The result for JSON."""
        rows = [vars(s) | {"distance": list(map(as_json, s.distance))} for s in self.stages]
        return {
            "verdict": self.outcome,
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
      optimizer: a side as `check_equivalence` takes it, or a function that makes one, whose
        arguments are varied to explain a divergence.
      loss: `loss(params, batch, model_state, rng)`, or a function of the first two or three of
        these, that returns the loss, or the loss and the model's new state.
      batches: an iterable of the program's batches in their order.
      names: a names file, or its content as nested dicts, if PyTorch's tensors have other names
        or shapes here.
      steps: the number of steps to replay; by default all recorded ones.

    Returns:
      The stages in their order: batches, loss and gradients, rate, optimizer.

    Raises:
      RecordingError: the recording cannot be read, or is of another model.
      EquivalenceError: `optimizer` is not an optimizer.
    """
    source = recording if isinstance(recording, Recording) else files.read(recording, steps=steps)
    source = source.until(steps)
    if "params" not in source.steps[0].trees:
        after = "found those after it. `check --against` reads what `check --record` wrote"
        raise RecordingError(f"{source.place}: expected the parameters before each step, {after}")
    file = None if names is None else read_names(names)
    judgeable, remarks = _judgeable(source if file is None else files.in_flax(source, file))
    judged = [not_judged(name, f"no {of} given, see --{of}") for name, of in _NEEDS.items()]
    if batches is not None:
        judged[0] = stages.judge_batches(judgeable, batches)
    if loss is not None:
        judged[1] = stages.judge_loss(judgeable, loss)
    if optimizer is None:
        return Replay(source.place, judged, remarks)
    if not (finite := sum("new_params" in step.trees for step in judgeable.steps)):
        judged[2:] = [not_judged(s.name, "no new parameters", asked=True) for s in judged[2:]]
        return Replay(source.place, judged, remarks)
    settings: Settings = optimizer
    if not isinstance(optimizer, NamedSide | ObjectSide):
        name = getattr(optimizer, "__qualname__", "optimizer")
        settings = (NamedSide if callable(optimizer) else ObjectSide)(name, optimizer)
    state = functools.partial(files.recorded_state, source, file)
    stepper = Stepper(settings.build(), judgeable.until(finite), state)
    rates: list[dict[str, float]] | str = ""
    try:
        rates = _rates_of(stepper)
        stage = _judge(stepper)
    except NotJudgedError as error:
        rates, stage = rates or str(error), not_judged(_NAME, str(error), asked=True)
    judged[2:] = stages.judge_rates(stepper.recording, rates), stage
    is_open = stage.parts and not judged[2].parts
    return Replay(source.place, judged, remarks, _explain(stepper, settings) if is_open else "")


def assert_replays(recording: Recording | Path | str, **how: Any) -> Replay:
    """Raises AssertionError if a program diverges from a recording, or nothing can be judged.

    Args:
      recording: see `replay`, as for the result and other errors.
      **how: the arguments of `replay`.
    """
    result = replay(recording, **how)
    if result.outcome not in (Outcome.IDENTICAL, Outcome.ROUNDING):
        raise AssertionError(str(result))
    return result


def compare_recordings(recording: Recording, other: Recording) -> Replay:
    """Compares two recordings of one training run: the first step and stage that diverge."""
    steps = min(len(recording.steps), len(other.steps))
    if recording.first != other.first:
        expected = f"expected its first step to be {recording.first}, as in {recording.place}"
        raise RecordingError(f"{other.place}: {expected}, found {other.first}")
    both = [side.until(steps) for side in (recording, other)]
    batches, rates = zip(*((step.batch, step.rates) for step in both[1].steps), strict=True)
    both_have = not any(batch is None for batch in batches)
    judged = [  # in the order in which a step happens
        stages.judge_batches(both[0], batches) if both_have else not_judged("batches", _NONE),
        _compare_trees(both, "params", "parameters"),
        _compare_trees(both, "model_state", "model state"),
        _compare_trees(both, "raw_grads", "gradients before clipping"),
        _compare_trees(both, "grads", "gradients"),
        stages.judge_rates(both[0], rates if all(rates) else "one recording has no rates"),
        _compare_trees(both, "new_params", "new parameters"),
    ]
    judged = sorted(judged, key=lambda s: s.step if s.parts and s.step is not None else -1)
    remarks = [side.remark for side in (recording, other) if side.remark]
    if len(recording.steps) != len(other.steps):
        remarks.append(f"compared: the {steps} steps that both have")
    return Replay(f"{other.place} against {recording.place}", judged, remarks)


def _compare_trees(both: Sequence[Recording], tree: str, title: str) -> Stage:
    sides = [side.stacks(tree, tree) for side in both]
    if not all(sides):
        return not_judged(title, _NONE)
    if differing := sorted(sides[0].keys() ^ sides[1].keys()):
        message = f"found on one side only {listing(differing)}. Map other names with --names"
        raise RecordingError(f"{both[1].place}: expected the leaves of {both[0].place}, {message}")
    return stages.stage_between(title, sides, both[0].steps, stages.CLOSED_ULP)


def _judgeable(recording: Recording) -> tuple[Recording, list[str]]:
    """Returns the recording up to its first step that cannot be judged, and remarks on it."""
    remarks = [recording.remark] if recording.remark else []
    paths = recording.steps[0].trees["params"].keys()
    for number, step in enumerate(recording.steps):
        differing = sorted(step.trees["params"].keys() ^ paths, key=str)
        faults = [f"{path_text(path)} appears or disappears at" for path in differing]
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


class NotJudgedError(ValueError):
    """The reason why the optimizer cannot be judged by this recording."""


class Stepper:
    """An optimizer that takes recorded steps."""

    def __init__(self, value: Any, recording: Recording, state: Callable[[], PyTree] | None = None):
        self.recording, self.state = recording, state
        self.value, self.side = value, as_side(value)
        self.step = jax.jit(self.side.step) if self.side.compiled else self.side.step
        self.can_set = not isinstance(value, Side)  # PyTorch's has its own tensors
        # An optimizer of flax.optim that was made without a rate takes one with each call.
        hyper_params = getattr(getattr(value, "optimizer_def", value), "hyper_params", None)
        get = getattr(hyper_params, "get", functools.partial(getattr, hyper_params))
        self.takes_rates = get("learning_rate", 0.0) is None

    def run(self, *, lockstep: bool, wide: bool = False) -> Leaves:
        """Returns the new parameters after each step."""
        recorded = self.recording.steps
        old = recorded[0].trees["params"]
        try:
            with float64(wide or recorded[0].is_double), np.errstate(all="ignore"):
                news = [files.flat_like(new) for new in self._steps(lockstep, wide)]
        except NotJudgedError:
            raise
        except Exception as error:  # any error of the user's optimizer
            raise RecordingError(
                f"{self.recording.place}: the optimizer {error_text(error)} with the recorded "
                f"parameters {list(files.named_leaves(old))[:3]}... Map other names with --names"
            ) from error
        runs, named = files.stacks_of(news), files.named_leaves(old)
        return {name: runs[name].astype(leaf.dtype) for name, leaf in named.items()}

    def _steps(self, lockstep: bool, wide: bool) -> Iterator[PyTree]:
        """Yields the new parameters."""
        carry = self._start(wide)
        for number, step in enumerate(self.recording.steps):
            params = step.trees["params"]
            if lockstep and number:
                carry = _with_params(carry, _jax(params, wide))
            if not step.skipped:
                rates = [jnp.asarray(rate) for rate in step.rates.values()]
                rate = {"learning_rate": rates[0]} if self.takes_rates else {}
                grads = {path: np.zeros_like(leaf) for path, leaf in params.items()}
                grads |= {p: x for p, x in step.trees["grads"].items() if x is not None}
                carry = self.step(carry, _jax(grads, wide), **rate)
            yield self.side.view(carry)["params"]

    def _start(self, wide: bool) -> Any:
        first = self.recording.steps[0]
        if self.takes_rates and any(len(step.rates) != 1 for step in self.recording.steps):
            raise NotJudgedError("the optimizer needs one rate per call; the recording lacks it")
        try:
            state = self.state and self.state()
            if state is not None:
                with float64(first.is_double):  # in the recorded dtype
                    carry = self._with_state(self.side.init(_jax(first.trees["params"])), state)
                return jax.tree.map(jnp.asarray, in_float64(carry) if wide else carry)
        except (CheckpointError, LookupError, TypeError, ValueError) as error:
            raise NotJudgedError(f"the recorded state cannot be converted: {error}") from None
        if first.number:
            why = f"the recording begins at step {first.number} without the optimizer's state"
            raise NotJudgedError(why)
        return self.side.init(_jax(first.trees["params"], wide))

    def _with_state(self, carry: Any, state: PyTree) -> Any:
        params = files.nest(self.recording.steps[0].trees["params"])
        tree = {"params" if "opt_state" in state else "target": params, **state}
        if isinstance(self.value, legacy_optim.OptimizerDef):
            return from_state_dict(carry, tree)
        if self.side.name != "GradientTransformation":
            raise ValueError(f"{self.side.name} is not an Optax transformation")
        template = TrainState.create(apply_fn=None, params=carry[1], tx=self.value)
        restored = from_state_dict(template, tree)
        return restored.step, carry[1], restored.opt_state


def _with_params(carry: Any, params: Any) -> Any:
    if hasattr(carry, "target"):
        return carry.replace(target=params)
    if hasattr(carry, "opt_state"):
        return carry.replace(params=params)
    return (params, carry[1]) if len(carry) == 2 else (carry[0], params, carry[2])


def _jax(flat: files.Flat, wide: bool = False) -> Any:
    return jax.tree.map(jnp.asarray, in_float64(files.nest(flat)) if wide else files.nest(flat))


def _rates_of(stepper: Stepper) -> list[dict[str, float]] | str:
    """The optimizer's rate at each step by the recorded groups, or why it is not known."""
    recorded = stepper.recording.steps
    if stepper.takes_rates:
        return "the recorded rates are passed per call"
    names = (*RATES, "step_size_fn")
    members = search_members(stepper.value, lambda name, it: name in names, set())
    candidates = [value for _, value in members]
    rates = {abs(value) for value in candidates if type(value) in (int, float)}
    rates |= set(filter(callable, candidates))
    if len(rates) == 1 and all(len({*step.rates.values()}) == 1 for step in recorded):
        rate = rates.pop()
        schedule: Any = rate if callable(rate) else lambda count: rate
        taken = itertools.accumulate((not step.skipped for step in recorded), initial=0)
        counts = (stepper.recording.first + count for count in taken)
        values = (abs(float(schedule(count))) for count in counts)
        pairs = zip(recorded, values, strict=False)
        return [dict.fromkeys(step.rates, value) for step, value in pairs]
    return _measure_rates(stepper)


def _measure_rates(stepper: Stepper) -> list[dict[str, float]] | str:
    """Returns the rates from the ratio of each group's updates to the recorded ones."""
    if not stepper.can_set:
        return "the optimizer does not expose its rate"
    run, rates = stepper.run(lockstep=True), []
    members = {g["name"]: g["params"] for g in stepper.recording.index.get("groups", [])}
    for number, step in enumerate(stepper.recording.steps):
        updates = _updates(step, run, number)
        rates.append({})
        for group, rate in step.rates.items():
            names = list(map(path_text, members.get(group, step.trees["params"])))
            old, x, y = (stages.vector([side[name] for name in names]) for side in updates)
            largest, moved = (np.abs(side).max(initial=0) for side in (old, x))
            tolerance = 1e-4 + 2.0**-20 * largest / max(moved, 1e-30)
            factor = fitted_factor(x, y, tolerance)
            if factor is None:
                return "the optimizer exposes no rate, and its updates have no common factor"
            rates[-1][group] = rate if abs(factor - 1) <= tolerance else rate * factor
    return rates


def _updates(step: Step, run: Leaves, number: int) -> tuple[Leaves, Leaves, Leaves]:
    """The parameters before a step, the recorded updates and the replayed ones, in float64."""
    old, new = (files.named_leaves(step.trees[tree]) for tree in ("params", "new_params"))
    old = {name: leaf.astype(np.float64) for name, leaf in old.items()}
    recorded = {name: new[name].astype(np.float64) - leaf for name, leaf in old.items()}
    replayed = {name: run[name][number].astype(np.float64) - leaf for name, leaf in old.items()}
    return old, recorded, replayed


def _judge(stepper: Stepper) -> Stage:
    """Judges whether the recorded gradients lead to the recorded parameters."""
    steps = stepper.recording.steps
    recorded = stepper.recording.stacks("new_params")
    kinds = [False, True] if stepper.can_set else [False]

    runs = {lockstep: stepper.run(lockstep=lockstep) for lockstep in kinds}
    comparisons = {lockstep: compare(recorded, runs[lockstep]) for lockstep in kinds}
    free = comparisons[False]
    bounds = {True: _LOCKSTEP, False: _FREE}
    most, rounding = free.allowed_ulp(stages.OPEN_ULP), dict.fromkeys(kinds, 0.0)
    if any(comparison.ulp > bounds[lockstep] for lockstep, comparison in comparisons.items()):
        for lockstep in kinds:
            wide = stepper.run(lockstep=lockstep, wide=True)
            rounding[lockstep] = _OWN * compare(runs[lockstep], wide).ulp
            bounds[lockstep] = max(bounds[lockstep], min(rounding[lockstep], most))
    beyond = [lockstep for lockstep in kinds if comparisons[lockstep].ulp > bounds[lockstep]]
    at = True in beyond
    if beyond or free.relative > VISIBLE:
        is_far = comparisons[at].ulp > max(rounding[at], most)
        outcome = Outcome.DIFFERENT if is_far else Outcome.UNDECIDED
    else:
        at = max(kinds, key=lambda lockstep: comparisons[lockstep].ulp)
        is_same = all(comparison.identical for comparison in comparisons.values())
        outcome = Outcome.IDENTICAL if is_same else Outcome.ROUNDING

    def cause(number: int, leaf: LeafDistance, diverged: set[str]) -> str:
        text = f"{stages.by_scale(number, leaf, diverged)} ({leaf.ulp_by_step[number]:.3g} ULP)"
        text += f"; after {len(steps)} steps {relative_text(free.relative)}. "
        if rounding[at] >= comparisons[at].ulp:
            return f"{text}The optimizer is as far from its own float64 run: half precision?"
        updates = _updates(steps[number], runs[at], number)
        return (text + _cause(steps[number], updates, diverged, leaf.path)).removesuffix(". ")

    stage = stages.stage_of(_NAME, comparisons[at], steps, bounds[at], cause, outcome)
    return replace(stage, distance=stages.distance_by_step(free))


def _cause(step: Step, updates: Sequence[Leaves], diverged: set[str], leaf: str) -> str:
    """Returns the likely cause of the first diverging step, in words; empty if unknown."""
    recorded, replayed = updates[1:]
    if files.named_leaves(step.trees.get("grads", {})).get(leaf, 0) is None:
        return f"{leaf} has no gradient in the recording (None); here its gradient is zero"
    if recorded[leaf].any() != replayed[leaf].any():
        where = "in the recording" if replayed[leaf].any() else "here"
        return f"{leaf} does not move {where}: is it frozen?"
    factor, of_names = stages.common_factor(recorded, replayed, diverged, 1e-3)
    return f"Every update{of_names} here is {factor:.6g} times the recorded one" if factor else ""


def _explain(stepper: Stepper, settings: Settings) -> str:
    """Returns settings with which the program follows the recording, in words."""
    values = stepper.recording.index.get("settings", {})
    recorded: Any = SimpleNamespace(parameters=values, name="the recording", build=lambda: None)

    def outcome(side: Any, is_short: bool) -> Outcome:
        recording = stepper.recording.until(FEW if is_short else None)
        return _judge(Stepper(side, recording, stepper.state)).outcome

    explanation = search(recorded, settings, outcome, TRIES)
    return "" if explanation is None else str(explanation)
