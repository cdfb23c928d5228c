"""Normal forms of a certificate, evaluated in exact arithmetic. Knows nothing of the prover."""

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flint import arb, fmpq

Case = Mapping[str, Any]  # of a certificate, as JSON
# A number, the name of a symbol, or an operation on indices and numbers.
Index = int | str | Sequence[Any]
_Place = tuple[int | tuple[str, int], ...]  # a quotient's number, and values of symbols
Term = tuple[str, Sequence[tuple[int, int]]]  # a rational number; atoms and their powers
_FUNCTIONS = frozenset({"exp", "log", "sin", "cos", "tan", "tanh", "floor", "ceil"})
# What stands beyond the end of a part of a row: conditions take it away, so that any number does,
# and an odd one shows where they do not.
_BEYOND = arb(fmpq(37, 16))


_TIE = arb("1e-40")


class NotEvaluable(Exception):
    """A form that holds a function of which nothing is known."""


@dataclass(frozen=True)
class Forms:
    """The normal forms of a case of a certificate, and what they are evaluated on."""

    case: Case
    inputs: Mapping[str, np.ndarray]
    _known: dict[_Place, arb] = field(default_factory=dict[_Place, arb])

    def value(self, number: int, symbols: Mapping[str, int]) -> arb:
        """Returns the value of a quotient where the symbols of indices have these values."""
        place = number, *sorted(symbols.items())
        if place not in self._known:  # quotients have parts in common
            above, below = (self._sum(each, symbols) for each in self.case["quotients"][number])
            self._known[place] = above / below
        return self._known[place]

    def _sum(self, terms: Sequence[Term], symbols: Mapping[str, int]) -> arb:
        total = arb(0)
        for coefficient, factors in terms:
            powers = [self._atom(number, symbols) ** power for number, power in factors]
            # A condition that does not hold takes away even what is not defined then.
            if not any(power == 0 for power in powers):
                number = arb(fmpq(*map(int, coefficient.split("/"))))
                total += functools.reduce(operator.mul, powers, number)
        return total

    def _atom(self, number: int, symbols: Mapping[str, int]) -> arb:
        atom = self.case["atoms"][number]
        kind, index = atom["kind"], [position(each, symbols) for each in atom.get("index", [])]
        if kind == "leaf":
            array = self.inputs[atom["name"]]
            if array.ndim != len(index):
                raise NotEvaluable(f"{atom['name']} has {array.ndim} axes")
            inside = all(0 <= at < size for at, size in zip(index, array.shape, strict=True))
            value = array[tuple(index)] if inside else _BEYOND
            return value if isinstance(value, arb) else arb(int(value))
        if kind == "index":
            return arb(index[0])
        if kind == "sum":
            names, sizes = zip(*atom["bound"], strict=True)
            places = itertools.product(*map(range, sizes))
            here = ({**symbols, **dict(zip(names, place, strict=True))} for place in places)
            return sum((self.value(atom["args"][0], each) for each in here), arb(0))
        if kind not in ("root", "positive", "zero", "function"):
            raise NotEvaluable(atom["name"])
        value, *others = (self.value(argument, symbols) for argument in atom["args"])
        name = atom["name"].split(" ")[0]
        if kind == "root":
            return value.root(atom["order"])
        if kind in ("positive", "zero"):
            if value.contains(0) and not value.is_exact():
                raise NotEvaluable(f"{value} against 0")
            return arb(int(value > 0 if kind == "positive" else value == 0))
        if name == "pow":
            (exponent,) = others
            integer = exponent.unique_fmpz() if exponent.is_exact() else None
            return value**integer if integer is not None else (value.log() * exponent).exp()
        if name not in _FUNCTIONS:
            raise NotEvaluable(name)
        near = (value.mid() + 0.5).floor()
        if name == "floor" and abs(value - near) < _TIE:  # a third of 3 as a ball
            return near
        return getattr(value, name)()


def position(index: Index, symbols: Mapping[str, int]) -> int:
    """Returns the number that an index is where its symbols have values."""
    if isinstance(index, int | str):
        return symbols[index] if isinstance(index, str) else index
    kind, *parts = index
    if kind == "of":
        return position(parts[0], symbols) // parts[1] % parts[2]
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return sum(position(part, symbols) * stride for part, stride in pairs)
