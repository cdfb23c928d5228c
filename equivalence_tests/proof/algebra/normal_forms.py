# pyright: strict
"""Normal forms of a certificate, evaluated in exact arithmetic. Knows nothing of the prover."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flint import arb, fmpq

# A term is a rational number as text, and pairs of an atom and its power. An index: `atoms.Index`.
Index = int | str | Sequence[Any]
Term = tuple[str, Sequence[tuple[int, int]]]
Tables = Mapping[str, Any]  # of a certificate


class NotEvaluable(Exception):
    """A form that holds a function of which nothing is known."""


def evaluate(
    tables: Tables,
    which: int,
    inputs: Mapping[str, np.ndarray],
    values: Mapping[str, int],
) -> arb:
    """The value of one of a certificate's normal forms.

    Args:
      tables: a case of a certificate, which has `atoms` and `quotients`.
      which: number of the quotient.
      inputs: name -> array of balls or whole numbers.
      values: symbol of an index -> its value.

    Raises:
      NotEvaluable: there is a function in it that is not known.
    """
    return _Evaluation(tables, inputs).quotient(which, dict(values))


# What stands beyond the end of a part of a row: conditions take it away, so that any number does,
# and an odd one shows where they do not.
_BEYOND = arb(fmpq(37, 16))


class _Evaluation:
    def __init__(self, tables: Tables, inputs: Mapping[str, np.ndarray]):
        self.atoms, self.quotients, self.inputs = tables["atoms"], tables["quotients"], inputs

    def quotient(self, which: int, values: dict[str, int]) -> arb:
        num, den = (self.polynomial(poly, values) for poly in self.quotients[which])
        return num if den == 1 else num / den

    def polynomial(self, poly: Sequence[Term], values: dict[str, int]) -> arb:
        total = arb(0)
        for coefficient, factors in poly:
            parts = [self.atom(number, values) ** power for number, power in factors]
            # A condition that does not hold takes away even what is not defined then.
            if any(part == 0 for part in parts):
                continue
            term = arb(fmpq(*map(int, coefficient.split("/"))))
            for part in parts:
                term = term * part
            total = total + term
        return total

    def atom(self, number: int, values: dict[str, int]) -> arb:
        atom = self.atoms[number]
        kind = atom["kind"]
        if kind == "leaf":
            array = self.inputs[atom["name"]]
            at = tuple(position(item, values) for item in atom.get("index", []))
            if any(not 0 <= i < size for i, size in zip(at, array.shape, strict=True)):
                return _BEYOND
            value = array[at]
            return value if isinstance(value, arb) else arb(int(value))
        if kind == "index":
            return arb(position(atom["index"][0], values))
        if kind == "sum":
            names = [name for name, _ in atom["bound"]]
            ranges = [range(size) for _, size in atom["bound"]]
            total = arb(0)
            for numbers in itertools.product(*ranges):
                here = {**values, **dict(zip(names, numbers, strict=True))}
                total = total + self.quotient(atom["args"][0], here)
            return total
        if kind not in ("root", "positive", "zero", "function"):
            raise NotEvaluable(atom["name"])
        args = [self.quotient(arg, values) for arg in atom["args"]]
        if kind == "root":
            return args[0].sqrt() if atom["order"] == 2 else args[0].root(atom["order"])
        if kind in ("positive", "zero"):
            if args[0].contains(0) and not args[0].is_exact():
                raise NotEvaluable(f"{args[0]} against 0")
            return arb(int(args[0] > 0 if kind == "positive" else args[0] == 0))
        return self.function(atom["name"].split(" ")[0], args)

    @staticmethod
    def function(name: str, args: list[arb]) -> arb:
        if name == "pow":
            base, exponent = args
            power = exponent.unique_fmpz() if exponent.is_exact() else None
            return base ** int(power) if power is not None else (base.log() * exponent).exp()
        if name not in _FUNCTIONS:
            raise NotEvaluable(name)
        return _FUNCTIONS[name](args[0])


def position(index: Index, values: Mapping[str, int]) -> int:
    """The number that an index is where its symbols have values."""
    if isinstance(index, int):
        return index
    if isinstance(index, str):
        return values[index]
    kind, *parts = index
    if kind == "of":
        return position(parts[0], values) // parts[1] % parts[2]
    return sum(
        position(part, values) * stride for part, stride in zip(*[iter(parts)] * 2, strict=True)
    )


_FUNCTIONS: dict[str, Callable[[arb], arb]] = {
    "exp": lambda x: x.exp(),
    "log": lambda x: x.log(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tan": lambda x: x.tan(),
    "tanh": lambda x: x.tanh(),
    "floor": lambda x: x.floor(),
    "ceil": lambda x: x.ceil(),
}
