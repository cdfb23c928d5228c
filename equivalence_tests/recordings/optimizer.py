"""The optimizer through recorded gradients: each step alone and as a whole, and its rates."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import legacy_optim
from equivalence_tests.compare.comparison import VISIBLE
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.pair.explanation import FEW, TRIES, Settings, search
from equivalence_tests.pair.named import NamedSide, ObjectSide
from equivalence_tests.pair.settings import members_of
from equivalence_tests.recordings.bounds import OPEN_ULP
from equivalence_tests.recordings.format import (
    Flat,
    Path_,
    Recording,
    RecordingError,
    Step,
    host_leaves,
    jax_path,
    named_leaves,
    nest,
    path_text,
)
from equivalence_tests.recordings.stages import (
    Outcome,
    Stage,
    compared,
    distance_by_step,
    first_parting,
    fitted_factor,
    not_judged,
)
from equivalence_tests.sides.adapt import as_side
from equivalence_tests.sides.in_float64 import wide as in_float64
from equivalence_tests.sides.precision import float64
from optax_bridge import TrainState
from optax_bridge._hyper_params import RATES
from optax_bridge.checkpoints import CheckpointError, from_state_dict
from optax_bridge.cli.errors import error_text
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.torch.checkpoints.layout import torch_checkpoint
from optax_bridge.torch.checkpoints.moves import as_legacy
from optax_bridge.torch.checkpoints.names import NamesFile

NAME = "optimizer"
Factors = Sequence[
    Mapping[str, float]
]  # what brings the updates of each group to the recorded rate
# In ULP: what a step alone and a whole run may round where float64 shows no more. Beyond that, four
# times our own rounding is rounding too, as far as the bound of `OPEN_ULP` goes; different is what
# exceeds both, and what lies between is not decided.
_ALONE, _WHOLE, _OWN = 4.0, 16.0, 4.0


class NotJudgedError(ValueError):
    """The reason why the optimizer cannot be judged by this recording."""


class Stepper:
    """An optimizer that takes recorded steps."""

    def __init__(self, value: Any, recording: Recording, names: NamesFile | None, source: Any):
        self.recording, self.names, self.source = recording, names, source
        self.value, self.side = value, as_side(value)
        self.takes_rates = _learning_rate_of(value) is None
        step = self.side.step
        if self.takes_rates and isinstance(value, ExactTransformation):
            step = _with_rate(value)
        self._step = jax.jit(step) if self.side.compiled else step
        self.can_set = self.side.name == "GradientTransformation" or isinstance(
            value, legacy_optim.OptimizerDef | legacy_optim.Optimizer | tuple | TrainState
        )

    def run(
        self,
        steps: int,
        *,
        alone: bool,
        wide: bool = False,
        factors: Factors = (),
    ) -> dict[Path_, np.ndarray]:
        """Returns the new parameters after each step; factors by group scale the updates."""
        recorded = self.recording.steps[:steps]
        seen: list[Flat] = []
        with float64(wide), np.errstate(all="ignore"):
            carry = self._start(wide)
            for number, step in enumerate(recorded):
                params = step.trees["params"]
                if (alone and number) or factors:
                    own = params if alone or not seen else seen[-1]
                    carry = self._with_params(carry, _jax(own, wide))
                before = host_leaves(self.side.view(carry)["params"])
                if not step.skipped:
                    grads = step.trees["grads"]
                    full = {p: grads.get(p, np.zeros_like(leaf)) for p, leaf in params.items()}
                    carry = self._step(carry, _jax(full, wide), *self._rate(step.rates))
                new = host_leaves(self.side.view(carry)["params"])
                if factors:
                    by_group = factors[number]
                    by_path = {p: by_group[g] for g in by_group for p in self.paths_of(g)}
                    new = {p: _scaled(before[p], x, by_path.get(p, 1.0)) for p, x in new.items()}
                seen.append(new)
        dtypes = {path: leaf.dtype for path, leaf in recorded[0].trees["params"].items()}
        return {p: np.stack([new[p] for new in seen]).astype(dtypes[p]) for p in seen[0]}

    def paths_of(self, group: str) -> list[Path_]:
        """The parameters of a recorded group; all where the groups' members are not known."""
        groups = {g["name"]: g["params"] for g in self.recording.index.get("groups", [])}
        paths = groups.get(group, self.recording.steps[0].trees["params"])
        return [tuple(path) for path in paths]

    def _rate(self, rates: Mapping[str, float]) -> tuple[Any, ...]:
        if not self.takes_rates:
            return ()
        if len(rates) != 1:
            raise NotJudgedError("the optimizer takes its rate per call, and no one is recorded")
        return (jnp.asarray(next(iter(rates.values()))),)

    def _start(self, wide: bool) -> Any:
        state = self.source.steps[0].tree("state")
        if wide and state is not None:  # which is brought over as it was recorded
            with float64(False):
                carry = self._start(False)
            return jax.tree.map(jnp.asarray, in_float64(carry))
        params = _jax(self.recording.steps[0].trees["params"], wide)
        try:
            carry = self.side.init(params)
        except Exception as error:  # whatever the user's optimizer raises
            raise RecordingError(
                f"optimizer: its init {error_text(error)} with the recorded parameters "
                f"{list(named_leaves(self.recording.steps[0].trees['params'], 'params'))[:3]}... "
                "If they have other names here, give --names"
            ) from error
        if state is None:
            if self.recording.index.get("first", 0):
                raise NotJudgedError(
                    f"the recording begins at step {self.recording.first} without the optimizer's "
                    "state"
                )
            return carry
        try:
            return self._carried(carry, state)
        except (CheckpointError, LookupError, TypeError, ValueError) as error:
            raise NotJudgedError(f"the recorded state cannot be brought over: {error}") from None

    def _carried(self, carry: Any, state: Flat) -> Any:
        """The carry with the recorded state in it: PyTorch's, that of flax.optim or Optax's."""
        first = self.source.steps[0]
        if ("step",) in state and any(path[0] == "param_states" for path in state):
            target = nest({p: leaf for p, leaf in self.recording.steps[0].trees["params"].items()})
            tree: Any = {"target": target, "state": nest(state)}
        elif any(path[0] == "param_groups" for path in state):
            tensors = {
                str(path[0]): leaf
                for name in ("params", "model_state")
                for path, leaf in (first.tree(name) or {}).items()
            }
            saved = {"model": tensors, "optimizer": nest(state)}
            checkpoint = torch_checkpoint(saved, self.source.place, "model", "optimizer")
            file = self._names_file(list(tensors))
            tree, _ = as_legacy(checkpoint, file, step=self.recording.first)
            tree = tree["optimizer"]
        else:
            return self._with_optax(carry, state)
        if self.side.name != "GradientTransformation":
            if isinstance(self.value, legacy_optim.OptimizerDef):
                return from_state_dict(carry, tree)
            raise ValueError(f"{self.side.name} is no transformation of Optax")
        params = carry[1]
        template = TrainState.create(apply_fn=None, params=params, tx=self.value)
        restored = from_state_dict(template, tree)
        return restored.step, params, restored.opt_state

    def _names_file(self, tensors: Sequence[str]) -> NamesFile:
        groups = self.source.index.get("groups", [])
        order = [str(path[0]) for group in groups for path in group["params"]]
        names = self.names
        entries = {n: f"params/{n}" for n in tensors} if names is None else names.entries
        drop = () if names is None else names.drop
        return NamesFile(self.source.place, "model", "optimizer", drop, order, entries)

    def _with_optax(self, carry: Any, state: Flat) -> Any:
        count, params, opt_state = carry
        leaves, treedef = jax.tree_util.tree_flatten_with_path(opt_state)
        if absent := [path for path, _ in leaves if jax_path(path) not in state]:
            raise ValueError(
                f"it lacks {path_text(jax_path(absent[0]), 'state')}; is it of another chain?"
            )
        values = [jnp.asarray(state[jax_path(path)], leaf.dtype) for path, leaf in leaves]
        return count + self.recording.first, params, treedef.unflatten(values)

    def _with_params(self, carry: Any, params: Any) -> Any:
        if hasattr(carry, "target"):
            return carry.replace(target=params)
        if hasattr(carry, "opt_state"):
            return carry.replace(params=params)
        return (params, carry[1]) if len(carry) == 2 else (carry[0], params, carry[2])


def _with_rate(tx: ExactTransformation) -> Callable[..., Any]:
    def step(carry: Any, grads: Any, rate: Any) -> Any:
        count, params, state = carry
        return count + 1, *tx.step(grads, state, params, learning_rate=rate)

    return step


def _learning_rate_of(value: Any) -> Any:
    """The rate that an optimizer was made with; None where each call has to give it."""
    hyper_params = getattr(getattr(value, "optimizer_def", value), "hyper_params", None)
    if isinstance(hyper_params, Mapping):
        return hyper_params.get("learning_rate", 0.0)
    return getattr(hyper_params, "learning_rate", 0.0)


def _jax(flat: Flat, wide: bool) -> Any:
    return jax.tree.map(jnp.asarray, in_float64(nest(flat)) if wide else nest(flat))


def _scaled(old: np.ndarray, new: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1:
        return new
    before = old.astype(np.float64)
    return (before + factor * (new - before)).astype(new.dtype)


def own_rates(stepper: Stepper, steps: int) -> list[dict[str, float]] | str:
    """The optimizer's rate at each step by the recorded groups, or why it is not known."""
    recorded = [step.rates for step in stepper.recording.steps[:steps]]
    if stepper.takes_rates:
        return "the recorded rates are given per call"
    if not all(recorded):
        return "the recording has no rates"
    held = _unique(_held(stepper.value, set(), 0, RATES))
    held = held or _unique(_held(stepper.value, set(), 0, ("step_size_fn",)))
    is_alike = all(len(set(rates.values())) == 1 for rates in recorded)
    if len(held) == 1 and is_alike:
        number, own = stepper.recording.first, []
        for step, rates in zip(stepper.recording.steps, recorded, strict=False):
            rate = held[0]
            value = rate(number) if callable(rate) else rate
            own.append(dict.fromkeys(rates, abs(float(value))))
            number += not step.skipped
        return own
    return _measured(stepper, steps)


def _held(value: Any, seen: set[int], depth: int, names: Sequence[str]) -> Iterator[Any]:
    if depth > 32 or id(value) in seen:
        return
    seen.add(id(value))
    for name, member in members_of(value):
        if name in names and (callable(member) or type(member) in (int, float)):
            yield member
        else:
            yield from _held(member, seen, depth + 1, names)


def _unique(values: Iterator[Any]) -> list[float | Callable[[int], Any]]:
    return list({v if callable(v) else abs(v): v for v in values}.values())


def _measured(stepper: Stepper, steps: int) -> list[dict[str, float]] | str:
    """The rates by how far each group's updates go beside the recorded ones."""
    if not stepper.can_set:
        return "the optimizer does not tell its rate"
    own = stepper.run(steps, alone=True)
    rates = []
    for number, step in enumerate(stepper.recording.steps[:steps]):
        row = {}
        for group, rate in step.rates.items():
            paths = stepper.paths_of(group)
            old, there, here = (
                np.concatenate([np.asarray(tree[p], np.float64).ravel() for p in paths])
                for tree in (step.trees["params"], step.trees["new_params"],
                             {p: own[p][number] for p in paths}))  # fmt: skip
            moved = np.abs(there - old).max(initial=0)
            tolerance = 1e-4 + 2.0**-20 * np.abs(old).max(initial=0) / max(moved, 1e-30)
            factor = fitted_factor(there - old, here - old, tolerance=tolerance)
            if factor is None:
                return "the optimizer does not tell its rate, and its updates are no multiple"
            row[group] = rate if abs(factor - 1) <= tolerance else rate * factor
        rates.append(row)
    return rates


def judge_optimizer(stepper: Stepper, steps: int, factors: Factors = ()) -> Stage:
    """Asks whether the optimizer makes the recorded parameters of the recorded gradients."""
    try:
        return _judge(stepper, steps, factors)
    except NotJudgedError as error:
        return not_judged(NAME, str(error), asked=True)


def _judge(stepper: Stepper, steps: int, factors: Factors) -> Stage:
    recorded = named_leaves(stepper.recording.stacked("new_params", steps))
    kinds = [False, True] if stepper.can_set else [False]

    def run(alone: bool, wide: bool) -> dict[str, np.ndarray]:
        return named_leaves(stepper.run(steps, alone=alone, wide=wide, factors=factors))

    own = {alone: run(alone, False) for alone in kinds}
    comparisons = {alone: compared(recorded, own[alone]) for alone in kinds}
    whole = comparisons[False]
    distance = distance_by_step(whole)
    if all(comparison.identical for comparison in comparisons.values()):
        return Stage(NAME, Outcome.IDENTICAL, distance=distance)
    bounds = {True: _ALONE, False: _WHOLE}
    most, own_rounding = whole.allowed(OPEN_ULP), dict.fromkeys(kinds, 0.0)
    if any(comparison.ulp > bounds[alone] for alone, comparison in comparisons.items()):
        for alone in kinds:
            own_rounding[alone] = _OWN * compared(own[alone], run(alone, True)).ulp
            bounds[alone] = max(bounds[alone], min(own_rounding[alone], most))
    beyond = [alone for alone in kinds if comparisons[alone].ulp > bounds[alone]]
    beyond += [False] * (whole.relative > VISIBLE and not beyond)
    if not beyond:
        ulp = max(comparison.ulp for comparison in comparisons.values())
        return Stage(NAME, Outcome.ROUNDING, f"at most {ulp:.3g} ULP", distance=distance)
    at = True in beyond
    is_far = comparisons[at].ulp > max(own_rounding[at], most)
    outcome = Outcome.DIFFERENT if is_far else Outcome.UNDECIDED
    number, leaf, parted = first_parting(comparisons[at], bounds[at])
    step = stepper.recording.steps[number]
    by = relative_text(float(leaf.relative_by_step[number]))
    text = f"from step {step.number}, {leaf.path} by {by} of its scale"
    text += f" ({leaf.ulp_by_step[number]:.3g} ULP); after {len(distance)} steps "
    text += relative_text(whole.relative)
    if own_rounding[at] >= comparisons[at].ulp:
        text += ". In float64 the optimizer here is as far from itself: it is ill-conditioned"
        text += ", or computes in half precision"
    elif cause := _cause(stepper, step, {n: leaf[number] for n, leaf in own[at].items()}, parted,
                         leaf.path):  # fmt: skip
        text += f". {cause}"
    return Stage(NAME, outcome, text, step.number, leaf.path, distance)


def _cause(
    stepper: Stepper, step: Step, own: Mapping[str, np.ndarray], parted: set[str], leaf: str
) -> str:
    """Returns the likely cause of the first diverging step, in words; empty if unknown."""
    paths = {path_text(path): path for path in step.trees["params"]}
    rows = {
        name: [np.asarray(leaf, np.float64).ravel() for leaf in (
            step.trees["params"][path], step.trees["new_params"][path], own[name])]
        for name, path in paths.items()
    }  # fmt: skip
    if ("grads", paths[leaf]) in step.missing:
        return f"{leaf} has no gradient there (None) and is left alone; here its gradient is zero"
    old, there, here = rows[leaf]
    if np.array_equal(old, here) != np.array_equal(old, there):
        side = "here" if np.array_equal(old, here) else "there"
        return f"{leaf} does not move {side}: is it frozen?"
    old, there, here = (
        np.concatenate([rows[name][n] for name in sorted(parted)]) for n in range(3)
    )
    alike = "" if len(parted) == len(rows) else f" of {', '.join(sorted(parted)[:3])}"
    factor = fitted_factor(there - old, here - old, 1e-3)
    if factor is not None:
        return f"Every update{alike} here is {factor:.6g} times the recorded one"
    decay, rate = fitted_factor(old, here - there, 0.05), max(step.rates.values(), default=0.0)
    if decay is not None and rate:
        amount, side = abs(decay) / rate, "here" if decay < 0 else "there"
        return f"As of a decoupled weight decay that is {amount:.2g} more {side}{alike}"
    return ""


def explain(stepper: Stepper, settings: Settings, steps: int, factors: Factors) -> str:
    """Returns settings with which the program follows the recording, in words."""
    settings_there = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in stepper.recording.index.get("settings", {}).items()
    }
    recorded: Any = SimpleNamespace(
        parameters=settings_there, name="the recording", build=lambda: None
    )

    def outcome(side: Any, count: int) -> Outcome:
        tried = Stepper(side, stepper.recording, stepper.names, stepper.source)
        return _judge(tried, count, factors[:count]).outcome

    def judge(side: Any) -> str | None:
        if steps > FEW and outcome(side, FEW) is Outcome.DIFFERENT:
            return None
        verdict = outcome(side, steps)
        return verdict.value if verdict in (Outcome.IDENTICAL, Outcome.ROUNDING) else None

    readable = settings if settings.takes else ObjectSide(settings.name, settings.build())
    found = search(recorded, readable, judge, TRIES)
    return "" if found is None else str(found)


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
