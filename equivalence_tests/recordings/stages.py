"""The stages of a step, each judged alone; the optimizer's own is in `replay.py`."""

import enum
import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.compare.comparison import Comparison, LeafDistance, compare
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.compare.relation import fitted_factor
from equivalence_tests.recordings import format as files
from equivalence_tests.recordings.format import Flat, Leaves, Recording, Step
from equivalence_tests.recordings.recorder import digest, path_text
from equivalence_tests.sides.precision import float64, pin_precision
from optax_bridge._text import listing
from optax_bridge.cli.errors import error_text

# In ULP at the tensor's scale: what two runs of one optimizer on two platforms may differ by in 100
# steps, from recorded gradients and from those of their own. On other CPUs (GPUs are not measured)
# five optimizers and three models were up to 11 and 40 ULP away from jax 0.10.2 with AVX-512.
# What one more rounding can do at most is the bound for recorded gradients: a beta2 of 0.999 makes
# an error of 2^-24 in its power a thousand times as large in the bias correction 1 - beta2^t, and
# half of that comes through the root: 250 ULP of the first step. A model hands the distance on
# through the next gradient, which made it up to 9 times as large; 16 times is what it may add.
OPEN_ULP, CLOSED_ULP = 256.0, 16 * 256.0
LOSS = "loss and gradients"
# Of a tensor's scale, in float32: what two frameworks' gradients may differ by, see `CLOSED_ULP`.
_GRADIENTS = CLOSED_ULP * 2.0**-23
# A gradient that is so small a part of the largest one is rounding, as of a bias before BatchNorm.
_NO_GRADIENT = 2.0**-17


class Outcome(enum.StrEnum):
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
        """True if the program diverges from the recording in this stage, or may do so."""
        return self.outcome in (Outcome.DIFFERENT, Outcome.UNDECIDED)


# Describes the first divergence: index of the step, its leaf, and all leaves beyond the bound.
Cause = Callable[[int, LeafDistance, set[str]], str]


def not_judged(name: str, why: str, *, asked: bool = False) -> Stage:
    """Returns a stage that cannot be judged; if it was asked for, the replay is not judged."""
    return Stage(name, Outcome.NOT_JUDGED, why, asked=asked)


def different(name: str, step: Step, text: str, leaf: str = "") -> Stage:
    """Returns a stage that diverges at a step."""
    return Stage(name, Outcome.DIFFERENT, f"from step {step.number}, {text}", step.number, leaf)


def by_scale(number: int, leaf: LeafDistance, diverged: set[str]) -> str:
    """The distance of a leaf at a step, in words."""
    return f" by {relative_text(float(leaf.relative_by_step[number]))} of its scale"


def stage_between(
    name: str, sides: Iterable[Leaves], steps: Sequence[Step], bound: float, cause: Cause = by_scale
) -> Stage:
    """The stage of two sides, the recorded one first; with other leaves they differ."""
    try:
        comparison = compare(*sides)
    except ValueError as error:
        return different(name, steps[0], f"{error} (left: recorded, right: here)")
    return stage_of(name, comparison, steps, bound, cause)


def stage_of(
    name: str,
    comparison: Comparison,
    steps: Sequence[Step],
    bound: float,
    cause: Cause = by_scale,
    outcome: Outcome | None = None,
) -> Stage:
    """The stage of a comparison under a bound, with the first step and farthest leaf beyond it."""
    if outcome is None:
        outcome, bound = Outcome(comparison.within(bound).value), comparison.allowed_ulp(bound)
    distance = distance_by_step(comparison)
    if outcome in (Outcome.IDENTICAL, Outcome.ROUNDING):
        text = "" if comparison.identical else f"at most {comparison.ulp:.3g} ULP"
        return Stage(name, outcome, text, distance=distance)
    beyond = [leaf for leaf in comparison.by_leaf if (leaf.ulp_by_step > bound).any()]
    beyond = beyond or list(comparison.by_leaf)  # visible, though within the bound
    number = min(int((leaf.ulp_by_step > bound).argmax()) for leaf in beyond)
    first = [leaf for leaf in beyond if leaf.ulp_by_step[number] > bound] or beyond
    farthest = max(first, key=lambda leaf: leaf.relative_by_step[number])
    step = steps[number].number
    text = f"from step {step}, {farthest.path}"
    text += cause(number, farthest, {leaf.path for leaf in first})
    return Stage(name, outcome, text, step, farthest.path, distance)


def distance_by_step(comparison: Comparison) -> list[float]:
    """The largest distance over a tensor's scale, at each step."""
    leaves = [leaf.ulp_by_step * leaf.eps for leaf in comparison.by_leaf]
    return np.max([np.zeros(len(comparison.ulp_by_step)), *leaves], axis=0).tolist()


def vector(leaves: Iterable[np.ndarray]) -> np.ndarray:
    """The elements of all leaves in float64."""
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves] or [[]])


def common_factor(
    recorded: Leaves, replayed: Leaves, diverged: set[str], tolerance: float
) -> tuple[float | None, str]:
    """The factor that all diverging leaves share, if any, and the names of these leaves."""
    names = [name for name in recorded if name in diverged]
    x, y = (vector(side[name] for name in names) for side in (recorded, replayed))
    of_names = "" if len(names) == len(recorded) else f" of {', '.join(names[:3])}"
    return fitted_factor(x, y, tolerance), of_names


def judge_batches(recording: Recording, batches: Iterable[Any] | Callable[[], Any]) -> Stage:
    """Judges whether the program's batches are the recorded ones."""
    steps = list(itertools.takewhile(lambda step: step.batch is not None, recording.steps))
    if not steps:
        return not_judged("batches", "the recording has none", asked=True)
    source = batches() if callable(batches) else batches
    yielded = [batch for _, batch in zip(steps, source, strict=False)]
    if not yielded:
        return not_judged("batches", "--batches yields none", asked=True)
    texts = list(map(digest, yielded))
    recorded = [digest(step.batch) for step in steps[: len(yielded)]]
    distance = [float(x != y) for x, y in zip(texts, recorded, strict=True)]
    if not any(distance):
        return Stage("batches", Outcome.IDENTICAL, f"in {len(yielded)} steps", distance=distance)
    number, leaf = distance.index(1.0), "batch"
    step = steps[number]
    if sorted(texts) == sorted(recorded):
        other = steps[recorded.index(texts[number])].number
        why = f"the same batches in another order: this is the batch of step {other}"
    elif isinstance(step.batch, str):
        why = "other batches; the recording has only digests of its own"
    else:
        why, leaf = _batch_cause(step.trees["batch"], files.flat_like(yielded[number]))
    return replace(different("batches", step, f"{leaf}: {why}", leaf), distance=distance)


def _batch_cause(recorded: Flat, yielded: Flat) -> tuple[str, str]:
    """Returns the likely cause for a batch that differs, and its first leaf that does."""
    if missing := [path_text(path, "batch") for path in recorded.keys() ^ yielded.keys()]:
        return f"leaves on one side only: {listing(sorted(missing))}", "batch"
    pairs = ((path, np.asarray(x), np.asarray(yielded[path])) for path, x in recorded.items())
    path, old, new = next(pair for pair in pairs if _bits(pair[1]) != _bits(pair[2]))
    leaf = path_text(path, "batch")
    if _bits(old)[0] != _bits(new)[0]:
        return f"{_bits(old)[0]} in the recording, {_bits(new)[0]} here", leaf
    rows = [sorted(row.tobytes() for row in side) for side in (old, new) if side.ndim]
    if rows and rows[0] == rows[1]:
        return "the same examples in another order", leaf
    x, y = vector([old]), vector([new])
    if x.size > 2 and np.isfinite([*x, *y]).all() and np.ptp(x):
        factor, offset = np.polyfit(x, y, 1)
        if np.abs(y - factor * x - offset).max() <= 1e-3 * np.abs(y).max():
            terms = f"{factor:.6g} times the recorded one {offset:+.6g}"
            return f"another normalisation: here it is {terms}", leaf
    return "other data", leaf


def _bits(x: np.ndarray) -> tuple[str, bytes]:
    return f"{x.dtype}{list(x.shape)}", x.tobytes()


def judge_loss(recording: Recording, loss: Callable[..., Any]) -> Stage:
    """Judges loss and gradients at the recorded parameters and batches against the recorded."""
    taken = [step for step in recording.steps if not step.skipped]
    with_batch = itertools.takewhile(lambda step: not isinstance(step.batch, str | None), taken)
    if not (steps := list(with_batch)):
        why = "digests of the batches" if any(step.batch for step in taken) else "no batches"
        return not_judged(LOSS, f"the recording has {why}", asked=True)
    program, results = _Program(loss), []
    for step in steps:
        try:
            results.append(program(step))
        except Exception as error:  # any error of the user's function
            hint = ": not in the recording. Are two leaves tied in it, and untied here?"
            text = f"loss(...) {error_text(error, first_line=True)}"
            return different(LOSS, step, text + hint * isinstance(error, KeyError))
    values, grads, states = zip(*results, strict=True)
    tree = "raw_grads" if any(step.trees.get("raw_grads") for step in steps) else "grads"
    trees = [step.trees.get(tree, {}) for step in steps]
    old = files.stacks_of(list(map(_with_zeros, trees, grads)), tree)
    new = files.stacks_of(grads, tree)
    new = {n: x.astype(old[n].dtype) if n in old else x for n, x in new.items()}
    largest = {n: max(np.abs(s[n]).max(initial=0) for s in (old, new) if n in s) for n in new}
    least = _NO_GRADIENT * max(filter(np.isfinite, largest.values()), default=0.0)
    tiny = [name for name in new if largest[name] <= least]
    remark = f"the gradients of {len(tiny)} of {len(new)} leaves are rounding" if tiny else ""
    coarsest = max((leaf.dtype for leaf in new.values()), key=lambda d: jnp.finfo(d).eps)
    old, new = ({n: side[n] for n in side if n not in tiny} for side in (old, new))

    # The new model state is that of the next step; after the last one it is not recorded.
    model_states = [step.trees.get("model_state", {}) for step in steps[1:]]
    pair = [files.stacks_of([*x, *x[-1:]], "model_state") for x in (model_states, states[:-1])]
    floats = [n for n, x in pair[0].items() if n in pair[1] and x.dtype.kind == "f"]
    sides = [
        grads | {n: state[n] for n in floats} for grads, state in zip([old, new], pair, strict=True)
    ]
    if all(step.loss is not None for step in steps):
        sides[0]["loss"] = np.asarray([step.loss for step in steps], coarsest)
        sides[1]["loss"] = np.asarray(values, coarsest)

    def cause(number: int, leaf: LeafDistance, diverged: set[str]) -> str:
        step, text = steps[number], by_scale(number, leaf, diverged)
        at = [{name: x[number] for name, x in side.items()} for side in sides]
        if diverged <= set(floats):
            start = files.named_leaves(step.trees["model_state"], "model_state")[leaf.path]
            x, y = (vector([side[leaf.path] - start]) for side in at)
            factor = fitted_factor(x, y, 1e-2)
            why = f", which move {factor:.4g} times as far here: momentum?" if factor else ""
            return f"{text}: the gradients agree, but not the running statistics{why}"
        if "loss" in diverged:
            text += f". The loss is {step.loss:.6g} in the recording, {values[number]:.6g} here"
        at = [{name: side[name] for name in old} for side in at]
        why = _gradient_cause(step, at, diverged) or program.input_cause(step, at[0], tree)
        return f"{text}{why and '. '}{why}"

    stage = stage_between(LOSS, sides, steps, CLOSED_ULP, cause)
    return stage if stage.parts else replace(stage, text=remark or stage.text)


class _Program:
    """A user's loss and its gradient: `loss(params, batch, model_state, rng)`."""

    def __init__(self, loss: Callable[..., Any]):
        taken = inspect.signature(loss).parameters.values()
        count = sum(it.default is inspect.Parameter.empty for it in taken)

        def call(*inputs: Any) -> Any:
            result = loss(*inputs[:count])
            return result if isinstance(result, tuple) else (result, None)

        self._call, self._gradient = call, jax.jit(jax.value_and_grad(call, has_aux=True))

    def __call__(self, step: Step, **changed: Flat) -> tuple[float, Flat, Flat]:
        """Returns the loss, its gradients and the new model state."""
        with pin_precision(), float64(step.is_double):
            (value, state), grads = self._gradient(*_inputs(step.trees | changed))
        return float(value), files.flat_like(grads), files.flat_like(state)

    def input_cause(self, step: Step, recorded: Leaves, tree: str) -> str:
        """Returns the effect of another input of the loss on the difference, in words."""
        for path, leaf in step.trees["params"].items():
            if leaf.ndim == 2 and leaf.shape == leaf.shape[::-1]:
                _, turned, _ = self(step, params=step.trees["params"] | {path: leaf.T})
                named = files.named_leaves(turned | {path: turned[path].T}, tree)
                pairs = [(named[name], grad) for name, grad in recorded.items()]
                if all(np.abs(x - y).max() <= _GRADIENTS * np.abs(y).max() for x, y in pairs):
                    return f"With {path_text(path)} transposed they agree"
        with float64(step.is_double):
            program = str(jax.make_jaxpr(self._call)(*_inputs(step.trees)))
        return "The loss draws random numbers: is dropout still on?" * ("random_bits" in program)


def _inputs(trees: Mapping[str, Flat]) -> list[Any]:
    names = ("params", "batch", "model_state", "rng")
    nested = [files.nest(trees[name]) if trees.get(name) else None for name in names]
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, nested)


def _with_zeros(recorded: Flat, grads: Flat) -> Flat:
    """Returns recorded gradients, with zeros for None where the program has a gradient."""
    paths = [path for path, leaf in recorded.items() if leaf is not None or path in grads]
    return {p: np.zeros_like(grads[p]) if recorded[p] is None else recorded[p] for p in paths}


def _gradient_cause(step: Step, sides: Sequence[Leaves], diverged: set[str]) -> str:
    """Returns the likely cause of a difference of gradients, in words; empty if unknown."""
    old, new = sides
    factor, of_names = common_factor(old, new, diverged, _GRADIENTS)
    if factor is not None and abs(factor - 1) > _GRADIENTS:
        name = _factor_name(step, factor)
        return f"Every gradient{of_names} here is {factor:.6g} times the recorded one{name}"
    for name in filter(diverged.__contains__, old):
        if not old[name].any() or not new[name].any():
            where = "None or zero in the recording" if new[name].any() else "zero here"
            return f"{name}: a missing leaf, {where}"
    return ""


def _factor_name(step: Step, factor: float) -> str:
    """Returns the likely cause of a factor of gradients, in words."""
    sizes = {np.shape(leaf)[0] for leaf in step.trees.get("batch", {}).values() if np.ndim(leaf)}
    is_larger_here = abs(factor) > 1
    places = ("here", "in the recording")
    where, other = places if is_larger_here else reversed(places)
    accumulated = f"{step.micro_batches} micro-batches are accumulated and not divided {where}"
    names: list[tuple[float, str]] = [
        (-1, "the opposite sign"),
        (step.micro_batches, accumulated),
        *((size, f"a sum over {size} {where}, a mean {other}") for size in sizes - {0}),
        *((2**power, f"a loss scale that is not undone {where}?") for power in range(7, 33)),
    ]
    if factor > 1 and "raw_grads" not in step.trees:
        names.append((factor, "is that one clipped? Record raw_grads, those before clipping"))
    times = factor if is_larger_here else 1 / factor
    near = (name for value, name in names if abs(times / value - 1) <= _GRADIENTS)
    return "".join(f": {name}" for name in itertools.islice(near, 1))


def judge_rates(recording: Recording, replayed: Sequence[Mapping[str, float]] | str) -> Stage:
    """Judges an optimizer's rates, or the reason why it has none, against the recorded ones."""
    name, steps = "rate", recording.steps
    if not all(step.rates for step in steps):
        return not_judged(name, "the recording has no rates")
    if isinstance(replayed, str):
        return not_judged(name, replayed)
    groups = [group for group in steps[0].rates if all(group in rates for rates in replayed)]
    if not groups:
        return not_judged(name, f"the groups {listing(list(steps[0].rates))} have no rate here")
    sides = [
        {f"rate[{g!r}]": np.asarray([rates[g] for rates in side], np.float32) for g in groups}
        for side in ([step.rates for step in steps], replayed)
    ]

    def cause(number: int, leaf: LeafDistance, diverged: set[str]) -> str:
        old, new = (side[leaf.path] for side in sides)
        return f": recorded {old[number]:.4g}, here {new[number]:.4g}{_rate_cause(old, new)}"

    return stage_of(name, compare(*sides), steps, OPEN_ULP, cause)


def _rate_cause(recorded: np.ndarray, replayed: np.ndarray) -> str:
    scale = 1e-5 * max(np.abs(recorded).max(), np.abs(replayed).max())
    shifts = {"late": (recorded[:-1], replayed[1:]), "early": (recorded[1:], replayed[:-1])}
    for word, (old, new) in shifts.items():
        if len(old) > 1 and np.ptp(old) > scale and np.abs(old - new).max() <= scale:
            return f": one step {word} here"
    factor = fitted_factor(recorded, replayed, 1e-4)
    return f": {factor:.4g} times the recorded one at every step" if factor is not None else ""
