"""The stages of a step in their order, each judged alone: batches, loss and gradients, rate.

Each says where a program parts from a recording, and what that looks like: sums for means, an axis
turned, a rate that is one step late.
"""

import enum
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.compare.comparison import Comparison, LeafDistance, compare
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.recordings.bounds import CLOSED_ULP, OPEN_ULP
from equivalence_tests.recordings.format import (
    Flat,
    Path_,
    Recording,
    RecordingError,
    Step,
    nest,
    path_text,
)
from equivalence_tests.recordings.recorder import digest, leaves_of
from equivalence_tests.sides.precision import pin_precision
from optax_bridge._text import listing
from optax_bridge.cli.errors import error_text
from optax_bridge.correspondence import Verdict

# Of a tensor's scale, in float32: what two frameworks' gradients may differ by, see `CLOSED_ULP`.
GRADIENTS = CLOSED_ULP * 2.0**-23
# A gradient that is so small a part of the largest one is rounding, as of a bias before BatchNorm.
_NO_GRADIENT = 2.0**-17


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


def not_judged(name: str, why: str, *, asked: bool = False) -> Stage:
    """Returns a stage that cannot be judged; if it was requested, the replay is not judged."""
    return Stage(name, Outcome.NOT_JUDGED, why, asked=asked)


def compared(left: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]) -> Comparison:
    """Compares leaves by their names; the distance of NaN is none."""
    with np.errstate(all="ignore"):
        return compare(dict(left), dict(right))


def distance_by_step(comparison: Comparison) -> list[float]:
    """The largest distance over a tensor's scale, at each step."""
    steps = len(comparison.ulp_by_step)
    leaves = [leaf.ulp_by_step * leaf.eps for leaf in comparison.by_leaf]
    return np.max([np.zeros(steps), *leaves], axis=0).tolist()


def first_parting(comparison: Comparison, bound: float) -> tuple[int, LeafDistance, set[str]]:
    """The first step beyond a bound, the leaf that is farthest there, and all that are beyond."""
    beyond = [leaf for leaf in comparison.by_leaf if (leaf.ulp_by_step > bound).any()]
    beyond = beyond or list(comparison.by_leaf)
    number = min(int((leaf.ulp_by_step > bound).argmax()) for leaf in beyond)
    first = [leaf for leaf in beyond if leaf.ulp_by_step[number] > bound] or beyond
    farthest = max(first, key=lambda leaf: leaf.relative_by_step[number])
    return number, farthest, {leaf.path for leaf in first}


def by_scale(number: int, leaf: LeafDistance, parted: set[str]) -> str:
    """How far a leaf is at a step, in words."""
    return f" by {relative_text(float(leaf.relative_by_step[number]))} of its scale"


def stage_of(
    name: str,
    comparison: Comparison,
    steps: Sequence[Step],
    bound: float,
    cause: Callable[[int, LeafDistance, set[str]], str] = by_scale,
) -> Stage:
    """The stage of a comparison under a bound, with the words of `cause` for its first parting."""
    outcome = Outcome(comparison.within(bound).value)
    distance = distance_by_step(comparison)
    if outcome is not Outcome.DIFFERENT:
        text = "" if comparison.identical else f"at most {comparison.ulp:.3g} ULP"
        return Stage(name, outcome, text, distance=distance)
    number, leaf, parted = first_parting(comparison, comparison.allowed(bound))
    text = f"from step {steps[number].number}, {leaf.path}{cause(number, leaf, parted)}"
    return Stage(name, outcome, text, steps[number].number, leaf.path, distance)


def judge_batches(recording: Recording, batches: Iterable[Any] | Callable[[], Any]) -> Stage:
    """Asks whether the program's batches are the recorded ones."""
    name = "batches"
    steps = recording.steps
    if all(step.tree("batch") is None and step.digest is None for step in steps):
        return not_judged(name, "the recording has no batches", asked=True)
    own = list(zip(steps, _yielded(batches), strict=False))
    if not own:
        return not_judged(name, "--batches yields none", asked=True)
    texts = [batch if isinstance(batch, str) else digest(batch) for _, batch in own]
    recorded = [step.digest or digest(nest(step.trees["batch"])) for step in steps]
    few = "" if len(own) == len(steps) else f" of the first {len(own)} steps, all that there are"
    parted = [n for n, text in enumerate(texts) if text != recorded[n]]
    if not parted:
        return Stage(name, Outcome.IDENTICAL, few and f"those{few}", distance=[0.0] * len(own))
    number = parted[0]
    step, batch = own[number]
    if sorted(texts) == sorted(recorded[: len(texts)]):
        at = recorded.index(texts[number])
        why = f"the same batches in another order: this one is that of step {steps[at].number}"
        leaf = "batch"
    elif step.digest is not None:
        why, leaf = "other batches; the recording has but a digest of them", "batch"
    else:
        why, leaf = _batch_cause(step.trees["batch"], batch)
    distance = [float(n in parted) for n in range(len(own))]
    return Stage(name, Outcome.DIFFERENT, f"from step {step.number}, {leaf}: {why}", step.number,
                 leaf, distance)  # fmt: skip


def _yielded(batches: Iterable[Any] | Callable[[], Any]) -> Iterable[Any]:
    return batches() if callable(batches) else batches


def _batch_cause(recorded: Flat, batch: Any) -> tuple[str, str]:
    own = _flat_like(batch)
    if own.keys() != recorded.keys():
        missing = [path_text(path, "batch") for path in recorded.keys() ^ own.keys()]
        return f"leaves of one side alone: {listing(sorted(missing))}", "batch"
    for path, value in recorded.items():
        there, here = np.asarray(value), np.asarray(own[path])
        leaf = path_text(path, "batch")
        if there.shape != here.shape or there.dtype != here.dtype:
            what = (f"{side.dtype}{list(side.shape)}" for side in (there, here))
            return f"{' there, '.join(what)} here", leaf
        if there.tobytes() == here.tobytes():
            continue
        rows = [sorted(row.tobytes() for row in side) for side in (there, here) if side.ndim]
        if rows and rows[0] == rows[1]:
            return "the same set in another order", leaf
        x, y = there.astype(np.float64).ravel(), here.astype(np.float64).ravel()
        if x.size > 2 and np.isfinite([*x, *y]).all() and np.ptp(x):
            factor, offset = np.polyfit(x, y, 1)
            if np.abs(y - factor * x - offset).max() <= 1e-3 * np.abs(y).max():
                terms = (
                    f"{factor:.6g} times the recorded one {'+-'[int(offset < 0)]} {abs(offset):.6g}"
                )
                return f"another normalisation: here it is {terms}", leaf
        return "other data", leaf
    return "other containers", "batch"


def _flat_like(tree: Any) -> Flat:
    """The leaves of a tree by the paths that the recorder gives them."""
    return {tuple(path): leaf for path, leaf in leaves_of(tree, "batch")}


def judge_loss(recording: Recording, loss: Callable[..., Any]) -> Stage:
    """Asks whether loss and gradients at the recorded parameters and batches are the recorded."""
    name = "loss and gradients"
    steps = [step for step in recording.steps if not step.skipped]
    if any(step.digest for step in steps):
        return not_judged(
            name, "the recording has digests of the batches, not the batches", asked=True
        )
    if any(step.tree("batch") is None for step in steps):
        return not_judged(name, "the recording has no batches", asked=True)
    gradient = _Gradient(loss)
    own, raw = [], any(step.tree("raw_grads") for step in steps)
    tree = "raw_grads" if raw else "grads"
    for step in steps:
        try:
            own.append(gradient(step))
        except Exception as error:  # whatever the user's function raises
            hint = ""
            if isinstance(error, KeyError):
                hint = ": the recording lacks this leaf. Are two tied there and untied here?"
            return Stage(name, Outcome.DIFFERENT, f"step {step.number}: loss(...) "
                         f"{error_text(error, first_line=True)}{hint}", step.number)  # fmt: skip
    for step, (value, grads, _) in zip(steps, own, strict=True):
        if cause := _structure(step.trees.get(tree, {}), grads, step, tree):
            return Stage(name, Outcome.DIFFERENT, f"from step {step.number}, {cause}", step.number)
        if step.loss is not None and not np.isfinite(step.loss) and np.isfinite(value):
            why = f"the recorded loss is {step.loss}, here it is {value:.6g}"
            return Stage(name, Outcome.DIFFERENT, f"from step {step.number}: {why}", step.number)
    return _judge_gradients(name, steps, own, tree, gradient)


class _Gradient:
    """A user's loss and its gradient: `loss(params, batch, model_state, rng)`."""

    def __init__(self, loss: Callable[..., Any]):
        def call(*inputs: Any) -> Any:
            result = loss(*inputs[:count])
            return result if isinstance(result, tuple) else (result, None)

        try:
            own = inspect.signature(loss).parameters.values()
            kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            count = sum(it.kind in kinds and it.default is inspect.Parameter.empty for it in own)
        except (TypeError, ValueError):
            count = len(_INPUTS)
        if not 2 <= count <= len(_INPUTS):
            raise RecordingError(
                "loss: expected a function of (params, batch, model_state, rng), or the first two "
                f"or three of these, found one of {count} arguments without a default"
            )
        self._call, self._gradient = call, jax.jit(jax.value_and_grad(call, has_aux=True))

    def __call__(self, step: Step, **changed: Flat) -> tuple[float, Flat, Any]:
        with pin_precision():
            (value, aux), grads = self._gradient(*_inputs(step.trees | changed))
        return float(value), _flat_like(jax.device_get(grads)), jax.device_get(aux)

    def reads(self, step: Step, tree: str) -> bool:
        """True if the loss depends on a tree of numbers."""
        other = {p: leaf + 1 for p, leaf in step.trees[tree].items() if np.ndim(leaf)}
        return bool(other) and self(step, **{tree: step.trees[tree] | other})[0] != self(step)[0]

    def draws(self, step: Step) -> bool:
        """True if the loss draws random numbers, as dropout does."""
        return "random_bits" in str(jax.make_jaxpr(self._call)(*_inputs(step.trees)))


_INPUTS = ("params", "batch", "model_state", "rng")


def _inputs(trees: Mapping[str, Flat]) -> list[Any]:
    nested = [nest(trees[name]) if trees.get(name) else None for name in _INPUTS]
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, nested)


def _structure(recorded: Flat, own: Flat, step: Step, tree: str) -> str:
    """The first leaf that one side lacks, or that has another shape; empty if all fit."""
    for path, grad in own.items():
        if path not in recorded:
            if (tree, path) in step.missing and not np.any(grad):
                continue
            none = " there (None: the model does not use it, or it is frozen)"
            return f"{path_text(path, tree)}: no gradient{none}, one here"
        if np.shape(recorded[path]) != np.shape(grad):
            shapes = f"{list(np.shape(recorded[path]))} there, {list(np.shape(grad))} here"
            return f"{path_text(path, tree)}: {shapes}"
    missing = [path_text(path, tree) for path in recorded if path not in own]
    return f"{missing[0]}: a gradient there, none here" if missing else ""


def _judge_gradients(
    name: str,
    steps: Sequence[Step],
    own: Sequence[tuple[float, Flat, Any]],
    tree: str,
    gradient: _Gradient,
) -> Stage:
    paths = list(steps[0].trees[tree])
    paths = [path for path in paths if all(path in step.trees[tree] for step in steps)]
    left = {p: np.stack([step.trees[tree][p] for step in steps]) for p in paths}
    right = {p: np.stack([grads[p] for _, grads, _ in own]).astype(left[p].dtype) for p in paths}
    largest = {p: float(max(np.abs(left[p]).max(initial=0), np.abs(right[p]).max(initial=0)))
               for p in paths}  # fmt: skip
    most = max((value for value in largest.values() if np.isfinite(value)), default=0.0)
    judged = [path for path in paths if not largest[path] <= _NO_GRADIENT * most]
    sides = [{path_text(p, tree): side[p] for p in judged} for side in (left, right)]
    losses = [(step.loss, value) for step, (value, _, _) in zip(steps, own, strict=True)]
    if all(recorded is not None for recorded, _ in losses):
        coarsest = max(
            (leaf.dtype for leaf in left.values()), key=lambda dtype: jnp.finfo(dtype).eps
        )
        both = np.asarray(losses, coarsest)
        sides = [{"loss": both[:, n], **side} for n, side in enumerate(sides)]
    comparison = compared(*sides)
    if comparison.within(CLOSED_ULP) is not Verdict.DIFFERENT:
        few = len(paths) - len(judged)
        remark = f"{few} of {len(paths)} leaves have no gradient but rounding" if few else ""
        stage = stage_of(name, comparison, steps, CLOSED_ULP)
        return _judge_model_state(name, steps, own) or replace(stage, text=remark or stage.text)
    if tree == "grads" and (clipped := _clipping(steps, left, right, judged)):
        return Stage(name, Outcome.ROUNDING, clipped, distance=[0.0] * len(steps))

    def cause(number: int, leaf: LeafDistance, parted: set[str]) -> str:
        pair = [(path, left[path][number], right[path][number]) for path in judged]
        text = _gradient_cause(steps[number], pair, parted, losses[number], tree)
        text = text or _input_cause(gradient, steps[number], pair)
        there, here = losses[number]
        if there is not None and not is_near(np.asarray(here), np.asarray(there)):
            text = f"The loss is {there:.6g} there, {here:.6g} here. {text}".rstrip()
        return f"{by_scale(number, leaf, parted)}{text and f'. {text}'}"

    return stage_of(name, comparison, steps, CLOSED_ULP, cause)


def _input_cause(
    gradient: _Gradient, step: Step, pair: Sequence[tuple[Path_, np.ndarray, np.ndarray]]
) -> str:
    """Returns the effect of another input of the loss on the difference, in words."""
    recorded = {path: grad for path, grad, _ in pair}
    for path, leaf in step.trees["params"].items():
        if leaf.ndim == 2 and leaf.shape == leaf.shape[::-1]:
            turned = gradient(step, params=step.trees["params"] | {path: leaf.T})[1]
            turned[path] = turned[path].T
            if all(is_near(np.asarray(turned[p]), grad) for p, grad in recorded.items()):
                return f"With {path_text(path)} transposed they agree"
    if gradient.draws(step):
        return "The loss here draws random numbers: is dropout left on, or are its masks others?"
    if step.tree("model_state") and gradient.reads(step, "model_state"):
        return "Does the loss here read other running statistics than the recorded ones?"
    return ""


def _clipping(steps: Sequence[Step], left: Flat, right: Flat, paths: Sequence[Path_]) -> str:
    """The norm to which the recorded gradients were clipped, where they are ours but for that."""
    factors, norms = [], []
    for number in range(len(steps)):
        there, here = (_vector([side[path][number] for path in paths]) for side in (left, right))
        factor = fitted_factor(here, there)
        if factor is None or factor > 1 + GRADIENTS:
            return ""
        factors.append(factor)
        norms.append(float(np.linalg.norm(there)))
    cut = [norm for norm, factor in zip(norms, factors, strict=True) if factor < 1 - GRADIENTS]
    if not cut or max(cut) - min(cut) > 1e-3 * max(cut) or max(norms) > 1.001 * max(cut):
        return ""
    if len(cut) == len(norms) == 1:  # one step cannot tell a norm from a factor
        return ""
    return f"the recorded ones are clipped to a global norm of {np.mean(cut):.4g}"


def _vector(leaves: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves] or [[]])


def fitted_factor(x: np.ndarray, y: np.ndarray, tolerance: float = GRADIENTS) -> float | None:
    """Returns c if y is c times x, but for rounding; else None."""
    square = float(np.vdot(x, x))
    if not square or not np.isfinite(square) or not np.isfinite(y).all():
        return None
    factor = float(np.vdot(x, y)) / square
    scale = np.abs(y).max(initial=0.0)
    return factor if factor and np.abs(y - factor * x).max() <= tolerance * scale else None


def _gradient_cause(
    step: Step,
    pair: Sequence[tuple[Path_, np.ndarray, np.ndarray]],
    parted: set[str],
    losses: tuple[float | None, float],
    tree: str,
) -> str:
    """Returns the likely cause of a difference of gradients, in words; empty if unknown."""
    there, here = _vector([old for _, old, _ in pair]), _vector([new for _, _, new in pair])
    factor = fitted_factor(there, here)
    if factor is not None and abs(factor - 1) > GRADIENTS:
        name = _factor_name(step, factor)
        return f"Every gradient here is {factor:.6g} times the recorded one{name}"
    near = losses[0] is None or abs(losses[0] - losses[1]) <= 2.0**-6 * abs(losses[0])
    if near and np.abs(there - here).max() <= 2.0**-6 * np.abs(there).max():
        return "That is as far as bfloat16 rounds: is a part computed in it?"
    for path, recorded, own in pair:
        text = path_text(path, tree)
        if text not in parted:
            continue
        if own.ndim == 2 and own.shape == own.shape[::-1] and is_near(own.T, recorded):
            return f"{text} is transposed"
        factor = fitted_factor(_vector([recorded]), _vector([own]))
        if factor is not None and abs(factor - 1) > 0.01:
            kind = " of the other sign" if abs(factor + 1) <= GRADIENTS else ""
            return f"{text}{kind} is {factor:.6g} times the recorded one, others are not"
        if not own.any() or not recorded.any():
            return f"{text}: a missing leaf, zero {'here' if not own.any() else 'there'}"
    return ""


def _factor_name(step: Step, factor: float) -> str:
    sizes = {np.shape(leaf)[0] for leaf in step.trees.get("batch", {}).values() if np.ndim(leaf)}
    names: list[tuple[float, str]] = [(-1.0, "the other sign")]
    if step.micro_batches > 1:
        why = f"{step.micro_batches} micro-batches are accumulated and not divided"
        names += [(step.micro_batches, f"{why} here"), (1 / step.micro_batches, f"{why} there")]
    for size in sizes - {0, 1}:
        names += [(size, f"a sum over {size} here, a mean there")]
        names += [(1 / size, f"a mean over {size} here, a sum there")]
    power = np.log2(abs(factor))
    if abs(power) >= 7 and abs(power - round(power)) < 1e-4:
        where = "here" if power > 0 else "there"
        names.append((factor, f"a loss scale that is not undone {where}?"))
    name = next((name for value, name in names if abs(factor / value - 1) <= GRADIENTS), "")
    return name and f": {name}"


def is_near(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays are the same but for what gradients may differ by."""
    return bool(np.abs(one - other).max() <= GRADIENTS * np.abs(other).max())


def _judge_model_state(
    name: str, steps: Sequence[Step], own: Sequence[tuple[float, Flat, Any]]
) -> Stage | None:
    """The stage, where the model's new state is not that of the next recorded step."""
    for step, following, (_, _, aux) in zip(steps, steps[1:], own, strict=False):
        old, new = (each.tree("model_state") for each in (step, following))
        if not old or not new or aux is None:
            return None
        here = _flat_like(aux)
        paths = [p for p, x in new.items() if p in here and np.asarray(x).dtype.kind == "f"]
        far = [p for p in paths if np.any(new[p]) and not is_near(np.asarray(here[p]), new[p])]
        if not far:
            continue
        path, text = far[0], path_text(far[0], "model_state")
        moves = [_vector([side[path] - old[path]]) for side in (new, here)]
        factor, why = fitted_factor(*moves, tolerance=1e-2), "other running statistics"
        if len(far) < len(paths) and "var" in str(path[-1]):
            why += ". The means agree: is the variance of n - 1 there and of n here, as in Flax?"
        elif factor is not None:
            why += f": they move {factor:.4g} times as far here; is it the momentum?"
        by = relative_text(float(np.abs(here[path] - new[path]).max() / np.abs(new[path]).max()))
        why = f"the gradients agree; from step {step.number}, {text} by {by}: {why}"
        return Stage(name, Outcome.DIFFERENT, why, step.number, text)
    return None


def judge_rates(recording: Recording, own: Sequence[Mapping[str, float]] | str) -> Stage:
    """Asks whether the rates of an optimizer are the recorded ones; or why they are not known."""
    name = "rate"
    steps = recording.steps
    if not all(step.rates for step in steps):
        return not_judged(name, "the recording has no rates")
    if isinstance(own, str):
        return not_judged(name, own)
    groups = [group for group in steps[0].rates if all(group in rates for rates in own)]
    if not groups:
        return not_judged(name, f"the groups {listing(list(steps[0].rates))} have no rate here")
    sides = [
        {f"rate[{g!r}]": np.asarray([rates[g] for rates in side], np.float32) for g in groups}
        for side in ([step.rates for step in steps], own)
    ]

    def cause(number: int, leaf: LeafDistance, parted: set[str]) -> str:
        there, here = (side[leaf.path].tolist() for side in sides)
        values = f"{there[number]:.4g} there, {here[number]:.4g} here"
        return f": {values}{_rate_cause(there, here)}"

    return stage_of(name, compared(*sides), steps, OPEN_ULP, cause)


def _rate_cause(there: Sequence[float], here: Sequence[float]) -> str:
    x, y = np.asarray(there), np.asarray(here)
    scale = 1e-5 * max(np.abs(x).max(), np.abs(y).max())
    for late, word in ((1, "late"), (-1, "early")):
        one, other = (x[:-1], y[1:]) if late > 0 else (x[1:], y[:-1])
        if len(one) > 1 and np.ptp(one) > scale and np.abs(one - other).max() <= scale:
            return f": one step {word} here"
    factor = fitted_factor(x, y, 1e-4)
    return f": {factor:.4g} times the recorded one at every step" if factor is not None else ""
