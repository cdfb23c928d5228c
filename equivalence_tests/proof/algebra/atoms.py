"""Atoms, the indices at which they are read, quotients of polynomials over them, and their text.

An atom is what is no polynomial: an entry of an input, a root, a power with a symbol in its
exponent, a sum over an index, a function. An atom's arguments are quotients themselves.
"""

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flint import fmpq, fmpq_mpoly


class Rat(NamedTuple):
    """A quotient of polynomials without common factor, the denominator with leading term 1."""

    num: fmpq_mpoly
    den: fmpq_mpoly


# An index: a number, a symbol, or (as `("of", symbol, stride, size)`) a digit of a symbol; several
# of these make the tuple at which an array is read.
Index = int | str | tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Atom:
    """A value that is no polynomial: an input, a root, a sum, a condition, a function."""

    kind: str
    name: str
    args: tuple[Rat, ...] = ()
    index: tuple[Index, ...] = ()
    bound: tuple[tuple[str, int], ...] = ()
    free: frozenset[str] = frozenset()
    depth: int = 0
    nonneg: bool = False
    integer: bool = False
    order: int = 0

    @property
    def is_condition(self) -> bool:
        """True of an indicator: 1 where its condition holds, else 0."""
        return self.kind in ("positive", "zero")


def symbols_of(index: tuple[Index, ...]) -> frozenset[str]:
    """The symbols that occur in indices."""
    symbols: set[str] = set()
    for item in index:
        if isinstance(item, str):
            symbols.add(item)
        elif isinstance(item, tuple):
            symbols |= symbols_of(tuple(part for part in item[1:] if isinstance(part, str | tuple)))
    return frozenset(symbols)


def format_quotient(atoms: Sequence[Atom], value: Rat) -> str:
    """A value as a formula."""
    num, den = (_polynomial(atoms, poly) for poly in _readable(*value))
    if den == "1":
        return num
    wide = [f"({text})" if " " in text else text for text in (num, den)]
    if "*" in den and not wide[1].startswith("("):
        wide[1] = f"({den})"
    return " / ".join(wide)


def _readable(num: fmpq_mpoly, den: fmpq_mpoly) -> Rat:
    """The same quotient with whole numbers, and more positive terms than negative ones below."""
    scale = 1
    for coefficient in (*num.coeffs(), *den.coeffs()):
        scale = scale * int(coefficient.q) // math.gcd(scale, int(coefficient.q))
    if not den.is_constant():
        numbers = [int(c * scale) for c in (*num.coeffs(), *den.coeffs())]
        scale = fmpq(scale, math.gcd(*numbers))
        last = list(den.to_dict().values())[-1]
        scale = -scale if last < 0 else scale
        return Rat(num * scale, den * scale)
    return Rat(num, den)


# An atom's text is asked for wherever the atom occurs, and in all that is made of it.
_texts: weakref.WeakKeyDictionary[Atom, str] = weakref.WeakKeyDictionary()


def format_atom(atoms: Sequence[Atom], number: int) -> str:
    """An atom as a formula."""
    atom = atoms[number]
    if atom not in _texts:
        _texts[atom] = _atom_text(atoms, atom)
    return _texts[atom]


def _atom_text(atoms: Sequence[Atom], atom: Atom) -> str:
    args = [format_quotient(atoms, arg) for arg in atom.args]
    if atom.kind == "leaf":
        return f"{atom.name}{_at(atom.index)}"
    if atom.kind == "special":
        return atom.name
    if atom.kind == "index":
        return _index(atom.index[0])
    if atom.kind == "root":
        return f"sqrt({args[0]})" if atom.order == 2 else f"root{atom.order}({args[0]})"
    if atom.is_condition:
        return f"[{args[0]} {'> 0' if atom.kind == 'positive' else '= 0'}]"
    if atom.kind == "sum":
        bound = ", ".join(f"{name} < {size}" for name, size in atom.bound)
        return f"sum({args[0]} for {bound})"
    if atom.name == "pow":
        return f"({args[0]})^({args[1]})"
    if atom.name.startswith("as "):  # a conversion, which may wrap round
        return f"{atom.name.split(' ')[1]}({args[0]})"
    return f"{atom.name.split(' ')[0]}({', '.join(args)}){_at(atom.index)}"


def _number(value: fmpq) -> str:
    """A rational number, with many zeros as a power of ten."""
    digits = str(value)
    significant = digits.rstrip("0")
    zeros = len(digits) - len(significant)
    return f"{significant}e{zeros}" if zeros > 5 and "/" not in digits else digits


def _at(index: tuple[Index, ...]) -> str:
    return f"[{', '.join(map(_index, index))}]" if index else ""


def _index(index: Index) -> str:
    if isinstance(index, tuple):
        kind, *parts = index
        if kind == "of":
            symbol, stride, size = parts
            return f"{_index(symbol)} // {stride} % {size}"
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return " + ".join(
            f"{stride}*{_index(part)}" if stride != 1 else _index(part) for part, stride in pairs
        )
    return str(index)


def _polynomial(atoms: Sequence[Atom], poly: fmpq_mpoly) -> str:
    """A sum of products; conditions stand last in both, by their texts, whichever came first."""
    terms: list[tuple[list[str], str, str]] = []
    for monomial, coefficient in poly.to_dict().items():
        factors: list[str] = []
        conditions: list[str] = []
        for number, power in enumerate(monomial):
            if power:
                base = format_atom(atoms, number)
                base = base if power == 1 else f"{base}^{power}"
                (conditions if atoms[number].is_condition else factors).append(base)
        size = abs(coefficient)
        if size != 1 or not factors + conditions:
            factors.insert(0, _number(size))
        conditions.sort()
        product = "*".join(factors + conditions)
        terms.append((conditions, "-" if coefficient < 0 else "+", product))
    if not terms:
        return "0"
    terms.sort(key=lambda term: term[0])
    text = " ".join(f"{sign} {product}" for _, sign, product in terms)
    return text[2:] if text.startswith("+ ") else "-" + text[2:]
