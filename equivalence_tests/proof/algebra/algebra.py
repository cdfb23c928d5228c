"""The algebra of real numbers, with sums over indices.

`atoms` has what values are made of, `quotients` polynomials over atoms, `conditions` indicators,
`powers` roots; sums are here.
"""

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from flint import fmpq, fmpq_mpoly

from equivalence_tests.proof.algebra.atoms import Atom, Index, Rat
from equivalence_tests.proof.algebra.powers import Powers
from equivalence_tests.proof.algebra.quotients import CapacityExceeded as CapacityExceeded
from equivalence_tests.proof.algebra.signs import Inequality
from equivalence_tests.proof.errors import Undecided

Exponents = tuple[int, ...]  # of a monomial
Bounds = tuple[tuple[str, int], ...]  # the indices of a sum and their sizes
Names = Mapping[Any, Index]  # index, or its symbol -> the index that replaces it


class Algebra(Powers):
    """Atoms, and arithmetic with quotients of polynomials over them."""

    def total(self, body: Rat, bounds: Sequence[tuple[str, int]]) -> Rat:
        """The sum of a value over indices; factors without the indices are taken out of it."""
        if any(size == 0 for _, size in bounds):
            return self.number(0)
        if self._special and self.is_special(body):
            symbols = {symbol for symbol, _ in bounds}
            if self.free(body) & symbols:
                raise Undecided("a sum over what is not defined everywhere")
            return self.case_split([body], lambda args: self.total(args[0], bounds))
        return self._total(*self._by_digits(body, bounds))

    def _by_digits(
        self, body: Rat, bounds: Sequence[tuple[str, int]]
    ) -> tuple[Rat, list[tuple[str, int]]]:
        """A sum over an index that is read by its digits alone, as one over the digits."""
        result: list[tuple[str, int]] = []
        for symbol, size in bounds:
            occurrences: set[Index] = set()
            self._uses(body, symbol, occurrences)
            digits = sorted((i for i in occurrences if isinstance(i, tuple)), key=lambda i: -i[2])
            strides = [stride for _, _, stride, _ in digits]
            sizes = [high // low for high, low in itertools.pairwise((size, *strides))]
            fits = len(digits) == len(occurrences) > 1 and strides[-1] == 1
            # The first digit has what is left, which it says by the size of the whole index.
            fits = fits and [digit[3] for digit in digits] == [size, *sizes[1:]]
            fits = fits and math.prod(sizes) == size
            if not fits:
                result.append((symbol, size))
                continue
            names: dict[Index, str] = {digit: self.fresh() for digit in digits}
            body = self.rename(body, {**names, symbol: symbol})
            result += [
                (names[digit], digit_size) for digit, digit_size in zip(digits, sizes, strict=True)
            ]
        return body, result

    def _uses(self, value: Rat, symbol: str, occurrences: set[Index]) -> None:
        """Collects the indices that contain a symbol: the symbol, or its digits."""
        for gen in self.atoms_of(value):
            atom = self.atoms[gen]
            if symbol in atom.free:
                for index in atom.index:
                    _parts(index, symbol, occurrences)
                for arg in atom.args:
                    self._uses(arg, symbol, occurrences)

    def _total(self, body: Rat, bounds: list[tuple[str, int]]) -> Rat:
        symbols = {symbol for symbol, _ in bounds}
        body = self._rationalise(body, symbols)
        inside = {gen for gen in self.atoms_of(body) if self.atoms[gen].free & symbols}
        content = self.ctx.constant(0)
        for row in self._split(body.den, inside).values():
            content = row if content.is_zero() else content.gcd(row)
        rest = body.den // content
        lead = rest.leading_coefficient()
        rest, content = rest / lead, content * lead
        # What the denominator divides needs none, so that equal sums have equal parts.
        quotient, remainder = (self.ctx.constant(0), body.num)
        if not rest.is_constant():
            quotient, remainder = divmod(body.num, rest)
        result = self.number(0)
        for num, den in ((quotient, self.one), (remainder, rest)):
            for monomial, row in self._split(num, inside).items():
                front = self.make(row, content)
                term = self.make(self.ctx.from_dict({monomial: 1}), den)
                result = self.add(result, self.mul(front, self._sum_of_monomial(term, bounds)))
        return result

    def _split(self, poly: fmpq_mpoly, chosen: set[int]) -> dict[Exponents, fmpq_mpoly]:
        """A polynomial in some of its atoms: their exponents -> coefficient."""
        rows: dict[Exponents, dict[Exponents, fmpq]] = {}
        for monomial, coefficient in poly.to_dict().items():
            inside = tuple(e if i in chosen else 0 for i, e in enumerate(monomial))
            outside = tuple(0 if i in chosen else e for i, e in enumerate(monomial))
            rows.setdefault(inside, {})[outside] = coefficient
        return {inside: self.ctx.from_dict(row) for inside, row in rows.items()}

    def _rationalise(self, body: Rat, symbols: set[str]) -> Rat:
        """A quotient whose denominator has no square roots that depend on indices."""
        for _ in range(8):
            for gen in self.generators(body.den):
                atom = self.atoms[gen]
                if atom.kind == "root" and atom.order == 2 and atom.free & symbols:
                    break
            else:
                return body
            rows = self.coefficients(body.den, gen)
            even, odd = (rows.get(power, self.ctx.constant(0)) for power in (0, 1))
            other = even - odd * self.generator(gen)
            body = self.make(body.num * other, body.den * other)
        return body

    def _sum_of_monomial(self, term: Rat, bounds: list[tuple[str, int]]) -> Rat:
        """The sum of a monomial over a denominator: a product of sums that share no index."""
        result = self.number(1)
        free = self.free(term)
        for symbol, size in bounds:
            if symbol not in free:
                result = self.mul(result, self.number(size))
        bounds = [bound for bound in bounds if bound[0] in free]
        for factor, own_bounds in self._independent_factors(term, bounds):
            result = self.mul(result, self._sum_atom(*self._merge_sums(factor, own_bounds)))
        return result

    def _independent_factors(
        self, term: Rat, bounds: list[tuple[str, int]]
    ) -> list[tuple[Rat, list[tuple[str, int]]]]:
        """A product as factors that have no index in common, each with its indices."""
        symbols = {symbol for symbol, _ in bounds}
        parts: list[tuple[frozenset[str], Rat]] = []
        if not term.den.is_constant():
            below = Rat(self.one, term.den)
            parts.append((self.free(below) & symbols, below))
        degrees = term.num.degrees()
        for gen in self.generators(term.num):
            power = Rat(self.generator(gen) ** degrees[gen], self.one)
            parts.append((self.atoms[gen].free & symbols, power))
        joined: list[tuple[frozenset[str], Rat]] = []
        for names, part in parts:
            for other in [each for each in joined if each[0] & names]:
                joined.remove(other)
                names, part = names | other[0], self._mul(part, other[1])
            joined.append((names, part))
        return [(part, [b for b in bounds if b[0] in names]) for names, part in joined]

    def _merge_sums(
        self, term: Rat, bounds: list[tuple[str, int]]
    ) -> tuple[Rat, list[tuple[str, int]]]:
        """A sum of a sum as one sum over all their indices."""
        symbols = {symbol for symbol, _ in bounds}
        for gen in self.generators(term.num):
            atom = self.atoms[gen]
            if atom.kind == "sum" and atom.free & symbols and term.num.degrees()[gen] == 1:
                fresh = {name: self.fresh() for name, _ in atom.bound}
                inner = self.rename(atom.args[0], fresh)
                rest = self.make(self.coefficients(term.num, gen)[1], term.den)
                more = [(fresh[name], size) for name, size in atom.bound]
                return self._mul(rest, inner), bounds + more
        return term, bounds

    def _sum_atom(self, body: Rat, bounds: list[tuple[str, int]]) -> Rat:
        depth = max((self.atoms[gen].depth for gen in self.atoms_of(body)), default=0)
        best: tuple[tuple[list[int], tuple[str, ...]], Bounds, Rat] | None = None
        orders = itertools.permutations(bounds) if len(bounds) <= 4 else [tuple(bounds)]
        for order in orders:
            names = {name: f"b{depth}.{number}" for number, (name, _) in enumerate(order)}
            sizes = tuple((names[name], size) for name, size in order)
            canonical = self.rename(body, names)
            key = ([size for _, size in sizes], self.texts((canonical,)))
            if best is None or key < best[0]:
                best = (key, sizes, canonical)
        assert best is not None
        _, sizes, canonical = best
        lead = canonical.num.leading_coefficient()  # names may have changed which term leads
        canonical = Rat(canonical.num / lead, canonical.den)
        texts = self.texts((canonical,))
        free = self.free(canonical) - {name for name, _ in sizes}
        atom = Atom(
            "sum",
            "sum",
            (canonical,),
            bound=sizes,
            free=free,
            depth=depth + 1,
            nonneg=self.nonneg(canonical),
        )
        return self.mul(self.number(lead), self.atom(("sum", sizes, texts), atom))

    def fresh(self) -> str:
        """A symbol for an index that occurs nowhere else."""
        return f"u{next(self._fresh)}"

    def rename(self, value: Rat, names: Names) -> Rat:
        """A value with symbols of indices replaced."""
        gens = [gen for gen in self.atoms_of(value) if self.atoms[gen].free & names.keys()]
        return self._replace(value, {gen: self._rename_atom(gen, names) for gen in gens})

    def substitute(self, value: Rat, target: int, by: Rat) -> Rat:
        """A value with another one in the place of an atom, also within other atoms."""
        new: dict[int, Rat] = {}
        for gen in self.atoms_of(value):
            atom = self.atoms[gen]
            if gen == target:
                new[gen] = by
            elif self.occurs(target, *atom.args):
                args = tuple(self.substitute(arg, target, by) for arg in atom.args)
                sums = atom.kind == "sum"
                new[gen] = self.total(args[0], atom.bound) if sums else self._with_args(atom, args)
        return self._replace(value, new)

    def _of_maximum(self, gen: int, others: Collection[int]) -> list[Inequality]:
        """Inequalities between the maximum or minimum of an array and its entries."""
        result: list[Inequality] = []
        for one, other in [*((gen, each) for each in others), *((each, gen) for each in others)]:
            extreme, entry = self.atoms[one], self.atoms[other]
            sign = {"reduce_max": 1, "reduce_min": -1}.get(extreme.name.split(" ")[0])
            if sign is None or extreme.index or entry.kind != "leaf":
                continue
            names = {f"a{axis}": index for axis, index in enumerate(entry.index)}
            num, den = self.rename(extreme.args[0], names)
            if num == self.generator(other) and den == self.one:
                result.append((sign * (self.generator(one) - num), False))
        return result

    def _replace(self, value: Rat, new: Mapping[int, Rat]) -> Rat:
        """A value with others in the place of some atoms."""
        if not new:
            return value
        parts = []
        for poly in value:
            result = self.number(0)
            for monomial, coefficient in poly.to_dict().items():
                rest = tuple(0 if i in new else e for i, e in enumerate(monomial))
                term = Rat(self.ctx.from_dict({rest: coefficient}), self.one)
                for gen, atom in new.items():
                    term = self.mul(term, self.power(atom, monomial[gen]))
                result = self.add(result, term)
            parts.append(result)
        first, second = parts
        return self.make(first.num * second.den, first.den * second.num)

    def _rename_atom(self, gen: int, names: Names) -> Rat:
        atom = self.atoms[gen]
        index = tuple(_rename_index(item, names) for item in atom.index)
        if atom.kind == "leaf":
            return self.leaf(atom.name, index, integer=atom.integer, nonneg=atom.nonneg)
        if atom.kind == "index":
            return self.position(index[0])
        if atom.kind == "array":  # its arguments have indices of their own
            return self._with_args(atom, atom.args, index)
        args = tuple(self.rename(arg, names) for arg in atom.args)
        if atom.kind == "sum":
            free = self.free(args[0]) - {name for name, _ in atom.bound}
            new = Atom(**{**_fields(atom), "args": args, "free": free})
            return self.atom(("sum", atom.bound, self.texts(args)), new)
        return self._with_args(atom, args, index)

    def _with_args(
        self, atom: Atom, args: tuple[Rat, ...], index: tuple[Index, ...] | None = None
    ) -> Rat:
        """The function that an atom is, of other arguments."""
        constructor = _CONSTRUCTORS.get(atom.name if atom.kind == "function" else atom.kind)
        if constructor is not None:
            return constructor(self, *args, *[atom.order] * (atom.kind == "root"))

        def call(args: Sequence[Rat]) -> Rat:
            place = atom.index if index is None else index
            facts = {"nonneg": atom.nonneg, "integer": atom.integer}
            return self.call(atom.kind, atom.name, args, place, **facts)

        bound = {f"a{axis}" for axis in range(_MOST_AXES)} if atom.kind == "array" else set()
        return self.case_split(args, call, bound)


# What makes an atom of a kind, or of a function's name.
_CONSTRUCTORS: dict[str, Callable[..., Rat]] = {
    "root": Algebra.root,
    "positive": Algebra.positive,
    "zero": Algebra.zero,
    "floor": Algebra.floor,
    "pow": Algebra.to_the,
    "exp": Algebra.exp,
    "log": Algebra.log,
}
_MOST_AXES = 16


def _fields(atom: Atom) -> dict[str, Any]:
    return {name: getattr(atom, name) for name in atom.__dataclass_fields__}


def _rename_index(index: Index, names: Names) -> Index:
    if not isinstance(index, int) and index in names:
        return names[index]
    if isinstance(index, tuple):
        return (index[0], *(_rename_index(part, names) for part in index[1:]))
    return index


def _parts(index: Index, symbol: str, occurrences: set[Index]) -> None:
    """Collects where a symbol occurs in an index."""
    if index == symbol or (isinstance(index, tuple) and index[:2] == ("of", symbol)):
        occurrences.add(index)
    elif isinstance(index, tuple):
        for part in index[1:]:
            _parts(part, symbol, occurrences)
