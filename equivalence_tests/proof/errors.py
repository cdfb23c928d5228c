# pyright: strict
"""What keeps a proof from being tried, and what keeps it from being finished."""

from equivalence_tests.sides.adapt import EquivalenceError


class ProofError(EquivalenceError):
    """Two sides cannot be compared at all; says which side and where."""


class Undecided(Exception):
    """The prover does not know; says what stopped it."""
