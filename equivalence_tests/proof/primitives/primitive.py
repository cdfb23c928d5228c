# pyright: strict
"""A primitive's semantics: over the reals, its sign, its rules."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from equivalence_tests.proof.algebra.algebra import Algebra, Rat
from equivalence_tests.proof.dtypes import (
    FEWEST_STEPS,
    NO_OVERFLOW,
    DType,
    is_complex,
    is_in_range,
    is_integer,
    is_unsigned,
    is_wide,
    wrap_integer,
)
from equivalence_tests.proof.node import Node

Shape = tuple[int, ...]


class Builder(Protocol):
    """A graph, as the rules use it to make nodes."""

    def apply(
        self, op: str, args: Sequence[Node], params: Hashable, shape: Sequence[int], dtype: DType
    ) -> Node:
        """Returns the node of an operation after rewriting."""
        ...

    def node(
        self, op: str, args: Sequence[Node], params: Hashable, shape: Shape, dtype: DType
    ) -> Node:
        """Returns the node of an operation as it stands."""
        ...

    def splat(self, scalar: Node, shape: Sequence[int]) -> Node:
        """Returns a scalar spread over a shape."""
        ...

    def const(self, value: ArrayLike, dtype: DType | None = None) -> Node:
        """Returns a constant."""
        ...

    def scalar(self, node: Node) -> float | int | bool | None:
        """Returns the number that a node is everywhere; None if it is no constant."""
        ...

    def constant(self, node: Node) -> np.ndarray | None:
        """Returns the value of a constant's node; None of a key's, or of another operation."""
        ...


class Scalars:
    """A graph's numbers in an algebra, for the primitives that are functions of real numbers."""

    def __init__(self, graph: Builder, algebra: Algebra):
        """Reads the nodes of the graph into the algebra."""
        self.graph, self.algebra = graph, algebra
        self.unknown: dict[str, None] = {}  # operations that are equal to themselves alone
        self._names: dict[Hashable, int] = {}

    def knows(self, node: Node) -> bool:
        """True if a node is an operation with semantics over the reals."""
        row = PRIMITIVES.get(node.op)
        if row is None or row.reals is None:
            return False
        of_complex = any(is_complex(each.dtype) for each in (node, *node.args))
        return row.of_complex or not of_complex

    def of(self, node: Node, args: list[Rat]) -> Rat:
        """Returns the value of a node from those of its operands."""
        face = PRIMITIVES[node.op].reals
        assert face is not None  # `knows` says so
        return face(self, node, args)

    def constant_of(self, node: Node) -> float | int | bool | None:
        """Returns the number that a node is everywhere; None if it is no constant."""
        return self.graph.scalar(node)

    def function_number(self, key: Hashable) -> int:
        """Returns the number of an uninterpreted function with this key."""
        return self._names.setdefault(key, len(self._names))

    def wrap(self, node: Node, value: Rat) -> Rat:
        """Returns the number that an integer dtype makes of a value; of others, the value."""
        algebra, dtype = self.algebra, node.dtype
        if not is_integer(dtype):
            return value

        def of(args: list[Rat]) -> Rat:
            number = algebra.constant(args[0])
            if number is not None:
                return algebra.number(wrap_integer(int(number), dtype))
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
                if power and not self.algebra.atoms[gen].is_condition
            )
            most += abs(int(coefficient)) * FEWEST_STEPS**counts
        return is_in_range(most, dtype)


@dataclass(frozen=True)
class Site:
    """An operation that is about to become a node, its operands in one shape or scalars."""

    graph: Builder
    args: tuple[Node, ...]
    params: Hashable
    shape: Shape
    dtype: DType

    def apply(self, op: str, *args: Node) -> Node:
        """Returns another operation of the same shape and dtype, rewritten in its turn."""
        return self.graph.apply(op, args, (), self.shape, self.dtype)

    def broadcast(self, node: Node) -> Node:
        """Returns an operand in the shape of the result."""
        return self.graph.splat(node, self.shape) if node.shape != self.shape else node


# The faces. `Fold` is called with NumPy arrays, `Signs` with whether operands are never negative.
Fold = Callable[..., ArrayLike]
OnReals = Callable[[Scalars, Node, list[Rat]], Rat]
Signs = Callable[[Node, Sequence[bool]], bool]
Rewrite = Callable[[Site], Node | None]


@dataclass(frozen=True)
class Primitive:
    """The semantics of one primitive; None where they are not known.

    Attributes:
      name: the name in JAX.
      reals: its value over the reals, in the algebra, from those of its operands.
      signs: True if no entry is negative, from the node and the same truth of each operand.
      rewrite: another node of the same bits, None where no rule applies.
      elementwise: an entry of the result depends on the same entry of each operand alone.
      commutative: True if the order of the operands decides no bit; "whole" if that holds of
        integers alone.
      folds: a NumPy function of its operands, by which constants are computed.
      folds_floats: True if `folds` has JAX's bits on floating-point numbers too.
      of_complex: True if `reals` holds of complex numbers as well.
    """

    name: str
    reals: OnReals | None = None
    signs: Signs | None = None
    rewrite: Rewrite | None = None
    elementwise: bool = True
    commutative: bool | str = False
    folds: Fold | None = None
    folds_floats: bool = True
    of_complex: bool = False


PRIMITIVES: dict[str, Primitive] = {}


def define(name: str, **faces: Any) -> None:
    """Adds a row."""
    PRIMITIVES[name] = Primitive(name, **faces)


def is_elementwise(op: str) -> bool:
    """True if an operation treats every element alike."""
    return op in PRIMITIVES and PRIMITIVES[op].elementwise


def is_commutative(op: str) -> bool:
    """True if the order of an operation's operands decides no bit, in any dtype."""
    return op in PRIMITIVES and PRIMITIVES[op].commutative is True


def all_of(node: Node, signs: Sequence[bool]) -> bool:
    """The sign of operations that are never negative where no operand is."""
    del node
    return bool(signs) and all(signs)


def always(node: Node, signs: Sequence[bool]) -> bool:
    """The sign of operations that are never negative."""
    del node, signs
    return True
