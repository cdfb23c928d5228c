"""The second stage: loss and gradients at the recorded parameters and batches.

Sums for means, a transposed kernel, other running statistics: what a difference looks like is
named.
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.compare.comparison import LeafDistance, compare
from equivalence_tests.compare.extent import relative_text
from equivalence_tests.compare.relation import fitted_factor
from equivalence_tests.recordings.bounds import CLOSED_ULP
from equivalence_tests.recordings.format import (
    Flat,
    Recording,
    Step,
    named_leaves,
    nest,
    path_text,
    stacks_of,
)
from equivalence_tests.recordings.stages import (
    Outcome,
    Stage,
    by_scale,
    flat_like,
    not_judged,
    stage_of,
)
from equivalence_tests.sides.precision import float64, pin_precision
from optax_bridge.cli.errors import error_text
from optax_bridge.correspondence import Verdict

NAME = "loss and gradients"
# Of a tensor's scale, in float32: what two frameworks' gradients may differ by, see `CLOSED_ULP`.
GRADIENTS = CLOSED_ULP * 2.0**-23
# A gradient that is so small a part of the largest one is rounding, as of a bias before BatchNorm.
_NO_GRADIENT = 2.0**-17
_BFLOAT16 = 2.0**-6  # of a tensor's scale, what a part computed in it may make
_INPUTS = ("params", "batch", "model_state", "rng")
_Named = Mapping[str, np.ndarray]
_Losses = tuple[float | None, float]  # the recorded one, if there is one, and the program's


class _Computed(NamedTuple):
    """The results of the program's loss at a recorded step."""

    value: float
    grads: Flat
    state: Any


def judge_loss(recording: Recording, loss: Callable[..., Any]) -> Stage:
    """Asks whether loss and gradients at the recorded parameters and batches are the recorded."""
    taken = [step for step in recording.steps if not step.skipped]
    steps = list(itertools.takewhile(lambda step: "batch" in step.trees, taken))
    if not steps:
        has_digests = any(step.digest for step in taken)
        why = "digests of the batches, not the batches" if has_digests else "no batches"
        return not_judged(NAME, f"the recording has {why}", asked=True)
    gradient, computed = _Gradient(loss), []
    tree = "raw_grads" if any(step.trees.get("raw_grads") for step in steps) else "grads"

    def differs(step: Step, why: str) -> Stage:
        return Stage(NAME, Outcome.DIFFERENT, f"from step {step.number}, {why}", step.number)

    for step in steps:
        try:
            computed.append(gradient(step))
        except Exception as error:  # whatever the user's function raises
            hint = ": the recording lacks this leaf. Are two tied there and untied here?"
            text = f"loss(...) {error_text(error, first_line=True)}"
            return differs(step, text + hint * isinstance(error, KeyError))
    for step, (value, grads, _) in zip(steps, computed, strict=True):
        if cause := _structure(step.trees.get(tree, {}), grads, step, tree):
            return differs(step, cause)
        if step.loss is not None and not np.isfinite(step.loss) and np.isfinite(value):
            return differs(step, f"the recorded loss is {step.loss}, here it is {value:.6g}")
    return _judge_gradients(steps, computed, tree, gradient)


class _Gradient:
    """A user's loss and its gradient: `loss(params, batch, model_state, rng)`."""

    def __init__(self, loss: Callable[..., Any]):
        taken = inspect.signature(loss).parameters.values()
        count = sum(it.default is inspect.Parameter.empty for it in taken)

        def call(*inputs: Any) -> Any:
            result = loss(*inputs[:count])
            return result if isinstance(result, tuple) else (result, None)

        self._call, self._gradient = call, jax.jit(jax.value_and_grad(call, has_aux=True))

    def __call__(self, step: Step, **changed: Flat) -> _Computed:
        with pin_precision(), float64(step.is_double):
            (value, state), grads = self._gradient(*_inputs(step.trees | changed))
        return _Computed(float(value), flat_like(jax.device_get(grads)), jax.device_get(state))

    def input_cause(self, step: Step, recorded: _Named, tree: str) -> str:
        """Returns the effect of another input of the loss on the difference, in words."""
        for path, leaf in step.trees["params"].items():
            if leaf.ndim == 2 and leaf.shape == leaf.shape[::-1]:
                turned = self(step, params=step.trees["params"] | {path: leaf.T}).grads
                named = named_leaves(turned | {path: turned[path].T}, tree)
                if all(is_near(named[name], grad) for name, grad in recorded.items()):
                    return f"With {path_text(path)} transposed they agree"
        with float64(step.is_double):
            program = str(jax.make_jaxpr(self._call)(*_inputs(step.trees)))
        draws = "random_bits" in program
        return "The loss here draws random numbers: is dropout left on?" if draws else ""


def _inputs(trees: Mapping[str, Flat]) -> list[Any]:
    nested = [nest(trees[name]) if trees.get(name) else None for name in _INPUTS]
    return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, nested)


def _structure(recorded: Flat, computed: Flat, step: Step, tree: str) -> str:
    """The first leaf that one side lacks, or that has another shape; empty if all fit."""
    for path, grad in computed.items():
        if path not in recorded:
            if (tree, path) in step.missing and not np.any(grad):
                continue
            none = " there (None: the model does not use it, or it is frozen)"
            return f"{path_text(path, tree)}: no gradient{none}, one here"
        if np.shape(recorded[path]) != np.shape(grad):
            shapes = f"{list(np.shape(recorded[path]))} there, {list(np.shape(grad))} here"
            return f"{path_text(path, tree)}: {shapes}"
    missing = [path_text(path, tree) for path in recorded if path not in computed]
    return f"{missing[0]}: a gradient there, none here" if missing else ""


def _judge_gradients(
    steps: Sequence[Step], computed: Sequence[_Computed], tree: str, gradient: _Gradient
) -> Stage:
    theirs = named_leaves(stacks_of([step.trees[tree] for step in steps]), tree)
    ours = named_leaves(stacks_of([result.grads for result in computed]), tree)
    ours = {name: ours[name].astype(leaf.dtype) for name, leaf in theirs.items()}
    largest = {n: float(max(np.abs(s[n]).max(initial=0) for s in (theirs, ours))) for n in theirs}
    most = max(filter(np.isfinite, largest.values()), default=0.0)
    judged = [name for name in theirs if not largest[name] <= _NO_GRADIENT * most]
    there, here = ({name: side[name] for name in judged} for side in (theirs, ours))
    losses = [(step.loss, result.value) for step, result in zip(steps, computed, strict=True)]
    sides = [there, here]
    if all(recorded is not None for recorded, _ in losses):
        coarsest = max((leaf.dtype for leaf in theirs.values()), key=lambda d: jnp.finfo(d).eps)
        both = np.asarray(losses, coarsest)
        sides = [{"loss": both[:, n], **side} for n, side in enumerate(sides)]
    comparison = compare(*sides)
    if comparison.within(CLOSED_ULP) is not Verdict.DIFFERENT:
        few = len(theirs) - len(judged)
        remark = f"{few} of {len(theirs)} leaves have no gradient but rounding" if few else ""
        stage = stage_of(NAME, comparison, steps, CLOSED_ULP)
        return _judge_model_state(steps, computed) or replace(stage, text=remark or stage.text)

    def cause(number: int, leaf: LeafDistance, parted: set[str]) -> str:
        recorded_at, own_at = (
            {name: side[name][number] for name in judged} for side in (there, here)
        )
        (recorded, value), text = losses[number], ""
        if recorded is not None and not is_near(np.asarray(value), np.asarray(recorded)):
            text = f"The loss is {recorded:.6g} there, {value:.6g} here. "
        why = _gradient_cause(steps[number], recorded_at, own_at, parted, losses[number])
        text += why or gradient.input_cause(steps[number], recorded_at, tree)
        return f"{by_scale(number, leaf, parted)}{text and f'. {text}'.rstrip()}"

    return stage_of(NAME, comparison, steps, CLOSED_ULP, cause)


def _vector(leaves: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves] or [[]])


def _gradient_cause(
    step: Step, recorded: _Named, computed: _Named, parted: set[str], losses: _Losses
) -> str:
    """Returns the likely cause of a difference of gradients, in words; empty if unknown."""
    there, here = _vector(recorded.values()), _vector(computed.values())
    factor = fitted_factor(there, here, GRADIENTS)
    if factor is not None and abs(factor - 1) > GRADIENTS:
        name = _factor_name(step, factor)
        return f"Every gradient here is {factor:.6g} times the recorded one{name}"
    near = losses[0] is None or abs(losses[0] - losses[1]) <= _BFLOAT16 * abs(losses[0])
    if near and np.abs(there - here).max() <= _BFLOAT16 * np.abs(there).max():
        return "That is as far as bfloat16 rounds: is a part computed in it?"
    for name in filter(parted.__contains__, recorded):
        x, y = recorded[name], computed[name]
        if y.ndim == 2 and y.shape == y.shape[::-1] and is_near(y.T, x):
            return f"{name} is transposed"
        factor = fitted_factor(_vector([x]), _vector([y]), GRADIENTS)
        if factor is not None and abs(factor - 1) > 0.01:
            kind = " of the other sign" if abs(factor + 1) <= GRADIENTS else ""
            return f"{name}{kind} is {factor:.6g} times the recorded one, others are not"
        if not y.any() or not x.any():
            return f"{name}: a missing leaf, zero {'here' if not y.any() else 'there'}"
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
    if factor > 1 and "raw_grads" not in step.trees:
        names.append((factor, "are those clipped? Record raw_grads, those before it"))
    name = next((name for value, name in names if abs(factor / value - 1) <= GRADIENTS), "")
    return name and f": {name}"


def is_near(one: np.ndarray, other: np.ndarray) -> bool:
    """True if two arrays are the same but for what gradients may differ by."""
    return bool(np.abs(one - other).max() <= GRADIENTS * np.abs(other).max())


def _judge_model_state(steps: Sequence[Step], computed: Sequence[_Computed]) -> Stage | None:
    """The stage, where the model's new state is not that of the next recorded step."""
    for step, following, result in zip(steps, steps[1:], computed, strict=False):
        old, new = (each.trees.get("model_state") for each in (step, following))
        if not old or not new or result.state is None:
            return None
        here = flat_like(result.state)
        paths = [p for p, x in new.items() if p in here and np.asarray(x).dtype.kind == "f"]
        far = [p for p in paths if np.any(new[p]) and not is_near(np.asarray(here[p]), new[p])]
        if not far:
            continue
        path, why = far[0], "other running statistics"
        moved, moves = (_vector([side[path] - old[path]]) for side in (new, here))
        if len(far) < len(paths) and "var" in str(path[-1]):
            why += ". The means agree: is the variance of n - 1 there and of n here, as in Flax?"
        elif factor := fitted_factor(moved, moves, 1e-2):
            why += f": they move {factor:.4g} times as far here; is it the momentum?"
        text = path_text(path, "model_state")
        by = relative_text(float(np.abs(here[path] - new[path]).max() / np.abs(new[path]).max()))
        why = f"the gradients agree; from step {step.number}, {text} by {by}: {why}"
        return Stage(NAME, Outcome.DIFFERENT, why, step.number, text)
    return None
