"""An input on which two sides part: looked for among small and round numbers, shown by a run."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core

from equivalence_tests.proof import interpreter
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.traced_sides import Inputs, MakeSide, Program, inputs, traced
from equivalence_tests.sides.precision import float64

# Rounding in float64 is 1e-16 of a number, and grows by what cancels.
CLEAR, FAINT = 1e-6, 1e-9
# Where a side cannot be run without rounding: more than float32 could make of it in a few steps.
UNROUNDED = 1e-3
STEPS = 4

Grads = list[list[np.ndarray]]


@dataclass(frozen=True)
class Counterexample:
    """Both sides on one input, in float64.

    Attributes:
      hyper_params: the settings.
      params: path -> initial value.
      grads: for each step, path -> gradient.
      step: the first step after which they differ, counted from 1; 0 before any.
      leaf: the leaf in which they do.
      index: where in it they differ most.
      left: the left side's value there.
      right: the right side's value there.
    """

    hyper_params: Mapping[str, float]
    params: Mapping[str, Any]
    grads: Sequence[Mapping[str, Any]]
    step: int
    leaf: str
    index: tuple[int, ...]
    left: float
    right: float

    @property
    def difference(self) -> float:
        """How far apart they are there."""
        return abs(self.left - self.right)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "hyper_params": dict(self.hyper_params),
            "params": dict(self.params),
            "grads": [dict(each) for each in self.grads],
            "step": self.step,
            "leaf": self.leaf,
            "index": list(self.index),
            "left": self.left,
            "right": self.right,
            "difference": self.difference,
        }

    def __str__(self) -> str:
        place = f"{self.leaf}{list(self.index) if self.index else ''}"
        lines = [
            f"after step {self.step}, {place} is {self.left!r} on the left and {self.right!r} on "
            f"the right, {self.difference:.3g} apart (float64)"
        ]
        if self.hyper_params:
            lines.append(
                f"  with {', '.join(f'{k} = {v!r}' for k, v in self.hyper_params.items())}"
            )
        lines += [f"  {path} = {value}" for path, value in self.params.items()]
        for step, grads in enumerate(self.grads, 1):
            lines += [f"  step {step}: {path} = {value}" for path, value in grads.items()]
        return "\n".join(lines)


class Search:
    """Both sides in float64, ready to be run on candidates."""

    def __init__(self, left: MakeSide, right: MakeSide, given: Inputs):
        """Traces both sides.

        Raises:
          ProofError: one cannot be traced in float64.
        """
        numbers = {**given.numbers, **given.fixed}
        with float64():
            wide = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), given.params)
            self.given = inputs(wide, {}, numbers)
            self.sides = tuple(
                traced(make, self.given, name) for make, name in ((left, "left"), (right, "right"))
            )
        self.numbers = numbers
        self.tried = 0

    def find(self, *, quick: bool) -> Counterexample | None:
        """A counterexample; None if none of the candidates is one.

        Args:
          quick: whether to try only a few.

        Raises:
          NoRule: the sides compute something that cannot be followed step by step.
        """
        faint = []
        for params, grads in _candidates(self.given, quick):
            size, step = self.parted(params, grads)
            if size > CLEAR and self.in_truth(params, grads[:step]):
                return self._smallest(params, grads[:step])
            if CLEAR >= size > FAINT and len(faint) < 4:
                faint.append((params, grads[:step]))
        for params, grads in faint:
            if self.in_truth(params, grads):
                return self._smallest(params, grads)
        return None

    def in_truth(self, params: list[np.ndarray], grads: Grads) -> bool:
        """Whether the sides part without any rounding as well.

        In float64 a state may still be float32, and hold a rounding of 1e-7.
        """
        try:
            runs = [_exact_trajectory(side, params, grads) for side in self.sides]
        except interpreter.NoRule:
            return self.parted(params, grads)[0] > UNROUNDED
        except (interpreter.Unclear, ValueError, ZeroDivisionError, OverflowError):
            return False
        return any(_parted_for_certain(a, b) for a, b in zip(*runs, strict=True))

    def parted(self, params: list[np.ndarray], grads: Grads) -> tuple[float, int]:
        """How far the sides part, relative to the values, and at which step; 0 if they do not."""
        self.tried += 1
        try:
            runs = [_trajectory(side, params, grads) for side in self.sides]
            for step, pair in enumerate(zip(*runs, strict=True)):
                if (size := max(map(_distance, *pair), default=0.0)) > FAINT:
                    return size, step
        except interpreter.NoRule:
            raise
        except (OverflowError, ZeroDivisionError, ValueError):
            pass
        return 0.0, 0

    def _smallest(self, params: list[np.ndarray], grads: Grads) -> Counterexample | None:
        """The example with as many zeros and ones as it can have, run by JAX."""
        arrays = [*params, *itertools.chain(*grads)]
        count, size = len(params), self.parted(params, grads)[0]

        def still(candidate: list[np.ndarray]) -> bool:
            rest = iter(candidate[count:])
            split = [[next(rest) for _ in params] for _ in grads]
            return self.parted(candidate[:count], split)[0] > min(CLEAR, size / 2)

        for place, array in enumerate(arrays):
            for other in (np.zeros_like(array), np.ones_like(array)):
                trial = [*arrays[:place], other, *arrays[place + 1 :]]
                if not np.array_equal(array, other) and np.any(array) and still(trial):
                    arrays = trial
                    break
        rest = iter(arrays[count:])
        return self._shown(arrays[:count], [[next(rest) for _ in params] for _ in grads])

    def _shown(self, params: list[np.ndarray], grads: Grads) -> Counterexample | None:
        """The example as both programs compute it, compiled; None if they do not part then."""
        with float64():
            runs = [_trajectory(side, params, grads, _compiled) for side in self.sides]
        for step, pair in enumerate(zip(*runs, strict=True)):
            sizes = [_distance(*leaf) for leaf in zip(*pair, strict=True)]
            if max(sizes) > FAINT:
                place = int(np.argmax(sizes))
                values = [np.asarray(run[place], float) for run in pair]
                with np.errstate(all="ignore"):
                    apart = np.where(values[0] == values[1], 0.0, np.abs(values[0] - values[1]))
                apart = np.where(np.isnan(apart), np.inf, apart)
                index = np.unravel_index(int(np.argmax(apart)), apart.shape)
                paths = self.given.paths
                return Counterexample(
                    self.numbers,
                    {p: v.tolist() for p, v in zip(paths, params, strict=True)},
                    [
                        {
                            p.replace("params", "grads", 1): v.tolist()
                            for p, v in zip(paths, each, strict=True)
                        }
                        for each in grads[:step]
                    ],
                    step,
                    paths[place],
                    tuple(int(i) for i in index),
                    float(values[0][index]),
                    float(values[1][index]),
                )
        return None


def search(left: MakeSide, right: MakeSide, given: Inputs) -> Search | None:
    """A search for counterexamples; None where a side does not run in float64."""
    try:
        return Search(left, right, given)
    except ProofError:
        return None


def _compiled(jaxpr: Any, args: Sequence[Any]) -> list[Any]:
    return jax.jit(core.jaxpr_as_fun(jaxpr))(*args)


def _trajectory(
    side: Program,
    params: list[np.ndarray],
    grads: Grads,
    run: Callable[..., list[Any]] = interpreter.run,
) -> list[list[Any]]:
    """The parameters at the start and after every step."""
    count = len(side.paths)
    results = run(side.start, params)
    seen = [results[count:]]
    for each in grads:
        results = run(side.step, [*results[:count], *each])
        seen.append(results[count:])
    return seen


def _exact_trajectory(side: Program, params: list[np.ndarray], grads: Grads) -> list[Any]:
    """The last parameters, as balls."""
    count = len(side.paths)

    def lifted(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [interpreter.lifted(array, interpreter.ball) for array in arrays]

    results = interpreter.exactly(side.start, lifted(params), interpreter.ball)
    for each in grads:
        held = [*results[:count], *lifted(each)]
        results = interpreter.exactly(side.step, held, interpreter.ball)
    return [value for array in results[count:] for value in array.flat]


def _parted_for_certain(a: Any, b: Any) -> bool:
    """Whether two balls hold no number in common, and not for a millionth of rounding alone."""
    if a.is_finite() != b.is_finite():
        return True
    return a.is_finite() and not a.overlaps(b)


def _distance(a: Any, b: Any) -> float:
    """The largest difference of two arrays relative to their size; infinite where one is NaN."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    if not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    with np.errstate(all="ignore"):
        same = (a == b) | np.isnan(a)
        apart = np.where(same, 0.0, np.abs(a - b))
        scale = np.maximum(np.abs(a), np.abs(b))
        relative = np.where(same, 0.0, apart / np.where(scale > 0, scale, 1.0))
    return float(np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max(initial=0.0))


def _candidates(given: Inputs, quick: bool) -> Iterator[tuple[list[np.ndarray], Grads]]:
    """Inputs to try, the simplest first."""

    def filled(value: Any) -> list[np.ndarray]:
        return [np.broadcast_to(value(leaf), leaf.shape).astype(float) for leaf in given.shapes]

    def steps(leaf: Any) -> np.ndarray:
        return (1.0 + np.arange(np.prod(leaf.shape, dtype=int))).reshape(leaf.shape)

    def signs(leaf: Any) -> np.ndarray:
        values = steps(leaf)
        return np.where(values % 2 == 0, -values, values) / 2

    ones, zeros = (lambda leaf: 1.0), (lambda leaf: 0.0)
    starts = [ones, zeros, steps, signs]
    tiny = [lambda leaf, s=size: s * signs(leaf) for size in (1e-4, 1e-8, 1e4)]
    moves: list[Any] = [ones, zeros, steps, signs, *tiny]
    if quick:
        pairs = [(ones, ones), (zeros, ones), (signs, steps), (steps, signs), (steps, tiny[1])]
    else:
        pairs = list(itertools.product(starts, moves))
    for start, move in pairs:
        first = filled(move)
        yield filled(start), [[g.copy() for g in first] for _ in range(STEPS)]
        if not quick:
            turns = (1.0, -0.5, 0.0, 2.0)
            yield filled(start), [[turns[k % 4] * g for g in first] for k in range(STEPS)]
            yield filled(start), [[g * 3.0**-k for g in first] for k in range(3 * STEPS)]
