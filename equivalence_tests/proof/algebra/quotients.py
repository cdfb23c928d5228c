"""Real numbers in normal form: quotients of polynomials over atoms, computed by FLINT.

An atom, what is no polynomial, has quotients as arguments, so two atoms are one where their
arguments are equal.

Conditions are numbers as well: an *indicator* is 1 where its condition holds, else 0, so a
selection is `c * a + (1 - c) * b`, and what is selected multiplies, adds and cancels like anything
else. Functions of something selected are selected functions, and no denominator has an indicator.

Relations are applied wherever a polynomial is made: a root's power is its radicand, an indicator
is its own square, and excludes that of the opposite condition.
"""

import functools
import itertools
import re
from collections.abc import Callable, Hashable, Sequence, Set
from typing import Any

from flint import Ordering, fmpq, fmpq_mpoly, fmpq_mpoly_ctx, fmpz

from equivalence_tests.proof.algebra.atoms import Atom, Index, Rat, format_quotient, symbols_of
from equivalence_tests.proof.errors import Undecided

MOST_TERMS = 4000
UNDEFINED = "undefined"
Substitution = dict[str | int, Any]  # name of a generator -> its value, as FLINT has it


class CapacityExceeded(Undecided):
    """There are more atoms than the algebra has room for: start again with a larger one."""


class Quotients:
    """Atoms, and arithmetic with quotients of polynomials over them."""

    def __init__(self, capacity: int, work: int):
        """Makes an algebra."""
        self.work = work
        self.atoms: list[Atom] = []
        self.by_key: dict[Hashable, int] = {}
        self._fresh = itertools.count()
        self._special: set[int] = set()
        self._related: list[int] = []  # roots and conditions, which have relations
        self._labels: dict[int, int] = {}
        # What holds in the case that is looked at: polynomials of 0 or more; True: of more than 0.
        self.in_case: list[tuple[fmpq_mpoly, bool]] = []
        self._capacity = capacity
        self.ctx = fmpq_mpoly_ctx.get([f"g{i}" for i in range(capacity)], Ordering.lex)
        self.one = self.ctx.constant(1)

    # Polynomials

    def generator(self, number: int) -> fmpq_mpoly:
        """An atom as a polynomial."""
        return self.ctx.gen(number)

    def generators(self, *polys: fmpq_mpoly) -> list[int]:
        """The atoms that occur, the newest first."""
        gens = set()
        for poly in polys:
            degrees = poly.degrees()
            gens |= {i for i, degree in enumerate(degrees[: len(self.atoms)]) if degree > 0}
        return sorted(gens, reverse=True)

    def atoms_of(self, *values: Rat) -> list[int]:
        """The atoms that occur in values, the newest first."""
        return self.generators(*(poly for value in values for poly in value))

    def free(self, *values: Rat) -> frozenset[str]:
        """The symbols of indices that occur in values."""
        return frozenset().union(*(self.atoms[i].free for i in self.atoms_of(*values)))

    def occurs(self, target: int, *values: Rat) -> bool:
        """True if an atom is a part of values, perhaps of the arguments of other atoms."""
        return any(
            gen == target or self.occurs(target, *self.atoms[gen].args)
            for gen in self.atoms_of(*values)
        )

    def coefficients(self, poly: fmpq_mpoly, gen: int) -> dict[int, fmpq_mpoly]:
        """A polynomial as one in a single atom: exponent -> coefficient."""
        self._count_work(len(poly))
        rows, factorial = dict[int, fmpq_mpoly](), 1
        without: Substitution = {f"g{gen}": 0}
        for power in range(int(poly.degrees()[gen]) + 1):
            if power:  # by Taylor's series, which FLINT has sooner than its terms are sorted
                poly, factorial = poly.derivative(gen), factorial * power
            row = poly.subs(without)
            if not row.is_zero():
                rows[power] = row / factorial
        return rows

    def _apply_relations(self, poly: fmpq_mpoly) -> tuple[fmpq_mpoly, fmpq_mpoly]:
        """Numerator and denominator of a polynomial after all relations."""
        den = self.one
        while True:
            if len(poly) > MOST_TERMS:
                raise Undecided(f"a normal form has more than {MOST_TERMS} terms")
            if not self._related:
                return poly, den
            degrees = poly.degrees()
            gens = [gen for gen in reversed(self._related) if degrees[gen]]
            conditions = sum(self.atoms[gen].is_condition for gen in gens)
            for gen in gens:
                atom = self.atoms[gen]
                if atom.kind == "root":
                    if degrees[gen] >= atom.order:
                        poly, factor = self._root_out(poly, gen)
                        den = den * factor
                        break
                elif (degrees[gen] > 1 or conditions > 1) and (
                    new := self._apply_indicator(poly, gen)
                ):
                    poly = new[0]
                    break
            else:
                return poly, den

    def _root_out(self, poly: fmpq_mpoly, gen: int) -> tuple[fmpq_mpoly, fmpq_mpoly]:
        atom = self.atoms[gen]
        radicand, order = atom.args[0], atom.order
        rows = self.coefficients(poly, gen)
        most = max(rows) // order
        total = self.ctx.constant(0)
        for power, row in rows.items():
            times = power // order
            term = row * radicand.num**times * radicand.den ** (most - times)
            total = total + term * self.generator(gen) ** (power % order)
        return total, radicand.den**most

    def _apply_indicator(self, poly: fmpq_mpoly, gen: int) -> tuple[fmpq_mpoly] | None:
        """A polynomial after the relations of one indicator; None if they change nothing."""
        atom = self.atoms[gen]
        rows = self.coefficients(poly, gen)
        on = sum((row for power, row in rows.items() if power), self.ctx.constant(0))
        changed = any(power > 1 for power in rows)
        for other in self.generators(on):
            if other == gen or not self.atoms[other].is_condition:
                continue
            if (implied := self._follows(atom, self.atoms[other])) is not None:
                parts = self.coefficients(on, other)
                remaining = [row for power, row in parts.items() if implied or not power]
                on, changed = sum(remaining, self.ctx.constant(0)), True
        if not changed:
            return None
        return (rows.get(0, self.ctx.constant(0)) + on * self.generator(gen),)

    def _follows(self, first: Atom, second: Atom) -> bool | None:
        """True if one condition holds where another does; None if that is open."""
        (one, kind), (other, wanted) = self._relation(first), self._relation(second)
        difference = other - one
        if not difference.is_constant():
            return None
        by = fmpq(0) if difference.is_zero() else difference.leading_coefficient()
        if kind == 0:
            return wanted == (by > 0) - (by < 0)
        if by * kind < 0:
            return None
        return wanted == kind

    def _relation(self, atom: Atom) -> tuple[fmpq_mpoly, int]:
        """A condition as a polynomial with leading term 1 and the required sign."""
        argument = atom.args[0].num
        lead = argument.leading_coefficient()
        sign = 0 if atom.kind == "zero" else 1 if lead > 0 else -1
        return argument / lead, sign

    # Quotients

    def make(self, num: fmpq_mpoly, den: fmpq_mpoly) -> Rat:
        """The normal form of a quotient."""
        self._count_work(8 + len(num) + len(den))
        num, over = self._apply_relations(num)
        den, under = self._apply_relations(den)
        if den.is_zero():
            raise Undecided("a denominator is zero for every input")
        num = self._with_equal_numbers(num, den)
        if num.is_zero():
            return Rat(num, self.one)
        num, den = num * under, den * over
        common = num.gcd(den)
        if not common.is_constant():
            num, den = num // common, den // common
        lead = den.leading_coefficient()
        if lead != 1:
            num, den = num / lead, den / lead
        return Rat(num, den)

    def _with_equal_numbers(self, num: fmpq_mpoly, den: fmpq_mpoly) -> fmpq_mpoly:
        """A numerator with the numbers that conditions say atoms are: 3 times `[x = 3]` for x."""
        zeros = [gen for gen in reversed(self._related) if self.atoms[gen].kind == "zero"]
        for gen in zeros:
            degrees = num.degrees()
            if not degrees[gen]:
                continue
            argument = self.atoms[gen].args[0].num
            (inner, *others) = self.generators(argument)
            if others or not degrees[inner] or argument.total_degree() > 1:
                continue
            if self.occurs(inner, Rat(den, self.one)):
                continue
            rows = self.coefficients(argument, inner)
            number = -rows.get(0, self.ctx.constant(0)) / rows[1].leading_coefficient()
            parts = self.coefficients(num, gen)
            if 1 not in parts:  # gone with another condition
                continue
            value = fmpq(0) if number.is_zero() else number.leading_coefficient()
            names: Substitution = {f"g{inner}": value}
            num = parts.get(0, self.ctx.constant(0)) + parts[1].subs(names) * self.generator(gen)
        return num

    def _count_work(self, terms: int) -> None:
        self.work -= terms
        if self.work < 0:
            raise Undecided("the normal form takes too long")

    def number(self, value: fmpq | fmpz | int) -> Rat:
        """A rational number."""
        return Rat(self.ctx.constant(fmpq(value)), self.one)

    def constant(self, value: Rat) -> fmpq | None:
        """The number that a value is; None if it depends on anything."""
        if not (value.num.is_constant() and value.den.is_constant()):
            return None
        return fmpq(0) if value.num.is_zero() else value.num.leading_coefficient()

    def add(self, a: Rat, b: Rat) -> Rat:
        """The sum."""
        if self._special and self.is_special(a, b):
            return self.case_split([a, b], lambda args: self.add(*args))
        return self._add(a, b)

    def _add(self, a: Rat, b: Rat) -> Rat:
        if a.den == b.den:
            return self.make(a.num + b.num, a.den)
        return self.make(a.num * b.den + b.num * a.den, a.den * b.den)

    def neg(self, a: Rat) -> Rat:
        """The negative."""
        return Rat(-a.num, a.den)

    def sub(self, a: Rat, b: Rat) -> Rat:
        """The difference."""
        return self.add(a, self.neg(b))

    def mul(self, a: Rat, b: Rat) -> Rat:
        """The product."""
        if self._special and self.is_special(a, b):
            return self.case_split([a, b], lambda args: self.mul(*args))
        return self._mul(a, b)

    def _mul(self, a: Rat, b: Rat) -> Rat:
        return self.make(a.num * b.num, a.den * b.den)

    def is_zero(self, a: Rat) -> bool:
        """True if a value is zero for all inputs."""
        return self._apply_relations(a.num)[0].is_zero()

    def equal(self, a: Rat, b: Rat) -> bool:
        """True if two values have one normal form."""
        return self._add(a, self.neg(b)).num.is_zero()

    def text(self, value: Rat) -> str:
        """A value as a formula; which element of an array it is about is left out."""
        return re.sub(r"\b(u\d+|i\d+)\b", "_", format_quotient(self.atoms, value))

    # Atoms

    def atom(self, key: Hashable, atom: Atom) -> Rat:
        """An atom as a value: the one that there is, or a new one."""
        number = self.by_key.get(key)
        if number is None:
            number = self._same(atom)
        if number is None:
            number = len(self.atoms)
            if number == self._capacity:
                raise CapacityExceeded(f"a normal form has more than {number} atoms")
            self.atoms.append(atom)
            if atom.kind == "root" or atom.is_condition:
                self._related.append(number)
        self.by_key[key] = number
        return Rat(self.generator(number), self.one)

    def _same(self, atom: Atom) -> int | None:
        """An atom of the same kind with equal arguments."""
        if not atom.args:
            return None
        for number, other in enumerate(self.atoms):
            signature = (other.kind, other.name, other.index, other.bound, other.order)
            if signature != (atom.kind, atom.name, atom.index, atom.bound, atom.order):
                continue
            if other.free == atom.free and len(other.args) == len(atom.args):
                pairs = zip(atom.args, other.args, strict=True)
                if all(self.equal(a, b) for a, b in pairs):
                    return number
        return None

    def special(self, name: str) -> Rat:
        """A value that is no number: an infinity, or a result of one or of 1 / 0."""
        value = self.atom(("special", name), Atom("special", name))
        self._special |= set(self.atoms_of(value))
        return value

    def _make_undefined(self) -> Rat:
        """Returns a value of which nothing is known, as 1 / 0: it equals nothing."""
        return self.special(f"{UNDEFINED} {next(self._fresh)}")

    def is_special(self, *values: Rat) -> bool:
        """True if something in values is no number."""
        return any(value.num.degrees()[gen] > 0 for value in values for gen in self._special)

    def holds_special(self, *values: Rat) -> bool:
        """True if something in values, or in what functions of theirs are of, is no number."""
        atoms = [self.atoms[gen] for gen in self.atoms_of(*values)]
        return any(atom.kind == "special" or self.holds_special(*atom.args) for atom in atoms)

    def leaf(
        self, name: str, index: Sequence[Index], *, integer: bool = False, nonneg: bool = False
    ) -> Rat:
        """An entry of an input."""
        index = tuple(index)
        free = symbols_of(index)
        atom = Atom("leaf", name, index=index, free=free, integer=integer, nonneg=nonneg)
        return self.atom(("leaf", name, index), atom)

    def position(self, index: Index) -> Rat:
        """An index as a number."""
        if isinstance(index, int):
            return self.number(index)
        if isinstance(index, tuple) and index[0] == "join":
            pairs = zip(index[1::2], index[2::2], strict=True)
            parts = [self.mul(self.position(part), self.number(size)) for part, size in pairs]
            return functools.reduce(self.add, parts)
        free = symbols_of((index,))
        atom = Atom("index", "index", index=(index,), free=free, integer=True, nonneg=True)
        return self.atom(("index", index), atom)

    def call(
        self, kind: str, name: str, args: Sequence[Rat], index: Sequence[Index] = (), **facts: Any
    ) -> Rat:
        """A function of values, of which only `facts` are known."""
        args = tuple(args)
        free = symbols_of(tuple(index))
        if kind != "array":  # whose arguments have indices of their own
            free = free | self.free(*args)
        depth = max((self.atoms[i].depth for i in self.atoms_of(*args)), default=0)
        atom = Atom(kind, name, args, tuple(index), free=free, depth=depth, **facts)
        order = facts.get("order", 0)
        return self.atom((kind, name, order, tuple(index), self.texts(args)), atom)

    def texts(self, values: Sequence[Rat]) -> tuple[str, ...]:
        """Values as keys."""
        return tuple(f"{v.num}/{v.den}" for v in values)

    def case_split(
        self,
        args: Sequence[Rat],
        function: Callable[[list[Rat]], Rat],
        bound: Set[str] = frozenset(),
    ) -> Rat:
        """A function of values, case by case of their indicators."""
        for gen in self.atoms_of(*args):
            atom = self.atoms[gen]
            if atom.is_condition and not atom.free & bound:
                break
        else:
            if self._special and self.is_special(*args):
                shared = {self.by_key.get(("special", UNDEFINED))}
                only = self._special & set(self.atoms_of(*args)) == shared
                return self.special(UNDEFINED) if only else self._make_undefined()
            return function(list(args))
        cases = []
        others = {other: self.atoms[other] for other in self.atoms_of(*args) if other != gen}
        follow = {
            n: self._follows(atom, other) for n, other in others.items() if other.is_condition
        }
        known = {n: int(holds) for n, holds in follow.items() if holds is not None}
        for number, values in ((1, {gen: 1, **known}), (0, {gen: 0})):
            names: dict[str | int, int] = {f"g{n}": value for n, value in values.items()}
            here = [self.make(a.num.subs(names), a.den) for a in args]
            outside = self.in_case
            self.in_case = [*outside, *_holds_where(atom, bool(number))]
            try:
                cases.append(self.case_split(here, function, bound))
            finally:
                self.in_case = outside
        indicator = Rat(self.generator(gen), self.one)
        return self.choose(indicator, cases[0], cases[1])

    def choose(self, indicator: Rat, then: Rat, otherwise: Rat) -> Rat:
        """One value where an indicator is 1, and another where it is 0."""
        # Also of values that are no numbers: what is not selected does no harm.
        return self._add(otherwise, self._mul(indicator, self._add(then, self.neg(otherwise))))

    def complement(self, indicator: Rat) -> Rat:
        """1 where the other is 0, and the other way round."""
        return self.sub(self.number(1), indicator)


def _holds_where(atom: Atom, holds: bool) -> list[tuple[fmpq_mpoly, bool]]:
    """Polynomials of 0 or more, or if True of more, where a condition holds, or does not."""
    argument = atom.args[0].num
    if atom.kind == "zero":
        return [(argument, False), (-argument, False)] if holds else []
    return [(argument, True) if holds else (-argument, False)]
