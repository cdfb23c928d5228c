"""The semantics of each primitive, one entry each.

A new one is one row in the file of its kind. One that has no row, or whose row has
`reals=uninterpreted_function()`, is read as an unknown function, equal to itself alone; a proof
that needs more says "not decided" and names it.
"""

from equivalence_tests.proof.primitives import arithmetic, functions, logic, structure  # noqa: F401
from equivalence_tests.proof.primitives.primitive import PRIMITIVES as PRIMITIVES
from equivalence_tests.proof.primitives.primitive import Primitive as Primitive
from equivalence_tests.proof.primitives.primitive import is_commutative as is_commutative
from equivalence_tests.proof.primitives.primitive import is_elementwise as is_elementwise
from equivalence_tests.proof.primitives.structure import COPIES as COPIES
