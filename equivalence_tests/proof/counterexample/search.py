"""The search for an input on which two sides differ, shown by a run."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.counterexample.candidates import (
    SOME,
    Candidate,
    Grads,
    counts,
    exact_values,
    long_runs,
    of_sizes,
    simple,
    sizes,
)
from equivalence_tests.proof.counterexample.example import Counterexample
from equivalence_tests.proof.counterexample.runs import (
    FarRun,
    compile_scan,
    exact_trajectory,
    far_numbers,
    far_runs,
    probes,
    relative_distance,
    same_up_to_rounding,
    step_distances,
    trajectory,
    unknown_by_float64,
)
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.errors import NoRule, ProofError, Unclear, Undefined
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    check_inputs,
    trace_side,
)
from equivalence_tests.sides.precision import float64
from optax_bridge.metadata.trees import Params

# Rounding in float64 is 1e-16 of a number, and grows by what cancels.
CLEAR, FAINT = 1e-6, 1e-9
# Where a side cannot be run without rounding: more than float32 could make of it in a few steps.
UNROUNDED = 1e-3
# In a dtype of its own: rounding makes so many units in the last place of it in a few steps.
_COARSE = 64
# Elements times steps that are followed in exact arithmetic, some seconds of it.
_MOST_EXACT = 40_000
_LATER = 3  # steps after one that parts the sides, for "from this step on"


class Search:
    """Both sides in float64, ready to be run on candidates.

    Where a side does not run in float64, since it makes arrays of its own dtypes, both are run in
    the parameters' dtypes, and what parts them has to be more than rounding there.
    """

    def __init__(self, pair: tuple[MakeSide, MakeSide], inputs: Inputs):
        """Traces both sides."""
        self.numbers = {**inputs.numbers, **inputs.fixed}
        self.inputs, self.dtypes, self.tried = inputs, inputs.shapes, 0

        def both(params: Params) -> tuple[Program, ...]:
            self.inputs = check_inputs(params, {}, self.numbers)
            return tuple(
                trace_side(make, self.inputs, name)
                for make, name in zip(pair, ("left", "right"), strict=True)
            )

        self.trace_native = lambda: both(inputs.params)
        wide = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float64), inputs.params)
        self.clear, self.faint, self.arithmetic = CLEAR, FAINT, "float64"
        self.context: Callable[[], contextlib.AbstractContextManager[object]] = float64
        try:
            with float64():
                self.sides = both(wide)
        except ProofError:
            coarsest = max(float(jnp.finfo(leaf.dtype).eps) for leaf in inputs.shapes)
            self.sides, self.context = self.native, contextlib.nullcontext
            self.clear = self.faint = 1e4 * coarsest
            self.arithmetic = f"run in {self.kinds}"

    def find(self, *, quick: bool) -> Counterexample | None:
        """A counterexample; None if none of the candidates is one.

        Args:
          quick: whether to try only a few.

        Raises:
          NoRule: the sides compute something that cannot be followed step by step.
        """
        faint = []
        candidates = simple(self.inputs, quick)
        if not quick:
            candidates = itertools.chain(candidates, of_sizes(self.inputs, sizes(self.sides)))
        for candidate in candidates:
            params, grads = self._in_range(candidate)
            size, step = self.largest_difference(params, grads)
            if size > self.clear and self.differs_exactly(params, grads[:step]):
                return self._smallest(params, grads[:step])
            if self.clear >= size > self.faint and len(faint) < 4:
                faint.append((params, grads[:step]))
        for params, grads in faint:
            if self.differs_exactly(params, grads):
                return self._smallest(params, grads)
        return None

    def find_patiently(self) -> Counterexample | None:
        """A counterexample by all ways; None if none of them leads to one.

        Where the parameters' dtypes have programs of their own, these are run before all else.

        Raises:
          NoRule: something cannot be followed in exact arithmetic.
        """
        searches = [functools.partial(self.find, quick=False), self.find_late, self.find_far]
        searches.insert(2 if self.one_program else 0, self.find_native)
        return next(filter(None, (search() for search in searches)), None)

    def _in_range(self, candidate: Candidate) -> Candidate:
        """The candidate without numbers that the parameters' dtypes do not reach."""
        most = [float(jnp.finfo(leaf.dtype).max) for leaf in self.dtypes]

        def clipped(arrays: list[np.ndarray]) -> list[np.ndarray]:
            return [np.clip(a, -m, m) for a, m in zip(arrays, most, strict=True)]

        return clipped(candidate[0]), [clipped(each) for each in candidate[1]]

    def find_late(self) -> Counterexample | None:
        """A counterexample after as many steps as a program's own numbers ask for; None if none.

        `jnp.where(count > 50, ...)` shows after the 51st step alone; a rate that is halved every
        ten steps, or a step that grows up to a limit, after some that no number tells.

        Raises:
          NoRule: something cannot be followed in exact arithmetic.
        """
        elements = sum(int(np.prod(leaf.shape, dtype=int)) for leaf in self.dtypes)
        fit = [n for n in (SOME, *counts(self.sides)) if elements * n <= _MOST_EXACT]
        if not fit:
            return None
        numbers = sorted(fit)
        scans = [compile_scan(side) for side in self.sides]
        for params, grads, factors in long_runs(self.inputs, numbers[-1] + 2):
            self.tried += 1
            moves = [[factor * g for g in grads] for factor in factors]
            with self.context():
                runs = [scan(params, grads, factors) for scan in scans]
            rows = list(step_distances(*runs))
            largest = [max(row, default=0.0) for row in rows]
            # Rounding alone may part them before the step that the number is about.
            clear = [step for step, size in enumerate(largest) if size > self.clear][:1]
            asked = [number + more for number in numbers for more in (1, 2)]
            for step in sorted({*clear, *(at for at in asked if largest[at] > self.faint)}):
                if self.differs_exactly(params, moves[:step]):
                    entry = int(np.argmax(rows[step]))
                    pair = [run[step][entry] for run in runs]
                    return self._at_largest(params, moves[:step], entry, pair)
        return None

    def find_far(self) -> Counterexample | None:
        """A counterexample after more steps than can be followed in exact arithmetic; None if none.

        Raises:
          NoRule: the step that parts them cannot be followed in exact arithmetic.
        """
        elements = sum(int(np.prod(leaf.shape, dtype=int)) for leaf in self.dtypes)
        sides = self.sides if self.one_program else self.native
        numbers = far_numbers(sides, _MOST_EXACT // elements)
        if not numbers:
            return None
        with self.context() if self.one_program else contextlib.nullcontext():
            shapes = self.inputs.shapes if self.one_program else self.dtypes
            for run, _ in far_runs(sides, shapes, numbers):
                if (example := self._at_far_step(run, shapes)) is not None:
                    return example
        return None

    def _at_far_step(
        self, run: FarRun, shapes: Sequence[jax.ShapeDtypeStruct]
    ) -> Counterexample | None:
        """The example of one step from where a run is; None if no gradient parts the sides."""
        for grads in probes(run.sides, shapes):
            self.tried += 1
            lhs, rhs = run.params_after(grads)
            distances = list(map(relative_distance, lhs, rhs))
            if max(distances) > self.clear and run.differs_exactly(grads, self.clear):
                leaf, moves = int(np.argmax(distances)), [run.approach] * run.at + [grads]
                pair = lhs[leaf], rhs[leaf]
                example = self._at_largest(run.params, moves, leaf, pair)
                return replace(example, from_step_on=self._differs_later(run, grads))
        return None

    def _differs_later(self, run: FarRun, grads: list[np.ndarray]) -> bool:
        """True if the sides differ after each of some later steps as well."""
        for _ in range(_LATER):
            run.advance(1)
            lhs, rhs = run.params_after(grads)
            if max(map(relative_distance, lhs, rhs)) <= self.clear:
                return False
        return True

    @functools.cached_property
    def native(self) -> tuple[Program, ...]:
        """Both sides, traced for the dtypes of the parameters."""
        return self.trace_native()

    @functools.cached_property
    def one_program(self) -> bool:
        """True if both sides have the same programs for the parameters' dtypes as for float64."""
        return all(
            same_up_to_rounding(a.step, b.step)
            for a, b in zip(self.sides, self.native, strict=True)
        )

    def find_native(self) -> Counterexample | None:
        """A counterexample that float64 does not show, as a side depends on the dtype.

        Raises:
          NoRule: something cannot be followed in exact arithmetic.
        """
        asked = exact_values(self.dtypes, self.native)
        for params, grads in itertools.chain(simple(self.inputs, quick=True), asked):
            for step in range(3):
                try:
                    pair = [exact_trajectory(side, params, grads[:step]) for side in self.native]
                except Undefined:  # as below
                    if (example := self._run_native(params, grads[:step])) is not None:
                        return example
                    break
                except (Unclear, ValueError, ZeroDivisionError, OverflowError):
                    break
                both = list(zip(*pair, strict=True))
                # Its constants are rounded to that dtype, so a little of what a parameter is, or
                # was before it was cancelled, is no difference.
                little = 4 * max(float(jnp.finfo(leaf.dtype).eps) for leaf in self.dtypes)
                before = np.abs(np.concatenate([np.ravel(array) for array in params])).tolist()
                differs = [
                    a.is_finite()
                    and b.is_finite()
                    and abs(a - b) > little * abs(a).max(abs(b)).max(size)
                    for (a, b), size in zip(both, before, strict=True)
                ]
                if any(differs):
                    entry = differs.index(True)
                    values = [float(value) for value in both[entry]]
                    how = f"the programs for {self.kinds}, without rounding"
                    if self._runs_apart(params, grads[:step], entry, abs(values[0] - values[1])):
                        return self._at(params, grads[:step], entry, values, how)
                    break
                if all(a.is_finite() and b.is_finite() for a, b in both):
                    continue
                # Divided by 0: IEEE arithmetic has an answer, the run must show it.
                if (example := self._run_native(params, grads[:step])) is not None:
                    return example
        return None

    def _native_runs(self, params: list[np.ndarray], grads: Grads) -> list[list[list[np.ndarray]]]:
        """Both programs compiled, in the dtypes that they are for."""
        kinds = [leaf.dtype for leaf in self.dtypes]
        typed = [value.astype(kind) for value, kind in zip(params, kinds, strict=True)]
        moves = [[g.astype(kind) for g, kind in zip(each, kinds, strict=True)] for each in grads]
        return [trajectory(side, typed, moves) for side in self.native]

    def _runs_apart(
        self, params: list[np.ndarray], grads: Grads, entry: int, distance: float
    ) -> bool:
        """True if JAX's own runs are apart at an entry, by half of what was computed at least."""
        a, b = (
            np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in run[-1]])[entry]
            for run in self._native_runs(params, grads)
        )
        return bool(np.isfinite(a) != np.isfinite(b) or abs(a - b) >= distance / 2)

    def _run_native(self, params: list[np.ndarray], grads: Grads) -> Counterexample | None:
        """The example as both programs compute it in the dtypes that they are for."""
        kinds = [leaf.dtype for leaf in self.dtypes]
        runs = self._native_runs(params, grads)
        # Of what the entries were: a little may cancel to all.
        distances = list(step_distances(*runs))[-1]
        for leaf, (size, kind) in enumerate(zip(distances, kinds, strict=True)):
            if size > _COARSE * float(jnp.finfo(kind).eps):
                how = f"run in {self.kinds}"
                return self._at_largest(params, grads, leaf, [run[-1][leaf] for run in runs], how)
        return None

    @property
    def kinds(self) -> str:
        """The parameters' dtypes."""
        return ", ".join(dict.fromkeys(str(leaf.dtype) for leaf in self.dtypes))

    def _at(
        self,
        params: list[np.ndarray],
        grads: Grads,
        entry: int,
        values: Sequence[float],
        arithmetic: str,
    ) -> Counterexample:
        """An example whose difference is at an entry, counted through all leaves."""
        leaf = 0
        while entry >= params[leaf].size:
            entry -= params[leaf].size
            leaf += 1
        index = np.unravel_index(entry, params[leaf].shape)
        return self._example(params, grads, leaf, index, values, arithmetic)

    def differs_exactly(self, params: list[np.ndarray], grads: Grads) -> bool:
        """True if the sides differ in exact arithmetic as well, as traced for these dtypes.

        In float64 a state may still be float32, and hold a rounding of 1e-7; and a side may be
        another program there.
        """
        sides = self.sides if self.one_program else self.native
        try:
            runs = [exact_trajectory(side, params, grads) for side in sides]
            if self.one_program and not self._differs_natively(params, grads):
                return False
        except NoRule:
            return self._differs_measurably(sides, params, grads)
        except (Unclear, ValueError, ZeroDivisionError, OverflowError):
            return False
        pairs = list(zip(*runs, strict=True))
        if any(a.is_finite() and b.is_finite() and not a.overlaps(b) for a, b in pairs):
            return True
        # Where one divides by 0, for instance, the run has to show that it matters.
        far = any(not (a.is_finite() and b.is_finite()) for a, b in pairs)
        return far and self.largest_difference(params, grads)[0] > UNROUNDED

    def _differs_measurably(
        self, sides: Sequence[Program], params: list[np.ndarray], grads: Grads
    ) -> bool:
        """True if the sides part by more than float64 leaves unsure of a primitive without a rule.

        1 - igamma(a, x) cancels to a few roundings where igammac(a, x) is 1e-17: no difference.
        """
        try:
            with unknown_by_float64():
                runs = [exact_trajectory(side, params, grads) for side in sides]
        except (NoRule, Unclear, TypeError, ValueError, ZeroDivisionError, OverflowError):
            return False
        difference = (
            a.is_finite() and b.is_finite() and not a.overlaps(b)
            for a, b in zip(*runs, strict=True)
        )
        return any(difference) and self.largest_difference(params, grads)[0] > UNROUNDED

    def _differs_natively(self, params: list[np.ndarray], grads: Grads) -> bool:
        """True if the programs for the parameters' dtypes part as well, or that is not known.

        0.01 and what float32 makes of it are two numbers in float64, and one in float32.
        """
        runs = [exact_trajectory(side, params, grads) for side in self.native]
        return any(
            not (a.is_finite() and b.is_finite() and a.overlaps(b))
            for a, b in zip(*runs, strict=True)
        )

    def largest_difference(self, params: list[np.ndarray], grads: Grads) -> tuple[float, int]:
        """Returns the largest relative difference and its step; 0 if the sides do not differ."""
        self.tried += 1
        try:
            with self.context():
                runs = [trajectory(side, params, grads) for side in self.sides]
            for step, sizes in enumerate(step_distances(*runs)):
                if (size := max(sizes, default=0.0)) > self.faint:
                    return size, step
        except NoRule:
            raise
        except (OverflowError, ZeroDivisionError, ValueError):
            pass
        return 0.0, 0

    def _smallest(self, params: list[np.ndarray], grads: Grads) -> Counterexample | None:
        """The example with as many zeros and ones as it can have, run by JAX."""
        arrays = [*params, *itertools.chain(*grads)]
        count, size = len(params), self.largest_difference(params, grads)[0]

        def still(candidate: list[np.ndarray]) -> bool:
            rest = iter(candidate[count:])
            split = [[next(rest) for _ in params] for _ in grads]
            return self.largest_difference(candidate[:count], split)[0] > min(self.clear, size / 2)

        for entry, array in enumerate(arrays):
            for other in (np.zeros_like(array), np.ones_like(array)):
                trial = [*arrays[:entry], other, *arrays[entry + 1 :]]
                if not np.array_equal(array, other) and np.any(array) and still(trial):
                    arrays = trial
                    break
        rest = iter(arrays[count:])
        smallest = arrays[:count], [[next(rest) for _ in params] for _ in grads]
        if not self.differs_exactly(*smallest):  # by rounding alone
            smallest = params, grads
        return self._run_example(*smallest)

    def _run_example(self, params: list[np.ndarray], grads: Grads) -> Counterexample | None:
        """The example as both programs compute it, compiled; None if they do not part then."""
        with self.context():
            runs = [trajectory(side, params, grads) for side in self.sides]
        for step, (pair, distances) in enumerate(
            zip(zip(*runs, strict=True), step_distances(*runs), strict=True)
        ):
            if max(distances) > self.faint:
                entry = int(np.argmax(distances))
                return self._at_largest(params, grads[:step], entry, [run[entry] for run in pair])
        return None

    def _at_largest(
        self,
        params: list[np.ndarray],
        grads: Grads,
        entry: int,
        both: Sequence[np.ndarray],
        arithmetic: str = "",
    ) -> Counterexample:
        """An example whose difference is where two values of a leaf are farthest apart."""
        values = [np.asarray(value, float) for value in both]
        with np.errstate(all="ignore"):
            distance = np.where(values[0] == values[1], 0.0, np.abs(values[0] - values[1]))
        distance = np.where(np.isnan(distance), np.inf, distance)
        index = np.unravel_index(int(np.argmax(distance)), distance.shape)
        numbers = [float(value[index]) for value in values]
        how = arithmetic or self.arithmetic
        return self._example(params, grads, entry, index, numbers, how)

    def _example(
        self,
        params: list[np.ndarray],
        grads: Grads,
        leaf: int,
        index: Sequence[np.integer],
        values: Sequence[float],
        arithmetic: str,
    ) -> Counterexample:
        paths = self.inputs.paths
        by_id: dict[int, Json] = {}  # of many equal steps one mapping is enough
        for each in grads:
            if id(each) not in by_id:
                pairs = zip(paths, each, strict=True)
                by_id[id(each)] = {p.replace("params", "grads", 1): g.tolist() for p, g in pairs}
        moves = [by_id[id(each)] for each in grads]
        return Counterexample(
            self.numbers,
            {path: value.tolist() for path, value in zip(paths, params, strict=True)},
            moves,
            len(grads),
            paths[leaf],
            tuple(int(i) for i in index),
            values[0],
            values[1],
            arithmetic,
        )
