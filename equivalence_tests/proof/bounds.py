"""How far rounding can take two sides apart in one step that are equal over the reals.

Both programs are followed with numbers that enclose, for all inputs within given ranges, the real
value (an interval) and how far the computed value may be from it (an error bound). Endpoints and
errors are FLINT's balls, so the bound itself is not rounded in the wrong direction. Every sum,
product, quotient and root adds half a unit in the last place; functions that XLA approximates are
taken for good to `FUNCTION_ULP` units; a sum over an axis may be added up in any order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from flint import arb

from equivalence_tests.proof import interpreter, programs
from equivalence_tests.proof.decimals import decimal
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.prover import correspondence_of, prove_equivalence
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.traced_sides import inputs, traced, traced_relation
from equivalence_tests.sides.adapt import SideLike

FUNCTION_ULP = 4


@dataclass(frozen=True)
class Bound:
    """How far apart one step can leave two sides.

    Attributes:
      absolute: path of a parameter -> largest difference; infinite where the ranges allow a
        division by zero.
      ulp: the same in units in the last place of that parameter's largest value within the ranges.
      ranges: what it holds for.
    """

    absolute: Mapping[str, float]
    ulp: Mapping[str, float]
    ranges: Mapping[str, tuple[float, float]]

    @property
    def largest(self) -> float:
        """The largest of all, in units in the last place."""
        return max(self.ulp.values())

    def __str__(self) -> str:
        lines = [
            f"{path}: at most {self.ulp[path]:.3g} ULP, {self.absolute[path]:.3g}"
            for path in self.absolute
        ]
        told = ", ".join(f"{name} in [{a:g}, {b:g}]" for name, (a, b) in self.ranges.items())
        return "\n".join([f"after one step, for {told}:", *(f"  {line}" for line in lines)])


def rounding_bound(
    left: SideLike,
    right: SideLike,
    params: Any,
    ranges: Mapping[str, tuple[float, float]],
    *,
    count: int = 1,
) -> Bound:
    """Bounds the difference of two sides after one step from equal states.

        rounding_bound(legacy_optim.Adam(1e-3), optax.adam(1e-3), params,
                       {"params": (-1, 1), "grads": (-1, 1), "grad_ema": (-1, 1),
                        "grad_sq_ema": (0.01, 1)})

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
      ProofError: the sides are not proved equal, a range is missing, or a branch depends on the
        input within the ranges.
    """
    proof = prove_equivalence(left, right, params)
    if proof.verdict not in (IDENTICAL, REALS):
        raise ProofError(f"no bound for what is not proved equal: {proof}")
    given = inputs(params, None)
    if proof.verdict == IDENTICAL:
        zeros = dict.fromkeys(given.paths, 0.0)
        return Bound(zeros, zeros, ranges)
    pair = (lambda hp: left), (lambda hp: right)
    sides = tuple(traced(make, given, name) for make, name in zip(pair, proof.names, strict=True))
    induction = proof.cases[0].induction
    unit = max((_unit(side.step) for side in sides), default=0.0)
    names = {path: "params" for path in given.paths}

    def numbers(name: str, aval: Any) -> np.ndarray:
        if not interpreter.is_float(aval.dtype):
            return np.full(aval.shape, count if aval.dtype != np.bool_ else False, aval.dtype)
        key = names.get(name) or next((key for key in ranges if key in name), None)
        if key is None or key not in ranges:
            raise ProofError(
                f"ranges: `{name}` has none; expected one for a piece of its path, found "
                f"{', '.join(ranges)}"
            )
        low, high = ranges[key]
        array = np.empty(aval.shape, object)
        for place in np.ndindex(aval.shape):
            array[place] = Number(arb(low), arb(high), arb(0), unit)
        return array

    with interpreter.precise():
        known: dict[str, np.ndarray] = {}
        start = [
            interpreter.run(side.start, [_zeros(leaf) for leaf in given.shapes]) for side in sides
        ]
        held: list[list[np.ndarray]] = []
        for side, symbols, first in zip(sides, induction.classes, start, strict=True):
            row = []
            for name, aval, value in zip(symbols, side.avals, first, strict=False):
                if name is None:
                    row.append(_constant(value, unit))
                    continue
                if name not in known:
                    known[name] = numbers(name, aval)
                row.append(known[name])
            held.append(row)
        grads = [
            numbers(path.replace("params", "grads", 1), leaf)
            for path, leaf in zip(given.paths, given.shapes, strict=True)
        ]
        try:
            if induction.given:
                relate = correspondence_of(pair, given, sides)
                if relate is None:
                    raise ProofError("a bound needs a relation that the prover finds itself")
                relation = traced_relation(relate, pair[0], given, sides[1])
                held[1] = interpreter.exactly(relation, held[0], _lift(unit))
            results = [
                interpreter.exactly(side.step, [*row, *grads], _lift(unit))[len(side.paths) :]
                for side, row in zip(sides, held, strict=True)
            ]
        except (interpreter.NoRule, interpreter.Unclear) as error:
            raise ProofError(f"no bound: {error}; narrower ranges may decide it") from None
    absolute, ulp = {}, {}
    for path, leaf, a, b in zip(given.paths, given.shapes, *results, strict=True):
        pairs = list(zip(a.flat, b.flat, strict=True))
        apart = max(float((x.error + y.error).abs_upper()) for x, y in pairs)
        size = max(float(x.size().abs_upper()) for x, _ in pairs)
        absolute[path] = apart
        ulp[path] = apart / float(np.spacing(np.asarray(size, leaf.dtype)))
    return Bound(absolute, ulp, dict(ranges))


def _zeros(leaf: Any) -> np.ndarray:
    return np.zeros(leaf.shape, leaf.dtype)


def _constant(value: np.ndarray, unit: float) -> np.ndarray:
    return interpreter.lifted(value, _lift(unit)) if interpreter.is_float(value.dtype) else value


def _lift(unit: float) -> Any:
    def lift(value: Any) -> Number:
        scalar = np.asarray(value)[()]
        exact = arb(decimal(scalar)[0]) if np.isfinite(scalar) else arb(float(scalar))
        return Number(exact, exact, abs(arb(float(scalar)) - exact), unit)

    return lift


def _unit(jaxpr: Any) -> float:
    """Half a unit in the last place of 1, of the coarsest dtype that a program computes in."""
    inner, _ = programs.opened(jaxpr)
    found = [0.0]
    for eqn in inner.eqns:
        for var in eqn.outvars:
            if interpreter.is_float(var.aval.dtype):
                found.append(float(jnp.finfo(var.aval.dtype).eps) / 2)
        found += [_unit(value) for value in eqn.params.values() if programs.is_jaxpr(value)]
    return max(found)


def _least(values: Sequence[arb]) -> arb:
    result = values[0]
    for value in values[1:]:
        result = result.min(value)
    return result


def _most(values: Sequence[arb]) -> arb:
    result = values[0]
    for value in values[1:]:
        result = result.max(value)
    return result


class Number:
    """A real value within an interval, computed with an error.

    Attributes:
      low: lower end.
      high: upper end.
      error: how far the computed value may be from the real one.
      unit: half a unit in the last place of 1.
    """

    __slots__ = ("error", "high", "low", "unit")

    def __init__(self, low: arb, high: arb, error: arb, unit: float):
        self.low, self.high, self.error, self.unit = low, high, error, unit

    def size(self) -> arb:
        """The largest magnitude."""
        return abs(self.low).max(abs(self.high))

    def _least_size(self) -> arb:
        if self.low > 0:
            return self.low
        return -self.high if self.high < 0 else arb(0)

    def _made(self, low: arb, high: arb, error: arb, units: float = 1) -> "Number":
        """A result, rounded: relative to its computed size, or where that is tiny, absolutely."""
        size = abs(low).max(abs(high)) + error
        rounding = size * arb(self.unit) * units + arb(2) ** -126
        return Number(low, high, error + rounding, self.unit)

    def _other(self, other: Any) -> "Number":
        if isinstance(other, Number):
            return other
        exact = arb(int(other)) if isinstance(other, int | np.integer) else arb(float(other))
        return Number(exact, exact, arb(0), self.unit)

    def __add__(self, other: Any) -> "Number":
        other = self._other(other)
        return self._made(self.low + other.low, self.high + other.high, self.error + other.error)

    __radd__ = __add__

    def __neg__(self) -> "Number":
        return Number(-self.high, -self.low, self.error, self.unit)

    def __sub__(self, other: Any) -> "Number":
        return self + (-self._other(other))

    def __rsub__(self, other: Any) -> "Number":
        return self._other(other) + (-self)

    def __mul__(self, other: Any) -> "Number":
        if other is self:
            least = self._least_size()
            error = 2 * self.size() * self.error + self.error**2
            return self._made(least**2, self.size() ** 2, error)
        other = self._other(other)
        ends = [a * b for a in (self.low, self.high) for b in (other.low, other.high)]
        error = self.size() * other.error + other.size() * self.error + self.error * other.error
        return self._made(_least(ends), _most(ends), error)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Number":
        other = self._other(other)
        least = other._least_size()
        if not least > other.error:
            return Number(arb("-inf"), arb("inf"), arb("inf"), self.unit)
        ends = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        size = _most([abs(end) for end in ends])
        error = (self.error + size * other.error) / (least - other.error)
        return self._made(_least(ends), _most(ends), error)

    def __rtruediv__(self, other: Any) -> "Number":
        return self._other(other) / self

    def __pow__(self, power: int) -> "Number":
        result = self._other(1)
        for _ in range(abs(int(power))):
            result = result * self
        # XLA computes it by squaring, or as exp of a logarithm.
        result = result._made(result.low, result.high, result.error, 2 * FUNCTION_ULP)
        return result if power >= 0 else self._other(1) / result

    def __abs__(self) -> "Number":
        return Number(self._least_size(), self.size(), self.error, self.unit)

    def sqrt(self) -> "Number":
        """The root."""
        low = self.low.max(arb(0))
        error = self.error / low.sqrt() if low > 0 else self.error.sqrt()
        return self._made(low.sqrt(), self.high.sqrt(), error)

    def rsqrt(self) -> "Number":
        """One over the root."""
        return self._other(1) / self.sqrt()

    def exp(self) -> "Number":
        """The exponential."""
        error = self.high.exp() * self.error.expm1()
        return self._made(self.low.exp(), self.high.exp(), error, 2 * FUNCTION_ULP)

    def log(self) -> "Number":
        """The logarithm."""
        if not self.low > self.error:
            return Number(arb("-inf"), arb("inf"), arb("inf"), self.unit)
        error = (self.error / (self.low - self.error)).log1p()
        return self._made(self.low.log(), self.high.log(), error, 2 * FUNCTION_ULP)

    def tanh(self) -> "Number":
        """The hyperbolic tangent, whose slope is 1 at most."""
        return self._made(self.low.tanh(), self.high.tanh(), self.error, 2 * FUNCTION_ULP)

    def max(self, other: "Number") -> "Number":
        """The larger of two."""
        other = self._other(other)
        error = self.error.max(other.error)
        return Number(self.low.max(other.low), self.high.max(other.high), error, self.unit)

    def min(self, other: "Number") -> "Number":
        """The smaller of two."""
        return -((-self).max(-self._other(other)))

    def overlaps(self, other: Any) -> bool:
        """Whether the computed values may be equal."""
        other = self._other(other)
        slack = self.error + other.error
        return not (self.high + slack < other.low or other.high + slack < self.low)

    def is_exact(self) -> bool:
        """Whether it is one number, computed without error."""
        return bool(self.low == self.high and self.error == 0)

    def unique_fmpz(self) -> Any:
        """The whole number that it is; None if it is none."""
        return self.low.unique_fmpz() if self.is_exact() else None

    def __lt__(self, other: Any) -> bool:
        return bool(self.high < self._other(other).low)

    def __gt__(self, other: Any) -> bool:
        return bool(self.low > self._other(other).high)

    def __le__(self, other: Any) -> bool:
        return bool(self.high <= self._other(other).low)

    def __ge__(self, other: Any) -> bool:
        return bool(self.low >= self._other(other).high)

    def __eq__(self, other: object) -> bool:
        other = self._other(other)
        return bool(self.is_exact() and other.is_exact() and self.low == other.low)

    __hash__ = None  # type: ignore[assignment]
