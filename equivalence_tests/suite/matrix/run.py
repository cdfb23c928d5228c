"""Runs cases of the matrix; cases that share programs share their compilation."""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from equivalence_tests.compare.comparison import compare
from equivalence_tests.compare.extent import poisoned_from
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.side import Side
from equivalence_tests.sides.trajectory import LOOPS, Driven, driver, trajectory
from equivalence_tests.suite.case import Result, call_text, decide_in_float64, measure
from equivalence_tests.suite.matrix import axes, cases
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.claim import rounding
from optax_bridge.correspondence.recipe import Call
from optax_bridge.metadata.trees import PyTree

# From this JAX on, XLA for CPUs may compile a loop that holds no matrix product of some size as one
# function. What the operations on parameters of one element read is then loaded once for several,
# by an order that the whole program decides, and by that order the compiler chooses which of two
# products is fused with their sum. The other parameters have loops of their own, and their bits.
_ONE_FUNCTION_SINCE = (0, 11, 1)
_IN_ONE_FUNCTION = rounding(
    32.0,  # 15 were seen in 100 steps, of Adam's second moment
    "from JAX 0.11.1 on, in a loop on CPUs without a model's matrix products, parameters of one "
    "element round with the rest of the loop; all others are identical",
)


def run_group(group: Sequence[MatrixCase]) -> list[Result]:
    """Runs cases that share their programs; an error is in its result and stops no other."""
    legs = Legs(group[0].program)
    return [run_case(case, legs) for case in group]


class Legs:
    """The runs of cases that share their programs, each made once."""

    def __init__(self, program: MatrixCase):
        """Takes `case.program`."""
        self.params = axes.parameters(program.tree, program.dtype)
        self.steps = axes.steps_of(program.tree)
        self.rates = axes.rates(cases.peak(program), self.steps)
        self.program = program
        # Each program and each run of the left side once, whichever cases ask for it.
        self._left = functools.cache(functools.partial(self._run, "legacy"))
        self._driver = functools.cache(self._new_driver)

    def both(self, case: MatrixCase) -> tuple[PyTree, PyTree]:
        """The trajectories of a case's two sides."""
        right = self._run(case.recipe, case.stream, resumed=case.mode == "resumed")
        return self._left(case.stream), right

    def inputs(self, stream: str) -> tuple[PyTree, np.ndarray]:
        """Gradients and rates, of shape (steps, ...) at each leaf."""
        return axes.gradients(self.params, stream, self.steps), self.rates

    def side(self, recipe: str) -> Side:
        """The legacy optimizer, or a recipe."""
        case = replace(self.program, recipe=recipe)
        return (cases.legacy_side if recipe == "legacy" else cases.recipe_side)(case)

    def _run(self, recipe: str, stream: str, *, resumed: bool = False) -> PyTree:
        # Two halves, so that one compilation also serves the run that is interrupted in between.
        parts = 2 if self.steps == axes.STEPS else 1
        run = self._driver(recipe)
        return trajectory(run, self.params, self.inputs(stream), parts=parts, resumed=resumed)

    def _new_driver(self, recipe: str) -> Driven:
        return driver(self.side(recipe), self.program.drive)


def run_case(case: MatrixCase, legs: Legs) -> Result:
    """Runs one case with the legs of its program; an error is in its result."""

    def compare_sides(result: Result, recipe: Call) -> None:
        del recipe  # the right side asks for it
        with float64() if case.dtype == "float64" else contextlib.nullcontext():
            legacy, other = legs.both(case)
        inputs = legs.inputs(case.stream)
        poisoned = poisoned_from(inputs[0])
        comparison = result.comparison = compare(legacy, other, poisoned=poisoned)
        result.trajectory = other
        if comparison.identical:
            return
        if _in_one_function(case, legacy, other):
            result.claim = _IN_ONE_FUNCTION
        if case.dtype != "float64":
            both = map(legs.side, ("legacy", case.recipe))
            drive = case.drive if case.drive in LOOPS else "scan"  # other devices change nothing
            decide_in_float64(result, both, legs.params, inputs, drive, poisoned)

    entry = ENTRIES[case.entry]
    definition = cases.definition(case, cases.schedule(case))
    return measure(case, call_text(entry, entry.cases[case.setting]), definition, compare_sides)


def _in_one_function(case: MatrixCase, legacy: PyTree, other: PyTree) -> bool:
    """True if only parameters of one element differ, in a loop that is compiled as one function."""
    if case.recipe != "exact" or case.drive in LOOPS:
        return False
    if jax.default_backend() != "cpu" or jax.__version_info__ < _ONE_FUNCTION_SINCE:
        return False
    larger = [
        [leaf for leaf in jax.tree.leaves(tree) if np.size(leaf) > len(leaf)]
        for tree in (legacy, other)
    ]
    return compare(*larger).identical
