"""Runs cases of the matrix; cases that share programs share their compilation."""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import jax
import numpy as np

from equivalence_tests.compare import one_function
from equivalence_tests.compare.comparison import compare
from equivalence_tests.compare.extent import poisoned_from
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.trajectory import LOOPS, Driven, driver, trajectory
from equivalence_tests.suite.case import Result, measure
from equivalence_tests.suite.matrix import axes, sides
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.claim import rounding
from optax_bridge.correspondence.recipe import Call
from optax_bridge.metadata.trees import PyTree

_IN_ONE_FUNCTION = rounding(
    32.0,  # 15 were seen in 100 steps, of Adam's second moment
    "from JAX 0.11.1 on, in a loop on CPUs without a model's matrix products, parameters of one "
    "element round with the rest of the loop; all others are identical",
)


def groups(cases: Sequence[MatrixCase]) -> list[list[MatrixCase]]:
    """The cases by the programs that they need."""
    ordered = sorted(cases, key=lambda case: case.program)
    return [list(group) for _, group in groupby(ordered, key=lambda case: case.program)]


def run_group(cases: Sequence[MatrixCase], *, keep: bool = False) -> list[Result]:
    """Runs cases that share their programs.

    Args:
      cases: of one of `groups`.
      keep: whether results hold the right side's trajectory, for recording.

    Returns:
      One result for each case; an error is in its result and stops no other.
    """
    legs = Legs(cases[0].program)
    return [run_case(case, legs, keep=keep) for case in cases]


class Legs:
    """The runs of cases that share their programs, each made once."""

    def __init__(self, program: MatrixCase):
        """Takes `case.program`."""
        self.params = axes.parameters(program.tree, program.dtype)
        self.steps = axes.steps_of(program.tree)
        self.rates = axes.rates(sides.peak(program), self.steps)
        self.program = program
        self._wide: Legs | None = None
        # Each program and each run of the left side once, whichever cases ask for it.
        self._left = functools.cache(functools.partial(self._run, "legacy"))
        self._driver = functools.cache(self._new_driver)

    def both(self, case: MatrixCase) -> tuple[PyTree, PyTree]:
        """The trajectories of a case's two sides."""
        right = self._run(case.recipe, case.stream, resumed=case.mode == "resumed")
        return self._left(case.stream), right

    def in_float64(self, case: MatrixCase) -> Result:
        """The same case in float64, which decides whether a difference is rounding."""
        if self._wide is None:
            self._wide = Legs(replace(self.program, dtype="float64"))
        return run_case(replace(case, dtype="float64"), self._wide)

    def _run(self, recipe: str, stream: str, *, resumed: bool = False) -> PyTree:
        inputs = (axes.gradients(self.params, stream, self.steps), self.rates)
        # Two halves, so that one compilation also serves the run that is interrupted in between.
        parts = 2 if self.steps == axes.STEPS else 1
        return trajectory(self._driver(recipe), self.params, inputs, parts=parts, resumed=resumed)

    def _new_driver(self, recipe: str) -> Driven:
        case = replace(self.program, recipe=recipe)
        return driver((sides.left if recipe == "legacy" else sides.right)(case), case.drive)


def run_case(case: MatrixCase, legs: Legs, *, keep: bool = False) -> Result:
    """Runs one case with the legs of its program; an error is in its result."""

    def compare_sides(result: Result, recipe: Call) -> None:
        del recipe  # the right side asks for it
        with float64() if case.dtype == "float64" else contextlib.nullcontext():
            left, right = legs.both(case)
        grads = axes.gradients(legs.params, case.stream, legs.steps)
        comparison = result.comparison = compare(left, right, poisoned=poisoned_from(grads))
        if not comparison.identical and _in_one_function(case, left, right):
            result.claim = _IN_ONE_FUNCTION
        result.trajectory = right if keep else None

    setting = ENTRIES[case.entry].cases[case.setting]
    definition = sides.definition(case, sides.schedule(case))
    result = measure(case, setting, definition, compare_sides)
    comparison = result.comparison
    if comparison is not None and not comparison.identical and case.dtype != "float64":
        wide = legs.in_float64(case)
        result.wide, result.about_wide = wide.comparison, wide.note
    return result


def _in_one_function(case: MatrixCase, left: PyTree, right: PyTree) -> bool:
    """True if only parameters of one element differ, in a loop that is compiled as one function."""
    if case.recipe != "exact" or case.drive in LOOPS or not one_function.may_be():
        return False
    larger = [
        [leaf for leaf in jax.tree.leaves(tree) if np.size(leaf) > len(leaf)]
        for tree in (left, right)
    ]
    return compare(*larger).identical
