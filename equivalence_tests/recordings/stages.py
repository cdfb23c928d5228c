"""The stages of a step, each judged alone: batches and rates; the others have files of their own.

Each says where a program parts from a recording, and what that looks like: batches in another
order, a rate that is one step late.
"""

import enum
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from equivalence_tests.compare.comparison import Comparison, LeafDistance, compare
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.compare.relation import fitted_factor
from equivalence_tests.recordings.bounds import OPEN_ULP
from equivalence_tests.recordings.format import Flat, Recording, Step, path_text
from equivalence_tests.recordings.recorder import digest, leaves_of
from optax_bridge._text import listing


class Outcome(enum.Enum):
    """The outcome of a stage."""

    IDENTICAL = "identical"
    ROUNDING = "rounding only"
    UNDECIDED = "not decided"
    DIFFERENT = "different"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Stage:
    """A stage of a step, judged over all recorded steps."""

    name: str
    outcome: Outcome
    text: str = ""
    step: int | None = None
    leaf: str = ""
    distance: Sequence[float] = field(default=())  # over the tensor's scale, by step
    asked: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.outcome.value}{self.text and ': '}{self.text}"

    @property
    def parts(self) -> bool:
        """True if the program parts from the recording here, or may do so."""
        return self.outcome in (Outcome.DIFFERENT, Outcome.UNDECIDED)


Leaves = Mapping[str, np.ndarray]  # by name, with a leading axis of steps
# The words for the first parting: number of the step, the leaf, and all that are beyond the bound.
Cause = Callable[[int, LeafDistance, set[str]], str]


def not_judged(name: str, why: str, *, asked: bool = False) -> Stage:
    """Returns a stage that cannot be judged; if it was requested, the replay is not judged."""
    return Stage(name, Outcome.NOT_JUDGED, why, asked=asked)


def by_scale(number: int, leaf: LeafDistance, parted: set[str]) -> str:
    """How far a leaf is at a step, in words."""
    return f" by {relative_text(float(leaf.relative_by_step[number]))} of its scale"


def stage_between(name: str, sides: Iterable[Leaves], steps: Sequence[Step], bound: float) -> Stage:
    """The stage of two sides under a bound; where they have other leaves, they differ."""
    try:
        return stage_of(name, compare(*sides), steps, bound)
    except ValueError as error:
        return Stage(name, Outcome.DIFFERENT, str(error), steps[0].number)


def stage_of(
    name: str, comparison: Comparison, steps: Sequence[Step], bound: float, cause: Cause = by_scale
) -> Stage:
    """The stage of a comparison under a bound."""
    outcome = Outcome(comparison.within(bound).value)
    if outcome is Outcome.DIFFERENT:
        return parted_stage(name, outcome, comparison, steps, comparison.allowed(bound), cause)
    text = "" if comparison.identical else f"at most {comparison.ulp:.3g} ULP"
    return Stage(name, outcome, text, distance=distance_by_step(comparison))


def parted_stage(
    name: str,
    outcome: Outcome,
    comparison: Comparison,
    steps: Sequence[Step],
    bound: float,
    cause: Cause,
) -> Stage:
    """A stage that parts: the first step beyond a bound, and the leaf that is farthest there."""
    beyond = [leaf for leaf in comparison.by_leaf if (leaf.ulp_by_step > bound).any()]
    beyond = beyond or list(comparison.by_leaf)  # visible, though within the bound
    number = min(int((leaf.ulp_by_step > bound).argmax()) for leaf in beyond)
    first = [leaf for leaf in beyond if leaf.ulp_by_step[number] > bound] or beyond
    farthest = max(first, key=lambda leaf: leaf.relative_by_step[number])
    step = steps[number].number
    text = f"from step {step}, {farthest.path}"
    text += cause(number, farthest, {leaf.path for leaf in first})
    return Stage(name, outcome, text, step, farthest.path, distance_by_step(comparison))


def distance_by_step(comparison: Comparison) -> list[float]:
    """The largest distance over a tensor's scale, at each step."""
    leaves = [leaf.ulp_by_step * leaf.eps for leaf in comparison.by_leaf]
    return np.max([np.zeros(len(comparison.ulp_by_step)), *leaves], axis=0).tolist()


def judge_batches(recording: Recording, batches: Iterable[Any] | Callable[[], Any]) -> Stage:
    """Asks whether the program's batches are the recorded ones."""
    name = "batches"
    steps = list(itertools.takewhile(lambda step: step.batch is not None, recording.steps))
    if not steps:
        return not_judged(name, "the recording has no batches", asked=True)
    source = batches() if callable(batches) else batches
    yielded = [batch for _, batch in zip(steps, source, strict=False)]
    if not yielded:
        return not_judged(name, "--batches yields none", asked=True)
    texts = list(map(digest, yielded))
    recorded = [digest(step.batch) for step in steps[: len(yielded)]]
    differs = [here != there for here, there in zip(texts, recorded, strict=True)]
    if not any(differs):
        text = f"those of the first {len(yielded)} steps, all that there are"
        return Stage(name, Outcome.IDENTICAL, text if len(yielded) < len(recording.steps) else "",
                     distance=[0.0] * len(yielded))  # fmt: skip
    number, leaf = differs.index(True), "batch"
    step = steps[number]
    if sorted(texts) == sorted(recorded):
        at = steps[recorded.index(texts[number])].number
        why = f"the same batches in another order: this one is that of step {at}"
    elif step.digest is not None:
        why = "other batches; the recording has but a digest of them"
    else:
        why, leaf = _batch_cause(step.trees["batch"], yielded[number])
    return Stage(name, Outcome.DIFFERENT, f"from step {step.number}, {leaf}: {why}", step.number,
                 leaf, list(map(float, differs)))  # fmt: skip


def _batch_cause(recorded: Flat, batch: Any) -> tuple[str, str]:
    yielded = flat_like(batch)
    if yielded.keys() != recorded.keys():
        missing = [path_text(path, "batch") for path in recorded.keys() ^ yielded.keys()]
        return f"leaves of one side alone: {listing(sorted(missing))}", "batch"
    for path, value in recorded.items():
        there, here = np.asarray(value), np.asarray(yielded[path])
        leaf = path_text(path, "batch")
        if there.shape != here.shape or there.dtype != here.dtype:
            kinds = (f"{side.dtype}{list(side.shape)}" for side in (there, here))
            return f"{' there, '.join(kinds)} here", leaf
        if there.tobytes() == here.tobytes():
            continue
        rows = [sorted(row.tobytes() for row in side) for side in (there, here) if side.ndim]
        if rows and rows[0] == rows[1]:
            return "the same set in another order", leaf
        x, y = there.astype(np.float64).ravel(), here.astype(np.float64).ravel()
        if x.size > 2 and np.isfinite([*x, *y]).all() and np.ptp(x):
            factor, offset = np.polyfit(x, y, 1)
            if np.abs(y - factor * x - offset).max() <= 1e-3 * np.abs(y).max():
                sign = "+-"[int(offset < 0)]
                terms = f"{factor:.6g} times the recorded one {sign} {abs(offset):.6g}"
                return f"another normalisation: here it is {terms}", leaf
        return "other data", leaf
    return "other containers", "batch"


def flat_like(tree: Any) -> Flat:
    """The leaves of a tree by the paths that the recorder gives them."""
    return {tuple(path): leaf for path, leaf in leaves_of(tree, "batch")}


def judge_rates(recording: Recording, rates_here: Sequence[Mapping[str, float]] | str) -> Stage:
    """Asks whether the rates of an optimizer are the recorded ones; or why they are not known."""
    name, steps = "rate", recording.steps
    if not all(step.rates for step in steps):
        return not_judged(name, "the recording has no rates")
    if isinstance(rates_here, str):
        return not_judged(name, rates_here)
    groups = [group for group in steps[0].rates if all(group in rates for rates in rates_here)]
    if not groups:
        return not_judged(name, f"the groups {listing(list(steps[0].rates))} have no rate here")
    sides = [
        {f"rate[{g!r}]": np.asarray([rates[g] for rates in side], np.float32) for g in groups}
        for side in ([step.rates for step in steps], rates_here)
    ]

    def cause(number: int, leaf: LeafDistance, parted: set[str]) -> str:
        there, here = (side[leaf.path] for side in sides)
        values = f"{there[number]:.4g} there, {here[number]:.4g} here"
        return f": {values}{_rate_cause(there, here)}"

    return stage_of(name, compare(*sides), steps, OPEN_ULP, cause)


def _rate_cause(there: np.ndarray, here: np.ndarray) -> str:
    scale = 1e-5 * max(np.abs(there).max(), np.abs(here).max())
    for word, one, other in (("late", there[:-1], here[1:]), ("early", there[1:], here[:-1])):
        if len(one) > 1 and np.ptp(one) > scale and np.abs(one - other).max() <= scale:
            return f": one step {word} here"
    factor = fitted_factor(there, here, 1e-4)
    return f": {factor:.4g} times the recorded one at every step" if factor is not None else ""
