"""Primitives as functions of real numbers, in the algebra.

Rounding is left out. What has no row is an uninterpreted function, and still equal to itself.
"""

from collections.abc import Callable

import numpy as np

from equivalence_tests.proof.algebra.algebra import Rat
from equivalence_tests.proof.dtypes import NO_OVERFLOW, is_discrete, is_float, is_wide
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.node import Node
from equivalence_tests.proof.primitives.primitive import OnReals, Scalars


def real(function: Callable[..., Rat]) -> OnReals:
    """Returns a face from a function of the algebra and the operands."""
    return lambda scalars, node, args: function(scalars.algebra, *args)


def wrapping(face: OnReals) -> OnReals:
    """Returns a face whose whole numbers wrap round where they do not fit their dtype."""
    return lambda scalars, node, args: scalars.wrap(node, face(scalars, node, args))


def uninterpreted_function(
    name: str | None = None, *, integer: bool | None = None, of_dtype: bool = False
) -> OnReals:
    """Returns an uninterpreted function of numbers, equal to itself alone."""

    def face(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
        kinds = [each.dtype for each in (node, *node.args)]
        rounds = of_dtype or not all(map(is_float, kinds))
        if name is None and integer is None:
            scalars.unknown[node.op] = None
        full = " ".join([name or node.op, *map(str, kinds * rounds)])
        if node.params and name is None:
            number = scalars.function_number((node.op, node.params))
            full = f"{full} {number}"
        is_integer = is_discrete(node.dtype) if integer is None else integer
        result = scalars.algebra.case_split(
            args, lambda args: scalars.algebra.call("function", full, args, integer=is_integer)
        )
        return scalars.algebra.positive(result) if node.dtype == np.bool_ else result

    return face


def round_to_integer(scalars: Scalars, node: Node, args: list[Rat]) -> Rat:
    """The face of functions that leave whole numbers alone."""
    atoms = [scalars.algebra.atoms[gen] for gen in scalars.algebra.atoms_of(*args)]
    numbers = [c for c in (*args[0].num.coeffs(), *args[0].den.coeffs())]
    integer = all(atom.integer for atom in atoms) and all(number.q == 1 for number in numbers)
    integer = integer and args[0].den.is_constant()
    if integer and node.op != "convert_element_type":
        return args[0]
    if integer and is_wide(node.dtype):
        scalars.algebra.assumptions[NO_OVERFLOW] = None
        return args[0]
    name = "trunc" if node.op == "convert_element_type" else None
    return uninterpreted_function(name, integer=True)(scalars, node, args)


def if_finite(scalars: Scalars, answer: int) -> Rat:
    """Returns an answer that holds where all values are finite, which is then assumed."""
    scalars.algebra.assumptions["all values are finite"] = None
    return scalars.algebra.number(answer)


def infinite_operands(scalars: Scalars, node: Node) -> list[bool]:
    """Returns for each operand whether it is a constant that is not finite."""
    numbers = [scalars.constant_of(arg) for arg in node.args]
    return [isinstance(number, float) and not np.isfinite(number) for number in numbers]


def infinity_above(scalars: Scalars, node: Node, infinite: list[bool]) -> tuple[int, bool]:
    """Returns which of two operands is infinite, and whether it is positive."""
    side = infinite.index(True)
    number = scalars.constant_of(node.args[side])
    if all(infinite) or number is None or np.isnan(number):
        raise Undecided(f"`{node.op}` of infinity")
    return side, number > 0
