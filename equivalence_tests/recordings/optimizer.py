"""The optimizer through recorded gradients: in lockstep and in a free run, and its rates."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import legacy_optim
from equivalence_tests.compare.comparison import VISIBLE, LeafDistance, compare
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.compare.relation import fitted_factor
from equivalence_tests.compare.trees import first_mismatch, signature
from equivalence_tests.pair.explanation import FEW, TRIES, Settings, search
from equivalence_tests.pair.named import NamedSide, ObjectSide
from equivalence_tests.pair.settings import search_members
from equivalence_tests.recordings.bounds import OPEN_ULP
from equivalence_tests.recordings.format import (
    Flat,
    Path_,
    Recording,
    RecordingError,
    Step,
    host_leaves,
    named_leaves,
    nest,
    path_text,
    stacks_of,
)
from equivalence_tests.recordings.stages import (
    Outcome,
    Stage,
    by_scale,
    distance_by_step,
    judge_rates,
    not_judged,
    parted_stage,
)
from equivalence_tests.sides.adapt import as_side
from equivalence_tests.sides.in_float64 import wide as in_float64
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.side import Side
from optax_bridge import TrainState
from optax_bridge._hyper_params import RATES
from optax_bridge.checkpoints import CheckpointError, from_state_dict
from optax_bridge.cli.errors import error_text
from optax_bridge.metadata.trees import PyTree

NAME = "optimizer"
# In ULP: what a run may round where float64 shows no more, free or in lockstep (with the recorded
# parameters at each step). Beyond that, four times our own rounding is rounding too, as far as the
# bound of `OPEN_ULP` goes; different is what exceeds both, and what lies between is not decided.
_LOCKSTEP, _FREE, _OWN = 4.0, 16.0, 4.0


class NotJudgedError(ValueError):
    """The reason why the optimizer cannot be judged by this recording."""


class Stepper:
    """An optimizer that takes recorded steps."""

    def __init__(
        self, value: Any, recording: Recording, state: Callable[[], PyTree] = lambda: None
    ):
        self.recording, self.state = recording, state
        self.value, self.side = value, as_side(value)
        self.takes_rates = _learning_rate_of(value) is None
        self.step = jax.jit(self.side.step) if self.side.compiled else self.side.step
        self.can_set = not isinstance(value, Side)  # PyTorch's has its own tensors

    def run(self, *, lockstep: bool, wide: bool = False) -> dict[str, np.ndarray]:
        """Returns the new parameters after each step."""
        recorded, new = self.recording.steps, []
        with float64(wide or recorded[0].is_double), np.errstate(all="ignore"):
            carry = self._start(wide)
            for number, step in enumerate(recorded):
                params = step.trees["params"]
                if lockstep and number:
                    carry = _with_params(carry, _jax(params, wide))
                if not step.skipped:
                    grads = step.trees["grads"]
                    full = {p: grads.get(p, np.zeros_like(leaf)) for p, leaf in params.items()}
                    carry = self.step(carry, _jax(full, wide), **self._rate(step.rates))
                new.append(host_leaves(self.side.view(carry)["params"]))
        dtypes = {path: leaf.dtype for path, leaf in recorded[0].trees["params"].items()}
        runs = stacks_of(new)
        return named_leaves({path: leaf.astype(dtypes[path]) for path, leaf in runs.items()})

    def paths_of(self, group: str) -> list[Path_]:
        """The parameters of a recorded group; all where the groups' members are not known."""
        groups = {g["name"]: g["params"] for g in self.recording.index.get("groups", [])}
        return list(map(tuple, groups.get(group, self.recording.steps[0].trees["params"])))

    def _rate(self, rates: Mapping[str, float]) -> dict[str, Any]:
        if not self.takes_rates:
            return {}
        if len(rates) != 1:
            raise NotJudgedError("the optimizer takes its rate per call, and no one is recorded")
        return {"learning_rate": jnp.asarray(next(iter(rates.values())))}

    def _start(self, wide: bool) -> Any:
        try:
            state = self.state()
            if state is not None:
                with float64(self.recording.steps[0].is_double):  # as it was recorded
                    carry = self._with_state(self._init(wide=False), state)
                return jax.tree.map(jnp.asarray, in_float64(carry) if wide else carry)
        except RecordingError:
            raise
        except (CheckpointError, LookupError, TypeError, ValueError) as error:
            raise NotJudgedError(f"the recorded state cannot be brought over: {error}") from None
        if first := self.recording.first:
            why = f"the recording begins at step {first} without the optimizer's state"
            raise NotJudgedError(why)
        return self._init(wide)

    def _init(self, wide: bool) -> Any:
        params = self.recording.steps[0].trees["params"]
        try:
            return self.side.init(_jax(params, wide))
        except Exception as error:  # whatever the user's optimizer raises
            raise RecordingError(
                f"optimizer: its init {error_text(error)} with the recorded parameters "
                f"{list(named_leaves(params))[:3]}... If they have other names here, give --names"
            ) from error

    def _with_state(self, carry: Any, state: PyTree) -> Any:
        params = nest(self.recording.steps[0].trees["params"])
        tree = {"params" if "opt_state" in state else "target": params, **state}
        if isinstance(self.value, legacy_optim.OptimizerDef):
            return from_state_dict(carry, tree)
        if self.side.name != "GradientTransformation":
            raise ValueError(f"{self.side.name} is no transformation of Optax")
        template = TrainState.create(apply_fn=None, params=carry[1], tx=self.value)
        restored = from_state_dict(template, tree)
        return restored.step, carry[1], restored.opt_state

    def check_params(self) -> None:
        """Raises an error where the optimizer brings parameters of another model."""
        params = getattr(self.value, "params", getattr(self.value, "target", None))
        recorded = nest(self.recording.steps[0].trees["params"])
        signatures = [signature(tree, "params") for tree in (params, recorded)]
        if params is not None and (fault := first_mismatch(*signatures)):
            raise RecordingError(
                f"{self.recording.place}: {fault}. Where only the names differ, give --names"
            )


def _with_params(carry: Any, params: Any) -> Any:
    if hasattr(carry, "target"):
        return carry.replace(target=params)
    if hasattr(carry, "opt_state"):
        return carry.replace(params=params)
    return (params, carry[1]) if len(carry) == 2 else (carry[0], params, carry[2])


def _learning_rate_of(value: Any) -> Any:
    """The rate that an optimizer was made with; None where each call has to give it."""
    hyper_params = getattr(getattr(value, "optimizer_def", value), "hyper_params", None)
    if isinstance(hyper_params, Mapping):
        return hyper_params.get("learning_rate", 0.0)
    return getattr(hyper_params, "learning_rate", 0.0)


def _jax(flat: Flat, wide: bool) -> Any:
    return jax.tree.map(jnp.asarray, in_float64(nest(flat)) if wide else nest(flat))


def rates_of(stepper: Stepper) -> list[dict[str, float]] | str:
    """The optimizer's rate at each step by the recorded groups, or why it is not known."""
    recorded = stepper.recording.steps
    if stepper.takes_rates:
        return "the recorded rates are given per call"
    if not all(step.rates for step in recorded):
        return "the recording has no rates"
    members = [member for _, member in search_members(stepper.value, _is_rate, set())]
    rates = {member if callable(member) else abs(member) for member in members}
    if len(rates) == 1 and all(len({*step.rates.values()}) == 1 for step in recorded):
        rate = rates.pop()
        schedule: Any = rate if callable(rate) else lambda count: rate
        taken = itertools.accumulate((not step.skipped for step in recorded), initial=0)
        counts = (stepper.recording.first + count for count in taken)
        pairs = zip(recorded, counts, strict=False)
        return [dict.fromkeys(step.rates, abs(float(schedule(count)))) for step, count in pairs]
    return _measured(stepper)


def _is_rate(name: str, member: Any) -> bool:
    is_number = type(member) in (int, float)
    return name in (*RATES, "step_size_fn") and (is_number or callable(member))


def _measured(stepper: Stepper) -> list[dict[str, float]] | str:
    """The rates by how far each group's updates go beside the recorded ones."""
    if not stepper.can_set:
        return "the optimizer does not tell its rate"
    run, rates = stepper.run(lockstep=True), []
    for number, step in enumerate(stepper.recording.steps):
        rows, row = _rows(step, {name: leaf[number] for name, leaf in run.items()}), {}
        for group, rate in step.rates.items():
            old, there, here = _joined(rows, map(path_text, stepper.paths_of(group)))
            moved = np.abs(there - old).max(initial=0)
            tolerance = 1e-4 + 2.0**-20 * np.abs(old).max(initial=0) / max(moved, 1e-30)
            factor = fitted_factor(there - old, here - old, tolerance)
            if factor is None:
                return "the optimizer does not tell its rate, and its updates are no multiple"
            row[group] = rate if abs(factor - 1) <= tolerance else rate * factor
        rates.append(row)
    return rates


_Rows = Mapping[str, Sequence[np.ndarray]]  # old, recorded and own new parameters, by name


def _rows(step: Step, here: Mapping[str, np.ndarray]) -> _Rows:
    old, new = (named_leaves(step.trees[tree]) for tree in ("params", "new_params"))
    sides = (old, new, here)
    return {name: [np.asarray(s[name], np.float64).ravel() for s in sides] for name in old}


def _joined(rows: _Rows, names: Iterable[str]) -> list[np.ndarray]:
    return [np.concatenate(leaves) for leaves in zip(*map(rows.__getitem__, names), strict=True)]


def judge_steps(stepper: Stepper, settings: Settings) -> tuple[list[Stage], str]:
    """The stages of the rate and of the optimizer, and what explains a difference."""
    try:
        rates = rates_of(stepper)
    except NotJudgedError as error:
        rates = str(error)
    rate = judge_rates(stepper.recording, rates)
    try:
        stage = _judge(stepper)
    except NotJudgedError as error:
        stage = not_judged(NAME, str(error), asked=True)
    is_open = stage.parts and not rate.parts
    return [rate, stage], _explain(stepper, settings) if is_open else ""


def _judge(stepper: Stepper) -> Stage:
    """Whether the optimizer makes the recorded parameters of the recorded gradients."""
    steps = stepper.recording.steps
    recorded = named_leaves(stepper.recording.stacks("new_params"))
    kinds = [False, True] if stepper.can_set else [False]

    runs = {lockstep: stepper.run(lockstep=lockstep) for lockstep in kinds}
    comparisons = {lockstep: compare(recorded, runs[lockstep]) for lockstep in kinds}
    free = comparisons[False]
    ulp = max(comparison.ulp for comparison in comparisons.values())
    if all(comparison.identical for comparison in comparisons.values()):
        return Stage(NAME, Outcome.IDENTICAL, distance=distance_by_step(free))
    bounds = {True: _LOCKSTEP, False: _FREE}
    most, rounding = free.allowed(OPEN_ULP), dict.fromkeys(kinds, 0.0)
    if any(comparison.ulp > bounds[lockstep] for lockstep, comparison in comparisons.items()):
        for lockstep in kinds:
            wide = stepper.run(lockstep=lockstep, wide=True)
            rounding[lockstep] = _OWN * compare(runs[lockstep], wide).ulp
            bounds[lockstep] = max(bounds[lockstep], min(rounding[lockstep], most))
    beyond = [lockstep for lockstep in kinds if comparisons[lockstep].ulp > bounds[lockstep]]
    beyond += [False] * (free.relative > VISIBLE and not beyond)
    if not beyond:
        text = f"at most {ulp:.3g} ULP"
        return Stage(NAME, Outcome.ROUNDING, text, distance=distance_by_step(free))
    at = True in beyond
    is_far = comparisons[at].ulp > max(rounding[at], most)

    def cause(number: int, leaf: LeafDistance, parted: set[str]) -> str:
        text = f"{by_scale(number, leaf, parted)} ({leaf.ulp_by_step[number]:.3g} ULP)"
        text += f"; after {len(steps)} steps {relative_text(free.relative)}"
        if rounding[at] >= comparisons[at].ulp:
            return (
                f"{text}. In float64 the optimizer here is as far from itself: it is "
                "ill-conditioned, or computes in half precision"
            )
        rows = _rows(steps[number], {name: leaf[number] for name, leaf in runs[at].items()})
        why = _cause(steps[number], rows, parted, leaf.path)
        return f"{text}{why and '. '}{why}"

    outcome = Outcome.DIFFERENT if is_far else Outcome.UNDECIDED
    stage = parted_stage(NAME, outcome, comparisons[at], steps, bounds[at], cause)
    return replace(stage, distance=distance_by_step(free))


def _cause(step: Step, rows: _Rows, parted: set[str], leaf: str) -> str:
    """Returns the likely cause of the first diverging step, in words; empty if unknown."""
    if any((tree, path_text(path)) == ("grads", leaf) for tree, path in step.missing):
        return f"{leaf} has no gradient there (None) and is left alone; here its gradient is zero"
    old, there, here = rows[leaf]
    if np.array_equal(old, here) != np.array_equal(old, there):
        side = "here" if np.array_equal(old, here) else "there"
        return f"{leaf} does not move {side}: is it frozen?"
    old, there, here = _joined(rows, sorted(parted))
    alike = "" if len(parted) == len(rows) else f" of {', '.join(sorted(parted)[:3])}"
    factor = fitted_factor(there - old, here - old, 1e-3)
    if factor is not None:
        return f"Every update{alike} here is {factor:.6g} times the recorded one"
    decay, rate = fitted_factor(old, here - there, 0.05), max(step.rates.values(), default=0.0)
    if decay is not None and rate:
        amount, side = abs(decay) / rate, "here" if decay < 0 else "there"
        return f"As of a decoupled weight decay that is {amount:.2g} more {side}{alike}"
    return ""


def _explain(stepper: Stepper, settings: Settings) -> str:
    """Returns settings with which the program follows the recording, in words."""
    there = stepper.recording.index.get("settings", {})
    recorded: Any = SimpleNamespace(parameters=there, name="the recording", build=lambda: None)

    def outcome(side: Any, is_short: bool) -> Outcome:
        recording = stepper.recording.until(FEW if is_short else None)
        return _judge(Stepper(side, recording, stepper.state)).outcome

    explanation = search(recorded, settings, outcome, TRIES)
    return "" if explanation is None else str(explanation)


def as_settings(optimizer: Any) -> Settings:
    """What a user gives as the optimizer, with its settings."""
    if isinstance(optimizer, NamedSide | ObjectSide):
        return optimizer
    try:
        as_side(optimizer)
    except ValueError:
        if not callable(optimizer):
            raise
        return NamedSide(getattr(optimizer, "__qualname__", "optimizer"), optimizer)
    return ObjectSide("optimizer", optimizer)
