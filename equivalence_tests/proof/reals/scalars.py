"""Operations on elements as functions of real numbers, in the algebra.

Rounding is left out. What has no row of its own is an unknown function, and still equal to itself.
"""

from collections.abc import Hashable

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import (
    FEWEST_STEPS,
    NO_OVERFLOW,
    DType,
    is_complex,
    is_in_range,
    is_integer,
    is_unsigned,
    is_wide,
)
from equivalence_tests.proof.primitives import PRIMITIVES


class Scalars:
    """Operations on elements, in an algebra."""

    def __init__(self, graph: Graph, algebra: Algebra):
        """Reads the nodes of the graph into the algebra."""
        self.graph, self.algebra = graph, algebra
        self._names: dict[Hashable, int] = {}

    def knows(self, node: Node) -> bool:
        """True if a node is such an operation."""
        row = PRIMITIVES.get(node.op)
        if row is None or row.reals is None:
            return False
        of_complex = any(is_complex(each.dtype) for each in (node, *node.args))
        return row.of_complex or not of_complex

    def of(self, node: Node, args: list[Rat]) -> Rat:
        """Returns what a node that is known computes of numbers."""
        face = PRIMITIVES[node.op].reals
        assert face is not None  # `knows` says so
        return face(self, node, args)

    def constant_of(self, node: Node) -> float | int | bool | None:
        """Returns the number that a node is everywhere; None if it is no constant."""
        return self.graph.scalar(node)

    def function_number(self, key: Hashable) -> int:
        """Returns a number for what an unknown function is known by."""
        return self._names.setdefault(key, len(self._names))

    def wrap(self, node: Node, value: Rat) -> Rat:
        """Returns the number that an integer dtype makes of a value; of others, the value."""
        algebra, dtype = self.algebra, node.dtype
        if not is_integer(dtype):
            return value

        def of(args: list[Rat]) -> Rat:
            number = algebra.constant(args[0])
            if number is not None and is_in_range(int(number), dtype):
                return args[0]
            if is_wide(dtype) and self._fits(args[0], dtype):
                algebra.assumptions[NO_OVERFLOW] = None
                return args[0]
            nonneg = is_unsigned(dtype)
            return algebra.call("function", f"as {dtype}", args, integer=True, nonneg=nonneg)

        return algebra.case_split([value], of)

    def _fits(self, value: Rat, dtype: DType) -> bool:
        """True if a whole number of counts is one of a dtype's for very many steps."""
        atoms = [self.algebra.atoms[gen] for gen in self.algebra.atoms_of(value)]
        if any(atom.name.startswith("trunc") for atom in atoms):
            return False  # of a real number, of which nothing is known
        most = 0
        for monomial, coefficient in value.num.to_dict().items():
            counts = sum(
                power
                for gen, power in enumerate(monomial)
                if power and self.algebra.atoms[gen].kind not in ("positive", "zero")
            )
            most += abs(int(coefficient)) * FEWEST_STEPS**counts
        return is_in_range(most, dtype)
