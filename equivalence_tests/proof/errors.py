# pyright: strict
"""Errors: a proof that cannot be attempted, and one that cannot be finished."""

from equivalence_tests.proof.interpreter.balls import NoRule as NoRule
from equivalence_tests.proof.interpreter.balls import Unclear as Unclear
from equivalence_tests.proof.interpreter.balls import Undefined as Undefined
from equivalence_tests.sides.adapt import EquivalenceError


class ProofError(EquivalenceError):
    """Two sides cannot be compared at all; says which side and where."""


class Undecided(Exception):
    """The prover cannot decide; the message says why."""
