# pyright: strict
"""Bounds of the whole numbers of a state, which are assumed not to overflow for many steps.

The size of a value is bounded by `max(factor * M + added, fresh)`, where `M` is the size of the
leaves that are bounded together, before the step. With a factor of 1 at most these are, after
`FEWEST_STEPS` steps, no larger than what they start with, or the largest fresh value, and that many
times what is added. What has no such bound may overflow.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import FEWEST_STEPS, is_float, is_in_range, is_integer, is_wide

_MOVED = (
    *("splat", "broadcast_in_dim", "reshape", "squeeze", "slice", "transpose", "rev"),
    *("concatenate", "pad", "reduce_max", "reduce_min", "neg", "abs", "convert_element_type"),
)
_SMALLER = {"lt": 1, "ne": 1, "ge": 2, "eq": 2}  # operand of select_n where `x < most` fails
_SWAPPED = {"gt": "lt", "le": "ge", "ne": "ne", "eq": "eq"}
# What is computed of larger ones in ways that are not known may overflow.
_MOST_OF_A_COUNT = FEWEST_STEPS + 2**16


class _Growth(NamedTuple):
    """A bound of a value: `max(factor * M + added, fresh)`."""

    factor: int
    added: int
    fresh: int

    def at(self, most: int) -> int:
        """The bound where `M` is at its most."""
        return max(self.factor * most + self.added, self.fresh)


_FLAG = _Growth(0, 0, 1)


def _fresh(number: int) -> _Growth:
    return _Growth(0, 0, abs(number))


def _largest(parts: Sequence[_Growth | None]) -> _Growth | None:
    """The bound of each of some values; None if one has none."""
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return _Growth(*(max(column) for column in zip(*known, strict=True)))


def _sum(one: _Growth, other: _Growth) -> _Growth:
    factor = one.factor + other.factor
    added = one.added + other.added
    added += (one.fresh if other.factor else 0) + (other.fresh if one.factor else 0)
    return _Growth(factor, added if factor else 0, one.fresh + other.fresh)


def _times(part: _Growth, number: int) -> _Growth:
    return _Growth(*(number * each for each in part))


def overflowing(
    graph: Graph,
    starts: Sequence[Node],
    before: Sequence[Node],
    after: Sequence[Node],
    params: Sequence[Node],
) -> set[int]:
    """The leaves of a state that may overflow soon, or something that is computed of them."""
    bounds = _Bounds(graph, starts, before, after)
    found = {leaf for leaf in bounds.leaves.values() if bounds.of(leaf) is None}
    return found | bounds.overflowing_of(cone(*after, *params))


class _Bounds:
    """Bounds of the whole numbers of a state, for `FEWEST_STEPS` steps."""

    def __init__(
        self,
        graph: Graph,
        starts: Sequence[Node],
        before: Sequence[Node],
        after: Sequence[Node],
    ):
        self.graph, self.starts, self.after = graph, starts, after
        self.leaves = {n.id: leaf for leaf, n in enumerate(before) if is_wide(n.dtype)}
        self._known: dict[int, int | None] = {}
        self._needs = {leaf: self._reached(leaf) for leaf in self.leaves.values()}

    def _reached(self, leaf: int) -> set[int]:
        """The leaves of which one is computed, within any number of steps."""
        reached, waiting = set[int](), [leaf]
        while waiting:
            nodes = _values(self.after[waiting.pop()])
            new = {self.leaves[node.id] for node in nodes if node.id in self.leaves} - reached
            reached |= new
            waiting += new
        return reached

    def of(self, leaf: int) -> int | None:
        """The most that a leaf is, either way; None if it may overflow."""
        if leaf not in self._known:
            others = {other for other in self._needs[leaf] if leaf in self._needs[other]}
            together = sorted({leaf} | others)
            self._known |= dict.fromkeys(together, self._most(together))
        return self._known[leaf]

    def _most(self, together: Sequence[int]) -> int | None:
        """The most that leaves are that are computed of one another."""
        begins = [self._growths(_values(self.starts[leaf])) for leaf in together]
        first = _largest(
            [begin[self.starts[n].id] for n, begin in zip(together, begins, strict=True)]
        )
        paths = [node for leaf in together for node in _values(self.after[leaf])]
        growths = self._growths(sorted(set(paths), key=lambda node: node.id), together)
        step = _largest([growths[self.after[leaf].id] for leaf in together])
        if first is None or step is None or step.factor > 1:
            return None
        most = max(first.fresh, step.fresh) + step.added * FEWEST_STEPS
        for node in paths:
            growth = growths[node.id]
            if growth is None or not is_in_range(growth.at(most), node.dtype):
                return None
        kinds = [self.after[leaf].dtype for leaf in together]
        return most if all(is_in_range(most, kind) for kind in kinds) else None

    def overflowing_of(self, nodes: Sequence[Node]) -> set[int]:
        """The leaves of which a node is computed that may overflow."""
        growths = self._growths([node for node in nodes if is_wide(node.dtype)], ())
        of: dict[int, set[int]] = {}
        found = set[int]()
        for node in nodes:
            leaf, growth = self.leaves.get(node.id), growths.get(node.id)
            of[node.id] = set() if leaf is None else {leaf}
            if is_wide(node.dtype):
                of[node.id] = of[node.id].union(*(of[arg.id] for arg in node.args))
            bounds = [self.of(leaf) or 0 for leaf in of[node.id]]
            if growth is None:
                soon = max(bounds, default=0) > _MOST_OF_A_COUNT
            else:
                soon = not is_in_range(growth.fresh, node.dtype)
            found |= of[node.id] if soon else set()
        return found

    def _growths(
        self, nodes: Sequence[Node], together: Sequence[int] | None = None
    ) -> Mapping[int, _Growth | None]:
        """The growth of nodes, operands first."""
        growths: dict[int, _Growth | None] = {}
        for node in nodes:
            growths[node.id] = self._growth(node, growths, together)
        return growths

    def _growth(
        self,
        node: Node,
        known: Mapping[int, _Growth | None],
        together: Sequence[int] | None,
    ) -> _Growth | None:
        most = int(jnp.iinfo(node.dtype).max) if is_integer(node.dtype) else 0
        if not is_wide(node.dtype):
            return None if not is_integer(node.dtype) else _fresh(most)
        if node.op == "leaf":
            leaf = None if together is None else self.leaves.get(node.id)
            if leaf is None:
                return _fresh(most)  # any number; what is added to it may overflow
            if leaf in (together or ()):
                return _Growth(1, 0, 0)
            bound = self.of(leaf)
            return None if bound is None else _fresh(bound)
        if node.op == "const":
            array = self.graph.constant(node)
            if array is None:
                return None
            return _fresh(max((abs(int(each)) for each in array.reshape(-1)), default=0))
        if _complement(self.graph, node) is not None:
            return _FLAG
        parts = [self._operand(node, arg, known) for arg in node.args]
        if node.op in _MOVED:
            return _largest(parts)
        if node.op in ("select_n", "min", "max", "clamp"):
            below = self._below(most, together)
            return _largest([parts[i] for i in _chosen(self.graph, node, below)])
        return _computed(self.graph, node, parts)

    def _below(self, most: int, together: Sequence[int] | None) -> set[int]:
        """The ids of leaves that do not get to a number, if those bounded together do not."""
        if together is None:
            return set()
        known = self._needs[together[0]] if together else set(self.leaves.values())
        bounds = {leaf: self.of(leaf) for leaf in known - set(together)}
        below = {leaf for leaf, bound in bounds.items() if bound is not None and bound < most}
        return {node for node, leaf in self.leaves.items() if leaf in below | set(together)}

    def _operand(
        self, node: Node, arg: Node, known: Mapping[int, _Growth | None]
    ) -> _Growth | None:
        if is_wide(arg.dtype):
            return known.get(arg.id)
        if arg.dtype == np.bool_:
            return _FLAG
        if is_integer(arg.dtype):
            return _fresh(int(jnp.iinfo(arg.dtype).max) + 1)
        if node.op == "convert_element_type" and is_float(arg.dtype):
            return _fresh(int(jnp.iinfo(node.dtype).max))  # the nearest number that there is
        return None


def _computed(graph: Graph, node: Node, parts: Sequence[_Growth | None]) -> _Growth | None:
    """The growth of the result of an arithmetic operation, or of one that counts elements."""
    if node.op in ("sign", "argmax", "argmin", "iota"):
        sizes = (*node.shape, *(size for arg in node.args for size in arg.shape))
        return _FLAG if node.op == "sign" else _fresh(max(sizes, default=1))
    if node.op == "rem":
        return parts[1]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if node.op in ("add", "sub"):
        return _largest(known) if _exclude(graph, *node.args) else _sum(*known)
    if node.op == "div":
        return _largest([known[0], _FLAG])
    if node.op == "reduce_sum":
        size, of = math.prod(node.args[0].shape), math.prod(node.shape)
        return _times(known[0], size // max(of, 1))
    if node.op == "cumsum":
        return _times(known[0], max(node.shape, default=1))
    if node.op in ("integer_pow", "dot_general") and any(part.factor for part in known):
        return None
    if node.op == "integer_pow":
        return _fresh(known[0].fresh ** abs(node.settings["y"]))
    if node.op == "dot_general":
        return _fresh(math.prod(node.args[0].shape) * known[0].fresh * known[1].fresh)
    if node.op == "mul":
        one, other = known if known[1].factor == 0 else known[::-1]
        return _times(one, other.fresh) if other.factor == 0 else None
    return None


def _chosen(graph: Graph, node: Node, below_most: set[int]) -> list[int]:
    """The operands, one of which the result is; without those that are no larger than another."""
    numbers = [graph.scalar(arg) for arg in node.args]
    if node.op == "select_n":
        saturated = _saturated(graph, node, below_most)
        return [number for number in range(1, len(node.args)) if number != saturated]
    below = {"max": range(2), "min": (), "clamp": (0,)}[node.op]
    above = {"min": range(2), "max": (), "clamp": (2,)}[node.op]
    others = [
        i
        for i, number in enumerate(numbers)
        if number is None or not ((i in below and number <= 0) or (i in above and number >= 0))
    ]
    return others or list(range(len(numbers)))


def _saturated(graph: Graph, node: Node, below_most: set[int]) -> int | None:
    """The operand of a choice that is the largest number, for a leaf that has reached it."""
    test, most = node.args[0], int(jnp.iinfo(node.dtype).max)
    if len(node.args) != 3 or len(test.args) != 2:
        return None
    (one, other), op = test.args, test.op
    if graph.scalar(one) == most:
        one, other, op = other, one, _SWAPPED.get(op, "")
    operand = _SMALLER.get(op)
    if operand is None or graph.scalar(other) != most or one.id not in below_most:
        return None
    return operand if graph.scalar(node.args[operand]) == most else None


def _exclude(graph: Graph, *terms: Node) -> bool:
    """True if two terms are products with `flag` and `1 - flag`."""
    flags = [arg for term in terms if term.op == "mul" for arg in term.args]
    return any(_complement(graph, flag) is other for flag in flags for other in flags)


def _complement(graph: Graph, node: Node) -> Node | None:
    """The flag, a condition as a number, of a node that is `1 - flag`; None of others."""
    if node.op not in ("add", "sub") or 1 not in (graph.scalar(arg) for arg in node.args):
        return None
    for part in node.args:
        flag = part.args[0] if part.op == "neg" else part
        if flag.op == "convert_element_type" and flag.args[0].dtype == np.bool_:
            return flag if part.op == "neg" or node.op == "sub" else None
    return None


def _values(node: Node) -> list[Node]:
    """The whole numbers of which a node is computed, operands first; not what is only asked."""
    reached: dict[int, Node] = {}
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.id not in reached:
            reached[each.id] = each
            args = each.args[1:] if each.op == "select_n" else each.args
            waiting += [arg for arg in args if is_wide(arg.dtype)]
    return [reached[number] for number in sorted(reached)]
