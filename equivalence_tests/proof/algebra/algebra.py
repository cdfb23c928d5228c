# pyright: strict
"""The algebra of real numbers, whole; its parts stand in files of their own.

`atoms` has what values are made of, `quotients` polynomials over atoms, `conditions` indicators,
`powers` roots, `sums` sums.
"""

from equivalence_tests.proof.algebra.atoms import Index as Index
from equivalence_tests.proof.algebra.atoms import Rat as Rat
from equivalence_tests.proof.algebra.quotients import CapacityExceeded as CapacityExceeded
from equivalence_tests.proof.algebra.sums import Sums


class Algebra(Sums):
    """Atoms, and arithmetic with quotients of polynomials over them."""
