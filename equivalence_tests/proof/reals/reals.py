"""A graph's results as functions of real numbers: each entry of an array by its indices.

An entry is asked for at indices that may be symbols, so arrays of any size cost the same. A sum
over an axis is a sum over a new index. Conversions between floating-point types, and all rounding,
are left out. What is not known here is an unknown function of its whole operands, and still equal
to itself.
"""

import math
from collections.abc import Callable, Sequence, Set

import numpy as np

from equivalence_tests.proof.algebra.algebra import Algebra, Index, Rat
from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.bits.segments import segment, segment_ends, undo_permutation
from equivalence_tests.proof.bits.signs import is_never_negative
from equivalence_tests.proof.dtypes import (
    NO_OVERFLOW,
    is_complex,
    is_discrete,
    is_float,
    is_integer,
    is_unsigned,
)
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.interpreter.balls import shortest_decimal
from equivalence_tests.proof.node import UNKNOWN
from equivalence_tests.proof.primitives.primitive import Scalars
from equivalence_tests.proof.reals import positions
from equivalence_tests.proof.reals.indexing import MOVES, indices, shift

_MOST_IN_FULL = 64  # terms of a sum that is written out


class Reals:
    """Entries of a graph's arrays in an algebra."""

    def __init__(
        self, graph: Graph, algebra: Algebra, cut: Set[int] = frozenset(), in_full: bool = False
    ):
        """Reads the nodes of the graph into the algebra."""
        self.graph, self.algebra, self.cut, self.in_full = graph, algebra, cut, in_full
        self.scalars = Scalars(graph, algebra)
        self.known: dict[tuple[int, tuple[Index, ...]], Rat] = {}

    def entry(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """An entry of an array, as a real number; of a boolean one as 1 or 0."""
        key = (node.id, index)
        if key not in self.known:
            self.known[key] = self._entry(node, index)
        return self.known[key]

    def _entry(self, node: Node, index: tuple[Index, ...]) -> Rat:
        if node.id in self.cut:
            leaves = (each for each in cone(node) if each.op == "leaf")
            natural = {leaf.id for leaf in leaves if leaf.params in self.graph.never_negative}
            nonneg = is_never_negative(self.graph, node, natural)
            integer = is_discrete(node.dtype)
            value = self.algebra.leaf(f"node {node.id}", index, integer=integer, nonneg=nonneg)
            return self.algebra.positive(value) if node.dtype == np.bool_ else value
        if node.op in _SHAPES:
            return _SHAPES[node.op](self, node, index)
        if not self.scalars.knows(node):
            return self._function_of_arrays(node, index)
        args = [self.entry(arg, index if arg.shape else ()) for arg in node.args]
        return self.scalars.of(node, args)

    def _function_of_arrays(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """An unknown function of whole arrays."""
        args = [self.entry(arg, indices(arg.shape, "a")) for arg in node.args]
        shapes = tuple((arg.shape, str(arg.dtype)) for arg in node.args)
        key = (node.op, node.params, shapes, node.shape)
        number = self.scalars.function_number(key)
        op = unknown_name(node) or node.op
        self.scalars.unknown[op] = None
        integer = is_discrete(node.dtype)
        name = f"{op} {number}"
        bound = frozenset(f"a{axis}" for arg in node.args for axis in range(len(arg.shape)))
        if any(self.algebra.is_special(arg) and self.algebra.free(arg) & bound for arg in args):
            raise Undecided(f"`{op}` of what is not defined everywhere")
        result = self.algebra.case_split(
            args, lambda args: self.algebra.call("array", name, args, index, integer=integer), bound
        )
        return self.algebra.positive(result) if node.dtype == np.bool_ else result

    # Shapes

    def leaf(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """An entry of an input."""
        integer = is_discrete(node.dtype)
        name = str(node.params)
        nonneg = name in self.graph.never_negative
        if nonneg and is_integer(node.dtype):
            self.algebra.assumptions[NO_OVERFLOW] = None
        nonneg = nonneg or is_unsigned(node.dtype)
        value = self.algebra.leaf(name, index, integer=integer, nonneg=nonneg)
        return self.algebra.positive(value) if node.dtype == np.bool_ else value

    def const(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """A constant; floating-point ones are read as the numbers that they mean."""
        array = self.graph.constant(node)
        pairs = zip(index, node.shape, strict=True)
        position = tuple(i for i, size in pairs if isinstance(i, int) and 0 <= i < size)
        complete = len(position) == len(node.shape)
        if array is None or not complete or is_complex(node.dtype):
            return self.algebra.leaf(f"constant {node.id}", index)
        value = np.asarray(array[position])[()]
        if not is_float(value.dtype):
            return self.algebra.number(int(value))
        if not np.isfinite(value):
            name = "NaN" if np.isnan(value) else "infinity"
            return self.algebra.special(f"{'-' if value < 0 else ''}{name}")
        number = shortest_decimal(value)
        base = self.algebra.number(number.base)
        read = (int(number.base.p) / int(number.base.q)) ** (1 / number.order)
        if value.dtype.type(read) != value:
            self.algebra.assumptions[f"the constant {value} is read as {read}"] = None
        return base if number.order == 1 else self.algebra.root(base, number.order)

    def splat(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """A scalar, wherever."""
        del index
        return self.entry(node.args[0], ())

    def moved_entry(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """Returns the operand's entry that a move reads, or an uninterpreted function."""
        source = MOVES[node.op](node, index)
        (arg, *sizes) = node.args
        if source is None or sizes:
            return self._function_of_arrays(node, index)
        return self.entry(arg, source)

    def at_position(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """Returns the entry at a position that is computed, or an uninterpreted function."""
        entry = _AT_POSITIONS[node.op](self, node, index)
        return self._function_of_arrays(node, index) if entry is None else entry

    def iota(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`iota`: an index as a number."""
        return self.algebra.position(index[node.settings["dimension"]])

    def reduce_sum(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`reduce_sum`."""
        arg = node.args[0]
        axes = tuple(node.settings["axes"])
        while (
            len(axes) == len(arg.shape) and (inner := undo_permutation(self.graph, arg)) is not None
        ):
            arg = inner  # all entries, wherever they stand
            axes = tuple(range(len(arg.shape)))
        for axis in axes:
            if ends := segment_ends(arg, axis):  # arrays in a row: a sum for each
                total, begins = self.algebra.number(0), (0, *ends[:-1])
                for begin, end in zip(begins, ends, strict=True):
                    piece = segment(self.graph, arg, axis, begin, end)
                    of_part = self.graph.apply(
                        "reduce_sum", (piece,), (("axes", axes),), node.shape, node.dtype
                    )
                    total = self.algebra.add(total, self.entry(of_part, index))
                return self.scalars.wrap(node, total)
        if 0 in arg.shape:
            return self.algebra.number(0)

        def term(numbers: Sequence[Index]) -> Rat:
            rest, segment = iter(index), dict(zip(axes, numbers, strict=True))
            position = (segment[a] if a in segment else next(rest) for a in range(len(arg.shape)))
            return self.entry(arg, tuple(position))

        return self.scalars.wrap(node, self._total([arg.shape[axis] for axis in axes], term))

    def _total(self, sizes: Sequence[int], term: Callable[[Sequence[Index]], Rat]) -> Rat:
        """The sum over indices of these sizes, with a symbol for each or written out."""
        algebra = self.algebra
        places: list[Index] = [0 if size == 1 else algebra.fresh() for size in sizes]
        out = {axis for axis, place in enumerate(places) if place == 0}
        if self.in_full and math.prod(sizes) <= _MOST_IN_FULL:
            out = set(range(len(sizes)))
        elif compared := algebra.compared_positions(term(places)):
            short = {axis for axis, size in enumerate(sizes) if size <= positions.MOST_POSITIONS}
            out |= {axis for axis in short if places[axis] in compared}
        bounds = [(str(places[axis]), size) for axis, size in enumerate(sizes) if axis not in out]
        result = algebra.number(0)
        for numbers in np.ndindex(*(size if axis in out else 1 for axis, size in enumerate(sizes))):
            place = [numbers[a] if a in out else symbol for a, symbol in enumerate(places)]
            result = algebra.add(result, algebra.total(term(place), bounds))
        return result

    def cumsum(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`cumsum` at a number: the sum of the entries up to there."""
        axis, last = node.settings["axis"], index[node.settings["axis"]]
        (arg,), size = node.args, node.shape[node.settings["axis"]]
        if not isinstance(last, int):
            return self._function_of_arrays(node, index)
        ends = (last, size) if node.settings["reverse"] else (0, last + 1)
        entries = segment(self.graph, arg, axis, *ends)
        shape = (*node.shape[:axis], *node.shape[axis + 1 :])
        params = (("axes", (axis,)),)
        total = self.graph.apply("reduce_sum", (entries,), params, shape, node.dtype)
        return self.entry(total, (*index[:axis], *index[axis + 1 :]))

    def reduce_bool(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`reduce_and`, `reduce_or`, `reduce_max` and the like: of equal elements, these."""
        arg = node.args[0]
        axes = node.settings["axes"]
        rest = iter(index)
        position = [f"a{axis}" if axis in axes else next(rest) for axis in range(len(arg.shape))]
        size = int(np.prod([arg.shape[axis] for axis in axes]))
        value = self.entry(
            arg, tuple(0 if arg.shape[a] == 1 else p for a, p in enumerate(position))
        )
        constant = not self.algebra.free(value) & {f"a{axis}" for axis in axes}
        return value if constant and size else self._function_of_arrays(node, index)

    def dot_general(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`dot_general`: a sum of products."""
        lhs, rhs = node.args
        (lc, rc), (lb, rb) = node.settings["dimension_numbers"]
        if lhs.shape == rhs.shape and len(lhs.shape) == len(lc) == 1 and not node.shape:
            ends = [segment_ends(each, 0) for each in (lhs, rhs)]
            if any(ends) and lhs.dtype == rhs.dtype == node.dtype:
                product = self.graph.apply("mul", (lhs, rhs), (), lhs.shape, node.dtype)
                params = (("axes", (0,)),)
                return self.entry(
                    self.graph.apply("reduce_sum", (product,), params, (), node.dtype), index
                )

        def term(numbers: Sequence[Index]) -> Rat:
            batch, rest = index[: len(lb)], iter(index[len(lb) :])
            positions = []
            for array, contracted, batched in ((lhs, lc, lb), (rhs, rc, rb)):
                summed = dict(zip((*contracted, *batched), (*numbers, *batch), strict=True))
                axes = range(len(array.shape))
                positions.append(tuple(summed[a] if a in summed else next(rest) for a in axes))
            pair = [self.entry(*each) for each in zip((lhs, rhs), positions, strict=True)]
            return self.algebra.mul(*pair)

        return self.scalars.wrap(node, self._total([lhs.shape[axis] for axis in lc], term))

    def concatenate(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`concatenate`: the array in which the index is."""
        axis = node.settings["dimension"]
        algebra, position, start = self.algebra, index[axis], 0
        parts = []
        for arg in node.args:
            at = (0 if arg.shape[axis] == 1 else shift(position, -start),)
            if arg.shape[axis]:
                parts.append((start, self.entry(arg, index[:axis] + at + index[axis + 1 :])))
            start += arg.shape[axis]
        result = parts[0][1]
        for begin, entry in parts[1:]:
            difference = algebra.sub(algebra.number(begin), algebra.position(position))
            result = algebra.choose(algebra.positive(difference), result, entry)
        return result

    def slice(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`slice` without strides."""
        params = node.settings
        strides = params.get("strides")
        if strides is not None and any(stride != 1 for stride in strides):
            return self._function_of_arrays(node, index)
        starts = params["start_indices"]
        cut = [a for a, size in enumerate(node.args[0].shape) if size != node.shape[a]]
        if len(cut) == 1 and segment_ends(node.args[0], cut[0]):
            begin = starts[cut[0]]
            piece = segment(self.graph, node.args[0], cut[0], begin, begin + node.shape[cut[0]])
            if piece is not node:
                return self.entry(piece, index)
        pairs = zip(index, starts, node.args[0].shape, strict=True)
        position = tuple(0 if size == 1 else shift(i, start) for i, start, size in pairs)
        return self.entry(node.args[0], position)


def unknown_name(node: Node) -> str | None:
    """The name of a function that is to stay unknown, if a node is a call of one."""
    if node.op != "jit":
        return None
    name = node.settings.get("name", "")
    return str(name).removeprefix(UNKNOWN)


_AT_POSITIONS: dict[str, Callable[[Reals, Node, tuple[Index, ...]], Rat | None]] = {
    "dynamic_slice": positions.dynamic_slice,
    "dynamic_update_slice": positions.dynamic_update_slice,
    "gather": positions.gather,
    "scatter": positions.scatter,
    "scatter-add": positions.scatter,
    "argmax": positions.argmax,
    "argmin": positions.argmax,
}
_SHAPES: dict[str, Callable[[Reals, Node, tuple[Index, ...]], Rat]] = {
    "leaf": Reals.leaf,
    "const": Reals.const,
    "splat": Reals.splat,
    **dict.fromkeys(MOVES, Reals.moved_entry),
    **dict.fromkeys(_AT_POSITIONS, Reals.at_position),
    "iota": Reals.iota,
    "reduce_sum": Reals.reduce_sum,
    "cumsum": Reals.cumsum,
    "reduce_and": Reals.reduce_bool,
    "reduce_or": Reals.reduce_bool,
    "reduce_max": Reals.reduce_bool,
    "reduce_min": Reals.reduce_bool,
    "dot_general": Reals.dot_general,
    "concatenate": Reals.concatenate,
    "slice": Reals.slice,
}
