# pyright: strict
"""Errors: a proof that cannot be attempted, and one that cannot be finished."""

from equivalence_tests.sides.adapt import EquivalenceError


class ProofError(EquivalenceError):
    """Two sides cannot be compared at all; says which side and where."""


class Undecided(Exception):
    """The prover cannot decide; the message says why."""


class NoRule(Exception):
    """A primitive that has no rule for balls."""


class Unclear(Exception):
    """A question that a ball, or an interval, cannot answer: it holds numbers on both sides."""


class Undefined(Unclear):
    """A comparison with an undefined value, such as a quotient by 0."""
