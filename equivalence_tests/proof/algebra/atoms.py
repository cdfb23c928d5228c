"""Atoms, the indices at which they are read, and quotients of polynomials over them.

An atom is what is no polynomial: an entry of an input, a root, a power with a symbol in its
exponent, a sum over an index, a function. An atom's arguments are quotients themselves.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from flint import fmpq_mpoly


class Rat(NamedTuple):
    """A quotient of polynomials without common factor, the denominator with leading term 1."""

    num: fmpq_mpoly
    den: fmpq_mpoly


# An index: a number, a symbol, or (as `("of", symbol, stride, size)`) a digit of a symbol; several
# of these make the tuple at which an array is read.
Index = int | str | tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Atom:
    """A value that is no polynomial: an input, a root, a sum, a condition, a function.

    Attributes:
      kind: `leaf`, `index`, `root`, `positive`, `zero`, `sum`, `function`, `array`, `special`.
      name: of the input or the function.
      args: arguments.
      index: where an array is read.
      bound: of a sum, its indices and their sizes.
      free: symbols of indices that occur and are not bound.
      depth: how many sums are nested in it.
      nonneg: whether it is known to be 0 or more.
      integer: whether it is known to be an integer.
      order: of a root.
    """

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


def symbols_of(index: tuple[Index, ...]) -> frozenset[str]:
    """The symbols that occur in indices."""
    symbols: set[str] = set()
    for item in index:
        if isinstance(item, str):
            symbols.add(item)
        elif isinstance(item, tuple):
            symbols |= symbols_of(tuple(part for part in item[1:] if isinstance(part, str | tuple)))
    return frozenset(symbols)
