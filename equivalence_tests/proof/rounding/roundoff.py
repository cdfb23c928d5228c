"""A search for the inputs on which rounding takes two nodes, equal over the reals, furthest apart.

The general entry of every array is followed as `intervals.Rounded`, for a box of inputs. What
rounds worst on a box is bounded from above there; the box with the largest bound is halved, until
bound and worst case lie close together. Every node rounds by itself on each side, however XLA
compiles it: it may round a product or not (where it fuses it with a sum), and sum up in any order.
What both sides compute with the same operations of the same operands, and XLA fuses with nothing,
is one number; where the sides are equal for any such number, its error does not part them.
"""

import functools
import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flint import arb, fmpq

from equivalence_tests.proof.algebra.atoms import Index
from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import is_float
from equivalence_tests.proof.errors import NoRule, Unclear
from equivalence_tests.proof.induction.equality import Comparer
from equivalence_tests.proof.interpreter.balls import denoted, precise
from equivalence_tests.proof.primitives import PRIMITIVES, intervals
from equivalence_tests.proof.primitives.faces import as_rounded, raise_unclear
from equivalence_tests.proof.primitives.intervals import Precision, Rounded
from equivalence_tests.proof.primitives.primitive import Value
from equivalence_tests.proof.reals.indexing import MOVES, indices

Range = tuple[float, float]
Box = dict[str, Range]
_WITHIN = 1.05  # of the worst case; the search ends there
_PATIENCE = 40  # boxes; it ends as well where these improve the bound by less than 1 %
_PRODUCTS = ("mul", "div", "integer_pow", "dot_general", "square")
_ADDS = ("add", "sub", "reduce_sum", "cumsum", "dot_general")
_THROUGH = frozenset(
    ["neg", "convert_element_type", "splat", "broadcast_in_dim", "reshape", "transpose", "select_n"]
)


@dataclass(frozen=True)
class _Row:
    """An entry of a node that is to be computed."""

    node: Node
    args: tuple[int, ...]
    name: str


@dataclass(frozen=True)
class Worst:
    """The result of a search."""

    bound: float
    point: Mapping[str, float]
    stopped: str = ""


def common_inputs(lhs: Node, rhs: Node, comparer: Comparer) -> frozenset[int]:
    """Nodes that are one number on both sides, whatever its value."""
    cones = [{node.id: node for node in cone(each)} for each in (lhs, rhs)]
    union = {**cones[0], **cones[1]}
    users: dict[int, list[Node]] = {number: [] for number in union}
    for node in union.values():
        for arg in node.args:
            users[arg.id].append(node)
    fused: dict[int, bool] = {}
    product: dict[int, bool] = {}
    for number in sorted(union):
        node = union[number]
        through = node.op in _THROUGH and any(product[arg.id] for arg in node.args)
        product[number] = node.op in _PRODUCTS or through
    for number in sorted(union, reverse=True):
        meets = any(u.op in _ADDS or (u.op in _THROUGH and fused[u.id]) for u in users[number])
        fused[number] = product[number] and meets
    one: dict[int, bool] = {}
    for number in sorted(union):
        node = union[number]
        in_both = number in cones[0] and number in cones[1]
        shared = in_both and not fused[number] and node.op not in ("reduce_sum", "dot_general")
        one[number] = shared and all(one[arg.id] for arg in node.args)
    ends = (lhs.id, rhs.id)
    values = comparer.graph.values
    numbers = {n for n in union if one[n] and n in values and _is_inexact(values[n])}
    outer = {
        n
        for n in union
        if one[n]
        and union[n].op not in ("leaf", "const", "splat")
        and (n in ends or any(not one[user.id] for user in users[n]))
    }
    if lhs is rhs:
        return frozenset(outer | numbers)
    for tried in (outer | numbers, outer, numbers):
        if tried and comparer.equal_with(lhs, rhs, frozenset(tried)):
            return frozenset(tried)
    return frozenset()


def _is_inexact(value: np.ndarray) -> bool:
    """True if a constant is not the number that it means."""
    if value.shape or not is_float(value.dtype) or not np.isfinite(value):
        return False
    number = denoted(value[()])
    return number.order > 1 or number.base != _fraction(value)


def _fraction(value: np.ndarray) -> fmpq:
    return fmpq(*float(value).as_integer_ratio())


class Roundoff:
    """Both sides' rounding errors on boxes of inputs."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        common: frozenset[int],
        ranges: Mapping[str, Range],
    ):
        """Follows nodes of a graph."""
        self.graph, self.common = graph, common
        self.root = indices(nodes[0].shape)
        self.rows: list[_Row] = []
        self._numbers: dict[tuple[int, tuple[Index, ...]], int] = {}
        self.terms: dict[int, Rounded] = {}  # row of a sum -> any of its terms
        self.fixed: dict[int, Value] = {}  # rows that depend on no input
        self.box: Box = {}
        self.ends = [self._plan(node, self.root, ranges) for node in nodes]

    def _plan(self, node: Node, index: tuple[Index, ...], ranges: Mapping[str, Range]) -> int:
        """The number of the row that computes an entry of a node."""
        key = (node.id, index)
        if key not in self._numbers:
            sources = self._sources(node, index)
            args = [
                self._plan(arg, index, ranges)
                for arg, index in zip(node.args, sources, strict=True)
            ]
            name = ""
            if node.op == "leaf":
                name = str(node.params)
                low, high = ranges[name]
                name += "" if index == self.root else f" at {list(index)}"
                self.box[name] = (low, high)
            self._numbers[key] = number = len(self.rows)
            if node.op == "reduce_sum":
                name = f"the rest of the sum {number}"
                self.terms[number] = term = as_rounded(self._values(self.box)[args[0]])
                others = _count(node) - self._has_own_term(node)
                ends = float((others * term.low).lower()), float((others * term.high).upper())
                self.box[name] = ends
            self.rows.append(_Row(node, tuple(args), name))
        return self._numbers[key]

    def _has_own_term(self, node: Node) -> bool:
        """True if the entry of which all is computed is one that a sum is over."""
        return indices(node.args[0].shape) == self.root

    def _sources(self, node: Node, index: tuple[Index, ...]) -> list[tuple[Index, ...]]:
        """The indices at which the operands of an entry are read."""
        if node.op == "reduce_sum":
            # One of the terms: that of the entry itself if it is among them, else any.
            axes, rest = node.settings["axes"], iter(index)
            axes_of_term = (
                self.root if self._has_own_term(node) else indices(node.args[0].shape, "any")
            )
            return [
                tuple(
                    axes_of_term[a] if a in axes else next(rest) for a in range(len(axes_of_term))
                )
            ]
        if node.op in ("splat", "leaf", "const"):
            return [()] * len(node.args)
        if node.op in MOVES:
            moved = MOVES[node.op](node, index)
            if moved is None:
                raise NoRule(f"no bound of the rounding of such a `{node.op}`")
            return [moved]
        row = PRIMITIVES.get(node.op)
        if node.op != "select_n" and (row is None or row.rounding is None):
            raise NoRule(f"no bound of the rounding of `{node.op}`")
        return [index if arg.shape else () for arg in node.args]

    def errors(self, box: Box) -> tuple[arb, str]:
        """All errors together, at most, for inputs in a box; and why they are infinite."""
        try:
            values = self._values(box)
        except Unclear as error:
            return arb("inf"), str(error)
        total = sum((as_rounded(values[end]).error for end in self.ends), arb(0))
        if total.is_finite():
            return total, ""
        return arb("inf"), "a denominator may be 0"

    def size(self) -> float:
        """The largest magnitude of the first node."""
        value = as_rounded(self._values(self.box)[self.ends[0]])
        return _upper(value.size)

    def worst(self, most_boxes: int) -> Worst:
        """The largest of all errors together, by branch and bound."""
        tie = itertools.count()
        bound, stopped = self.errors(self.box)
        heap = [(-_upper(bound), next(tie), self.box, stopped)]
        best, point = 0.0, {name: sum(ends) / 2 for name, ends in self.box.items()}
        before = float("inf")
        for tried in range(most_boxes):
            top, _, box, stopped = heap[0]
            if tried % _PATIENCE == 0:
                if tried and before < float("inf") and -top > before * 0.99:
                    break
                before = -top
            middle: Box = {}
            for name, ends in box.items():
                at = _middle(*ends)
                middle[name] = (at, at)
            seen = self.errors(middle)[0]
            if seen.is_finite() and float(seen) > best:
                best, point = float(seen), {name: ends[0] for name, ends in middle.items()}
            if -top <= best * _WITHIN or not any(low < high for low, high in box.values()):
                break
            heapq.heappop(heap)
            for half in self._halves(box, middle):
                bound, stopped = self.errors(half)
                heapq.heappush(heap, (-_upper(bound), next(tie), half, stopped))
        return Worst(-heap[0][0], point, heap[0][3])

    def _halves(self, box: Box, middle: Box) -> list[Box]:
        """A box halved along the input that matters most."""
        wide = [name for name, (low, high) in box.items() if low < high]

        def without(name: str) -> tuple[float, float]:
            low, high = box[name]
            width = (high - low) / max(abs(low), abs(high))
            return _upper(self.errors({**box, name: middle[name]})[0]), -width

        chosen = min(wide, key=without)
        (low, high), at = box[chosen], middle[chosen][0]
        return [{**box, chosen: (low, at)}, {**box, chosen: (at, high)}]

    def _values(self, box: Box) -> list[Value]:
        """Each row: a `Rounded`, a whole number, or whether something holds."""
        values: list[Value] = []
        with precise(80):
            for number, row in enumerate(self.rows):
                if number in self.fixed:
                    values.append(self.fixed[number])
                    continue
                value = self._value(number, row, [values[arg] for arg in row.args], box)
                if row.node.id in self.common and isinstance(value, Rounded):
                    value = value.as_computed()
                if not row.name and all(arg in self.fixed for arg in row.args):
                    self.fixed[number] = value
                values.append(value)
        return values

    def _value(self, number: int, row: "_Row", args: list[Value], box: Box) -> Value:
        node = row.node
        if node.op == "leaf":
            return Rounded.exact(*box[row.name])
        if node.op == "const":
            return self._constant(node)
        if node.op == "reduce_sum":
            return self._sum(node, args[0], self.terms[number], Rounded.exact(*box[row.name]))
        if node.op == "select_n":
            return self._select(node, args)
        rounding = PRIMITIVES[node.op].rounding
        assert rounding is not None  # `_sources` has looked
        return rounding(node, args)

    def _constant(self, node: Node) -> Value:
        array = self.graph.values[node.id]
        if not is_float(array.dtype):
            if array.shape:
                raise NoRule("no bound with an array of whole numbers")
            return array.item()
        constant = None
        for scalar in array.reshape(-1):
            if not np.isfinite(scalar):
                raise Unclear("a constant is not finite")
            as_rounded = denoted(scalar).ball
            error = abs(arb(float(scalar)) - as_rounded)
            relative = error / abs(as_rounded) if as_rounded != 0 else arb(0)
            here = Rounded(as_rounded, as_rounded, error, relative)
            constant = here if constant is None else intervals.either(constant, here)
        return constant

    def _sum(self, node: Node, term: Value, anywhere: Rounded, rest: Rounded) -> Rounded:
        """A sum, in any order, of one of its terms and the rest."""
        precision, size = Precision.of(node.dtype), _count(node)
        grown = (1 + precision.half) ** (size - 1)
        own_term = as_rounded(term) if self._has_own_term(node) else Rounded.exact(0)
        low, high = own_term.low + rest.low, own_term.high + rest.high
        if anywhere.low >= 0 and anywhere.relative is not None:
            relative = (1 + anywhere.relative) * grown - 1
        else:
            relative = None
        error = size * anywhere.error
        most = (size * anywhere.size + error) * grown
        if not most < precision.huge:
            return Rounded(low, high, arb("inf"), None)
        error = error + (size * anywhere.size + error) * (grown - 1) + size * precision.tiny
        return Rounded(low, high, error, relative, anywhere.nonneg)

    def _select(self, node: Node, args: list[Value]) -> Value:
        which, *cases = args
        if isinstance(which, int):
            return cases[which]
        if node.args[0].id not in self.common:
            raise Unclear(f"what `{node.args[0].op}` says is open in these ranges")
        numbers = [case for case in cases if isinstance(case, Rounded)]
        if len(numbers) == len(cases):
            return functools.reduce(intervals.either, numbers)
        return None if all(isinstance(case, bool | None) for case in cases) else raise_unclear()


def _count(node: Node) -> int:
    return int(np.prod([node.args[0].shape[axis] for axis in node.settings["axes"]]))


def _upper(value: arb) -> float:
    return float(value.upper()) if value.is_finite() else float("inf")


def _middle(low: float, high: float) -> float:
    """Returns the point that halves an interval: 0, the middle of its octaves, or its middle."""
    if low < 0 < high:
        return 0.0
    if low * high > 0 and max(abs(low), abs(high)) > 2 * min(abs(low), abs(high)):
        root = (low * high) ** 0.5
        return root if low > 0 else -root
    return (low + high) / 2
