"""The search for an input on which two sides differ, shown by a run."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.counterexample.candidates import (
    Candidate,
    Grads,
    exact_values,
    of_sizes,
    other_settings,
    simple,
    sizes,
)
from equivalence_tests.proof.counterexample.example import Counterexample
from equivalence_tests.proof.counterexample.long_runs import LongRun, blocks, long_runs, probes
from equivalence_tests.proof.counterexample.runs import (
    Arrays,
    Pair,
    entries,
    finite,
    relative_distance,
    same_up_to_rounding,
    step_distances,
    unknown_by_float64,
)
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.errors import NoRule, ProofError, Unclear, Undefined
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    trace_side,
)
from equivalence_tests.sides.precision import float64

# Rounding in float64 is 1e-16 of a number, and grows by what cancels.
CLEAR, FAINT = 1e-6, 1e-9
# Where a side cannot be run without rounding: more than float32 could make of it in a few steps.
UNROUNDED = 1e-3
# In a dtype of its own: rounding makes so many units in the last place of it in a few steps.
_COARSE = 64
_HOPELESS = 1e4  # units: where a side runs in no other dtype, more than rounding ever makes
# Elements times steps that are followed in exact arithmetic, some seconds of it.
_MOST_EXACT = 40_000
_MOST_FAINT = 4  # candidates that are followed in exact arithmetic though little parts them
_LATER = 3  # steps after one that parts the sides, for "from this step on"
Context = Callable[[], contextlib.AbstractContextManager[object]]
_OPEN = (Unclear, ValueError, ZeroDivisionError, OverflowError)  # no answer in exact arithmetic


class Search:
    """Both sides in float64, ready to be run on candidates."""

    def __init__(
        self,
        sides: tuple[MakeSide, MakeSide],
        inputs: Inputs,
        programs: tuple[Program, Program] | None = None,
    ):
        """Traces both sides in float64; `programs` are those with these numbers, where known."""
        self._programs = programs
        self.numbers = {**inputs.numbers, **inputs.fixed}
        self.inputs, self.tried = replace(inputs, numbers={}, fixed=self.numbers), 0
        self._sides = sides
        try:
            with float64():
                self.pair = self._trace(self.inputs.wide, CLEAR, FAINT, "float64", float64)
        except ProofError:
            clear = _HOPELESS * self._precision
            self.pair = replace(self.native, clear=clear, faint=clear)

    def _trace(
        self, inputs: Inputs, clear: float, faint: float, how: str, context: Context
    ) -> Pair:
        lhs, rhs = (
            trace_side(make, inputs, name)
            for make, name in zip(self._sides, ("left", "right"), strict=True)
        )
        return Pair((lhs, rhs), inputs.shapes, clear, faint, how, context)

    @functools.cached_property
    def native(self) -> Pair:
        """Both sides, traced for the dtypes of the parameters."""
        clear = _COARSE * self._precision
        how = f"run in {self._kinds}"
        if self._programs is not None:
            context = contextlib.nullcontext
            return Pair(self._programs, self.inputs.shapes, clear, clear, how, context)
        return self._trace(self.inputs, clear, clear, how, contextlib.nullcontext)

    @functools.cached_property
    def one_program(self) -> bool:
        """True if both sides have the same programs for the parameters' dtypes as for float64."""
        pairs = zip(self.pair.sides, self.native.sides, strict=True)
        return all(same_up_to_rounding(a.step, b.step) for a, b in pairs)

    @property
    def _precision(self) -> float:
        """The coarsest of the parameters' dtypes."""
        return max(float(jnp.finfo(leaf.dtype).eps) for leaf in self.inputs.shapes)

    @property
    def _kinds(self) -> str:
        return ", ".join(dict.fromkeys(str(leaf.dtype) for leaf in self.inputs.shapes))

    def find_quickly(self) -> Counterexample | None:
        """A counterexample among a few simple inputs, or None."""
        return self._among(simple(self.inputs))

    def find_patiently(self) -> Counterexample | None:
        """A counterexample by all other ways; None if none of them leads to one."""
        near = of_sizes(self.inputs, sizes(self.pair.sides))
        searches = [functools.partial(self._among, near), self._late]
        searches.insert(2 if self.one_program else 0, self._natively)
        return next(filter(None, (search() for search in searches)), None)

    def _among(self, candidates: Iterable[Candidate]) -> Counterexample | None:
        """A counterexample that is one of the candidates, made as small as it can be."""
        faint = list[Candidate]()
        for candidate in candidates:
            params, *grads = map(self._in_range, (candidate[0], *candidate[1]))
            size, step = self._first_difference(params, grads)
            if size > self.pair.clear and self._differs_exactly(params, grads[:step]):
                return self._smallest(params, grads[:step])
            if self.pair.clear >= size > self.pair.faint:
                faint.append((params, grads[:step]))
        for params, grads in faint[:_MOST_FAINT]:
            if self._differs_exactly(params, grads):
                return self._smallest(params, grads)
        return None

    def _in_range(self, arrays: Arrays) -> Arrays:
        """Arrays without numbers that the parameters' dtypes do not reach."""
        most = [float(jnp.finfo(leaf.dtype).max) for leaf in self.inputs.shapes]
        return [np.clip(a, -m, m) for a, m in zip(arrays, most, strict=True)]

    # Many steps

    def _late(self) -> Counterexample | None:
        """A counterexample after many steps; None if none."""
        pair = self.pair if self.one_program else self.native
        with pair.context():
            steps = blocks(pair)
            for run in long_runs(pair):
                for first, last in steps:
                    run.advance(max(first - run.at, 0))
                    if (example := self._example_near(run, last)) is not None:
                        return example
        return None

    def _example_near(self, run: LongRun, last: int) -> Counterexample | None:
        """The example of one step from where a run is, or until a last step; None if none is."""
        while run.at <= last and run.is_finite():
            for grads in map(self._in_range, probes(run.pair)):
                self.tried += 1
                lhs, rhs = run.params_after(grads)
                distances = list(map(relative_distance, lhs, rhs))
                if max(distances) > run.pair.clear:
                    if not self._confirms(run, grads):
                        return None  # rounding alone has parted them
                    leaf, moves = int(np.argmax(distances)), run.moves(grads)
                    pair, how = (lhs[leaf], rhs[leaf]), run.pair.arithmetic
                    example = self._example(run.params, moves, leaf, pair, how)
                    return replace(example, from_step_on=self._differs_later(run, grads))
            run.advance(1)
        return None

    def _confirms(self, run: LongRun, grads: Arrays) -> bool:
        """True if exact arithmetic parts them too: all the way, or in the last step of many."""
        moves = run.moves(grads)
        size = len(moves) * sum(array.size for array in grads)
        if size <= _MOST_EXACT and not run.pair.has_loops:
            return self._differs_exactly(run.params, moves)
        return run.next_differs_exactly(grads)

    def _differs_later(self, run: LongRun, grads: Arrays) -> bool:
        """True if the sides differ after each of some later steps as well."""
        for _ in range(_LATER):
            run.advance(1)
            if max(map(relative_distance, *run.params_after(grads))) <= run.pair.clear:
                return False
        return True

    # The programs for the parameters' dtypes

    def _natively(self) -> Counterexample | None:
        """A counterexample that float64 does not show, as a side depends on the dtype."""
        asked = exact_values(self.inputs.shapes, self.native.sides)
        for params, grads in itertools.chain(simple(self.inputs), asked):
            for step in range(3):
                example, goes_on = self._native_example(params, grads[:step])
                if example is not None:
                    return example
                if not goes_on:
                    break
        return None

    def _native_example(self, params: Arrays, grads: Grads) -> tuple[Counterexample | None, bool]:
        """The example that exact arithmetic gives, if runs bear it out; else whether to go on."""
        try:
            exact = self.native.last_exactly(params, grads)
        except Undefined:
            return self._run_example(self.native, params, grads), False
        except _OPEN:
            return None, False
        # Its constants are rounded to that dtype, so a little of what a parameter is, or was
        # before it was cancelled, is no difference.
        little, both = 4 * self._precision, entries(exact)
        before = np.abs(np.concatenate([np.ravel(array) for array in params])).tolist()
        differing = [
            finite(a, b) and abs(a - b) > little * abs(a).max(abs(b)).max(size)
            for (a, b), size in zip(both, before, strict=True)
        ]
        if any(differing):
            ends = np.cumsum([array.size for array in params])
            leaf = int(np.searchsorted(ends, differing.index(True), side="right"))
            values = [np.vectorize(float, otypes=[float])(arrays[leaf]) for arrays in exact]
            how = f"the programs for {self._kinds}, without rounding"
            example = self._example(params, grads, leaf, values, how)
            return (example if self._runs_bear_out(example, leaf, params, grads) else None), False
        if all(finite(a, b) for a, b in both):
            return None, True
        return self._run_example(self.native, params, grads), True

    def _runs_bear_out(
        self, example: Counterexample, leaf: int, params: Arrays, grads: Grads
    ) -> bool:
        """True if JAX's own runs are apart there, by half of what was computed at least."""
        runs = self.native.runs(params, grads)
        a, b = (float(np.asarray(steps[-1][leaf], float)[example.index]) for steps in runs)
        return np.isfinite(a) != np.isfinite(b) or abs(a - b) >= example.difference / 2

    # One candidate

    def _differs_exactly(self, params: Arrays, grads: Grads) -> bool:
        """True if the sides differ in exact arithmetic as well, as traced for these dtypes."""
        pair = self.pair if self.one_program else self.native
        try:
            answer = _are_apart(pair, params, grads)
            if self.one_program and _are_apart(self.native, params, grads) is False:
                return False
        except NoRule:
            answer = _are_apart_measurably(pair, params, grads)
        except _OPEN:
            return False
        if answer is None:  # the run has to show that it matters
            return self._first_difference(params, grads)[0] > UNROUNDED
        return answer

    def _first_difference(self, params: Arrays, grads: Grads) -> tuple[float, int]:
        """Returns the first relative difference and its step; 0 if the sides do not differ."""
        self.tried += 1
        try:
            for step, sizes_at_step in enumerate(
                step_distances(*self.pair.runs(params, grads, compiled=False))
            ):
                if (size := max(sizes_at_step, default=0.0)) > self.pair.faint:
                    return size, step
        except (OverflowError, ZeroDivisionError, ValueError):
            pass
        return 0.0, 0

    def _smallest(self, params: Arrays, grads: Grads) -> Counterexample | None:
        """The example with as many zeros and ones as it can have, run by JAX."""
        count, size = len(params), self._first_difference(params, grads)[0]
        arrays = [*params, *itertools.chain(*grads)]

        def split(arrays: Arrays) -> Candidate:
            rest = iter(arrays[count:])
            return arrays[:count], [[next(rest) for _ in params] for _ in grads]

        for entry, array in enumerate(arrays):
            for other in (np.zeros_like(array), np.ones_like(array)):
                trial = [*arrays[:entry], other, *arrays[entry + 1 :]]
                if np.array_equal(array, other) or not np.any(array):
                    continue
                if self._first_difference(*split(trial))[0] > min(self.pair.clear, size / 2):
                    arrays = trial
                    break
        smallest = split(arrays)
        if not self._differs_exactly(*smallest):  # by rounding alone
            smallest = params, grads
        return self._run_example(self.pair, *smallest)

    def _run_example(self, pair: Pair, params: Arrays, grads: Grads) -> Counterexample | None:
        """The example as both programs compute it, compiled; None if they do not part then."""
        lhs, rhs = pair.runs(params, grads)
        for step, distances in enumerate(step_distances(lhs, rhs)):
            if max(distances) > pair.faint:
                leaf = int(np.argmax(distances))
                both = lhs[step][leaf], rhs[step][leaf]
                return self._example(params, grads[:step], leaf, both, pair.arithmetic)
        return None

    def _example(
        self,
        params: Arrays,
        grads: Grads,
        leaf: int,
        both: Sequence[np.ndarray],
        arithmetic: str,
    ) -> Counterexample:
        """An example whose difference is where two values of a leaf are farthest apart."""
        values = [np.asarray(value, float) for value in both]
        same = (values[0] == values[1]) | (np.isnan(values[0]) & np.isnan(values[1]))
        with np.errstate(all="ignore"):
            distance = np.where(same, 0.0, np.abs(values[0] - values[1]))
        distance = np.where(np.isnan(distance), np.inf, distance)
        index = np.unravel_index(int(np.argmax(distance)), distance.shape)
        paths = self.inputs.paths
        by_id: dict[int, Json] = {}  # of many equal steps one mapping is enough
        for each in grads:
            if id(each) not in by_id:
                pairs = zip(paths, each, strict=True)
                by_id[id(each)] = {p.replace("params", "grads", 1): g.tolist() for p, g in pairs}
        return Counterexample(
            self.numbers,
            {path: value.tolist() for path, value in zip(paths, params, strict=True)},
            [by_id[id(each)] for each in grads],
            len(grads),
            paths[leaf],
            tuple(int(i) for i in index),
            float(values[0][index]),
            float(values[1][index]),
            arithmetic,
        )


def find_with_other_settings(
    pair: tuple[MakeSide, MakeSide], inputs: Inputs, programs: tuple[Program, Program]
) -> tuple[Counterexample | None, int]:
    """Returns a counterexample with other hyper-parameters, and how many of these were tried."""
    tried = 0
    for numbers in other_settings(inputs.numbers, programs):
        tried += 1
        with contextlib.suppress(ProofError, NoRule):  # a side may refuse a number
            example = Search(pair, replace(inputs, numbers=numbers)).find_quickly()
            if example is not None:
                return example, tried
    return None, tried


def _are_apart(pair: Pair, params: Arrays, grads: Grads) -> bool | None:
    """True if sides have different numbers in exact arithmetic; None if some are no numbers."""
    both = pair.exactly(params, grads)
    if any(finite(a, b) and not a.overlaps(b) for a, b in both):
        return True
    return False if all(finite(a, b) for a, b in both) else None


def _are_apart_measurably(pair: Pair, params: Arrays, grads: Grads) -> bool | None:
    """None if sides part by more than float64 leaves unsure of a primitive without a rule."""
    try:
        with unknown_by_float64():
            return None if _are_apart(pair, params, grads) else False
    except (NoRule, TypeError, *_OPEN):
        return False
