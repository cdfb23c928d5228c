# pyright: strict
"""Errors: a proof that cannot be tried, and what keeps one from being finished."""

from equivalence_tests.sides.adapt import EquivalenceError


class ProofError(EquivalenceError):
    """Two sides cannot be compared at all; says which side and where."""


class Undecided(Exception):
    """The prover does not know; says what stopped it."""


class NoRule(Exception):
    """A primitive for which there is no rule."""


class Unclear(Exception):
    """A comparison that is open: a ball, or an interval, holds numbers on both sides."""


class Undefined(Unclear):
    """A comparison with what is no number: something was divided by 0."""
