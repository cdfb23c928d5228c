"""Bounds of the distance that rounding makes in one step of sides equal over the reals."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.bits.graph import Graph, Node, cone
from equivalence_tests.proof.dtypes import DType, is_float
from equivalence_tests.proof.errors import NoRule, ProofError, Unclear
from equivalence_tests.proof.induction.induction import Induction
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.reading.sides import Inputs, check_inputs
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.rounding.roundoff import Range, Roundoff, common_inputs
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.metadata.trees import Params

_MOST_BOXES = 400


@dataclass(frozen=True)
class Bound:
    """A bound of the distance of two sides after one step."""

    absolute: Mapping[str, float]
    ulp: Mapping[str, float]
    ranges: Mapping[str, Range]
    worst: Mapping[str, Mapping[str, float]]
    stopped: Mapping[str, str]

    @property
    def largest(self) -> float:
        """The largest of all, in units in the last place."""
        return max(self.ulp.values())

    def __str__(self) -> str:
        lines = [
            f"{path}: at most {self.ulp[path]:.3g} ULP, {self.absolute[path]:.3g}"
            + (f" ({self.stopped[path]})" if path in self.stopped else "")
            for path in self.absolute
        ]
        ranges = ", ".join(f"{name} in [{a:g}, {b:g}]" for name, (a, b) in self.ranges.items())
        return "\n".join([f"after one step, for {ranges}:", *(f"  {line}" for line in lines)])


def rounding_bound(
    left: SideLike,
    right: SideLike,
    params: Params,
    ranges: Mapping[str, Range],
    *,
    count: int = 1,
) -> Bound:
    """Bounds the difference of two sides after one step from equal states.

        rounding_bound(legacy_optim.Adam(1e-3), optax.adam(1e-3), params,
                       {"params": (-1, 1), "grads": (-1, 1), "grad_ema": (-1, 1),
                        "grad_sq_ema": (0.01, 1)})

    No run goes beyond it, however XLA fuses the programs; see `roundoff` for how it is found.

    Args:
      left: one side.
      right: the other, equal over the reals.
      params: the parameters, or their shapes and dtypes.
      ranges: `params`, `grads`, and for each part of the left side's state that holds numbers a
        piece of its path -> the least and the largest value.
      count: the value of whole numbers in the state: the steps taken.

    Returns:
      The bound.

    Raises:
      ProofError: the sides are not proved equal, a range is missing, or there is an operation of
        whose rounding nothing is known.
    """
    proof = prove_equivalence(left, right, params)
    if proof.verdict not in (IDENTICAL, REALS):
        raise ProofError(f"no bound for what is not proved equal: {proof}")
    inputs = check_inputs(params, None)
    if proof.verdict == IDENTICAL:
        zeros = dict.fromkeys(inputs.paths, 0.0)
        return Bound(zeros, zeros, ranges, {}, {})
    induction = proof.cases[0].induction
    world = induction.world
    symbol_ranges = _Ranges(inputs, ranges, count)
    absolute, ulp, worst, stopped = {}, {}, {}, {}
    try:
        for name, leaf, pair, old in _leaves(induction, inputs):
            symbols = [node for node in cone(*pair, old) if node.op == "leaf"]
            wholes = {n.id: symbol_ranges.whole(n, world.graph) for n in symbols if not _is_real(n)}
            numbers = {str(n.params): symbol_ranges.of(n) for n in symbols if _is_real(n)}
            a, b, old = world.graph.with_inputs(wholes, *pair, old)
            common = common_inputs(a, b, world.comparer)
            roundoff = Roundoff(world.graph, (a, b), common, numbers).worst(_MOST_BOXES)
            size = Roundoff(world.graph, (old,), frozenset(), numbers).size()
            if roundoff.bound < absolute.get(name, 0.0):
                continue  # of another state of a counter
            absolute[name] = roundoff.bound
            ulp[name] = roundoff.bound / float(np.spacing(np.asarray(size, leaf)))
            worst[name] = roundoff.point
            if roundoff.stopped:
                stopped[name] = roundoff.stopped
    except (NoRule, Unclear) as error:
        raise ProofError(f"no bound: {error}") from None
    return Bound(absolute, ulp, dict(ranges), worst, stopped)


def _is_real(node: Node) -> bool:
    return is_float(node.dtype)


def _leaves(
    induction: Induction, inputs: Inputs
) -> Iterator[tuple[str, DType, tuple[Node, Node], Node]]:
    """Returns the leaves that a step changes: name, dtype, both sides' values, the value before."""
    seen = set[tuple[int, ...]]()
    for row in induction.obligations:
        if row.when != "step" or not _is_real(row.nodes[0]):
            continue
        name = row.leaf
        side = 0 if row.results[1] is None else 1
        state = induction.states[0].sides[side]
        old = state[row.results[side]]  # type: ignore[index]
        if row.params:
            old = next(node for node in state if node.op == "leaf" and node.params == name)
        ids = tuple(node.id for node in row.nodes)
        if ids in seen or ids == (old.id, old.id):
            continue
        seen.add(ids)
        yield name, row.nodes[1].dtype, row.nodes, old


class _Ranges:
    """The ranges of symbols."""

    def __init__(self, inputs: Inputs, ranges: Mapping[str, Range], count: int):
        self.params, self.ranges, self.count = inputs.paths, ranges, count
        for name, (low, high) in ranges.items():
            if not low <= high or not np.isfinite([low, high]).all():
                raise ProofError(
                    f"ranges[{name!r}]: expected the least and the largest value, found "
                    f"{(low, high)}"
                )

    def of(self, node: Node) -> Range:
        """That of a symbol."""
        name = str(node.params)
        grads = name.startswith("grads") and name.replace("grads", "params", 1) in self.params
        keys = [key for key in self.ranges if key in name and key not in ("params", "grads")]
        key = "params" if name in self.params else "grads" if grads else next(iter(keys), None)
        if key is None or key not in self.ranges:
            raise ProofError(
                f"ranges: `{name}` has none; expected one for a piece of its path, found "
                f"{', '.join(self.ranges)}"
            )
        low, high = self.ranges[key]
        return float(low), float(high)

    def whole(self, node: Node, graph: Graph) -> Node:
        """The value of a symbol that is a whole number or a condition."""
        value = self.count if node.dtype != jnp.bool_ else False
        return graph.const(np.full(node.shape, value), node.dtype)
