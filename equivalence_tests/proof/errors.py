# pyright: strict
"""Errors: a proof that cannot be tried, and one that cannot be finished."""

from equivalence_tests.sides.adapt import EquivalenceError


class ProofError(EquivalenceError):
    """Two sides cannot be compared at all; says which side and where."""


class Undecided(Exception):
    """The prover does not know; says what stopped it."""
