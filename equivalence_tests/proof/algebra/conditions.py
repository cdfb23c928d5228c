"""Conditions as numbers that are 1 or 0, absolute values and maxima."""

import re
import zlib
from collections.abc import Sequence

from flint import fmpq, fmpq_mpoly

from equivalence_tests.proof.algebra.atoms import Atom, Index, Rat, format_atom
from equivalence_tests.proof.algebra.quotients import UNDEFINED
from equivalence_tests.proof.algebra.signs import Signs

_MOST_FACTORS, _MOST_TERMS_OF_PRODUCT = 4, 50  # of a product whose sign is taken apart


class Conditions(Signs):
    """Quotients with indicators of conditions."""

    def _inverse(self, b: Rat) -> Rat:
        if b.num.is_zero() or not self.guarded or self.text(b) not in self.guarded:
            return super()._inverse(b)
        return self.choose(self._zero(b), self.special(UNDEFINED), self.make(b.den, b.num))

    def guards(self) -> frozenset[str]:
        """The denominators that a program compares with 0."""
        count = len(self.atoms)
        return frozenset(
            text
            for text, value in self.denominators.items()
            if all(gen < count for gen in self.atoms_of(self.zero(value)))
        )

    def positive(self, value: Rat) -> Rat:
        """The indicator of a value above 0."""
        return self.case_split([value], lambda args: self._positive(args[0]))

    def _positive(self, value: Rat) -> Rat:
        number = self.constant(value)
        if number is not None:
            return self.number(int(number > 0))
        if self.above_zero(value):
            self._assume_seen(value)
            return self.number(1)
        if self.nonneg(value):
            return self.complement(self._zero(value))
        if self.nonneg(self.neg(value)):
            return self.number(0)
        if self._nonneg(value.den):
            num, below = value.num, self.one
        else:
            num, below = self._apply_relations(value.num * value.den)
        while not below.is_constant():  # a radicand's denominator, which may be negative
            num, below = self._apply_relations(num * below)
        if (squared := self._without_root(num)) is not None:
            return self._positive(squared)
        if (signs := self._positive_product(num)) is not None:
            return signs
        lead = self._lead(num)
        num = num / abs(lead)
        if lead < 0:
            other = self.add(self._positive(self.neg(value)), self._zero(value))
            return self.complement(other)
        return self._indicator("positive", num)

    def _positive_product(self, poly: fmpq_mpoly) -> Rat | None:
        """The indicator of a product above 0, by the signs of its factors; None for one factor."""
        if len(poly) > _MOST_TERMS_OF_PRODUCT:
            return None
        number, factors = poly.factor()
        alone = len(factors) == 1 and int(factors[0][1]) == 1
        if alone or len(factors) > _MOST_FACTORS:
            return None
        above, below = self.number(int(number > 0)), self.number(int(number < 0))
        for factor, power in factors:
            value = Rat(factor, self.one)
            if int(power) % 2 == 0:
                there = self.complement(self._zero(value))
                above, below = self._mul(above, there), self._mul(below, there)
            else:
                plus, minus = self._positive(value), self._positive(self.neg(value))
                above, below = (
                    self._add(self._mul(above, plus), self._mul(below, minus)),
                    self._add(self._mul(above, minus), self._mul(below, plus)),
                )
        return above

    def floor(self, value: Rat) -> Rat:
        """The largest whole number that is not above a value."""
        return self.case_split([value], lambda args: self._floor(args[0]))

    def _floor(self, value: Rat) -> Rat:
        if self.is_integer(value):
            return value
        if (number := self.constant(value)) is not None:
            return self.number(number.floor())
        integer_part = self._whole_part(value)
        if not integer_part.num.is_zero():
            return self.add(integer_part, self.floor(self.sub(value, integer_part)))
        if self._lead(value.num) < 0:  # of x and -x one floor is enough
            other = self.neg(value)
            below = self._floor(other)
            exact = self.zero(self.sub(other, below))
            return self.sub(exact, self.add(below, self.number(1)))
        return self.call("function", "floor", (value,), integer=True)

    def _whole_part(self, value: Rat) -> Rat:
        """The terms of a sum that are whole numbers: `floor(x + n)` is `floor(x) + n`."""
        total = self.ctx.constant(0)
        terms = (value.num / value.den.leading_coefficient()).to_dict()
        for monomial, number in terms.items() if value.den.is_constant() else ():
            count = int(number) if any(monomial) else number.floor()
            part = self.ctx.from_dict({monomial: fmpq(count)})
            if self.is_integer(Rat(part, self.one)):
                total = total + part
        return Rat(total, self.one)

    def is_integer(self, value: Rat) -> bool:
        """True if a value is known to be a whole number."""
        numbers = [*value.num.coeffs(), *value.den.coeffs()]
        integer = all(self.atoms[gen].integer for gen in self.atoms_of(value))
        return integer and value.den.is_constant() and all(number.q == 1 for number in numbers)

    def _assume_seen(self, value: Rat) -> None:
        """Says that rounding does not make a power or an exponential 0: `0.9 ** n` is in time."""
        names = {self.atoms[gen].name for gen in self.generators(value.num)}
        if (0,) * self._capacity not in value.num.to_dict() and names & {"pow", "exp"}:
            self.assume(value, "is not rounded to 0")

    def _without_root(self, poly: fmpq_mpoly) -> Rat | None:
        """A value with the sign of a difference with a square root, without the root."""
        for gen in self.generators(poly):
            atom = self.atoms[gen]
            if atom.kind != "root" or atom.order != 2:
                continue
            rows = self.coefficients(poly, gen)
            rest, factor = rows.get(0, self.ctx.constant(0)), rows[1]
            for sign in (1, -1):
                if self._nonneg(sign * factor) and self._nonneg(-sign * rest):
                    squares = [Rat(each * each, self.one) for each in (factor, rest)]
                    difference = self._add(
                        self._mul(squares[0], atom.args[0]), self.neg(squares[1])
                    )
                    return difference if sign > 0 else self.neg(difference)
        return None

    def _lead(self, poly: fmpq_mpoly) -> fmpq:
        """A coefficient whose sign distinguishes a polynomial from its negative."""

        def key(term: tuple[Sequence[int], fmpq]) -> tuple[object, ...]:
            factors = [(self.label(gen), power) for gen, power in enumerate(term[0]) if power]
            return sorted(factors), term[0]

        return max(poly.to_dict().items(), key=key)[1]

    def label(self, gen: int) -> int:
        """A number for an atom that does not depend on the names of indices."""
        if gen not in self._labels:
            text = re.sub(r"\b(u\d+|b\d+\.\d+)\b", "#", format_atom(self.atoms, gen))
            self._labels[gen] = zlib.crc32(text.encode())
        return self._labels[gen]

    def zero(self, value: Rat) -> Rat:
        """The indicator of a value equal to 0."""
        return self.case_split([value], lambda args: self._zero(args[0]))

    def _zero(self, value: Rat) -> Rat:
        number = self.constant(value)
        if number is not None:
            return self.number(int(number == 0))
        num = value.num
        if any(self.is_limited(sign * num, True) for sign in (1, -1)):
            self._assume_seen(value)
            return self.number(0)
        if self._has_no_negative_term(num) or self._has_no_negative_term(-num):
            result = self.number(1)
            terms = num.to_dict()
            for monomial in terms:
                none = self.number(1)
                for gen, power in enumerate(monomial):
                    if power:
                        none = self.mul(none, self.complement(self._atom_is_zero(gen)))
                result = self.mul(result, self.complement(none))
            return result
        if (squared := self._without_root(num)) is not None:
            return self._zero(squared)
        _, factors = num.factor()
        none = self.number(1)
        for factor, _ in factors:
            gens = self.generators(factor)
            if len(gens) == 1 and factor == self.generator(gens[0]):
                indicator = self._atom_is_zero(gens[0])
            else:
                indicator = self._indicator("zero", factor / factor.leading_coefficient())
            none = self.mul(none, self.complement(indicator))
        return self.complement(none)

    def _atom_is_zero(self, gen: int) -> Rat:
        atom = self.atoms[gen]
        if atom.kind == "root":
            return self.zero(atom.args[0])
        if atom.kind == "function" and atom.name == "exp":
            return self.number(0)
        return self._indicator("zero", self.generator(gen))

    def _indicator(self, kind: str, num: fmpq_mpoly) -> Rat:
        value = Rat(num, self.one)
        gens = self.atoms_of(value)
        atom = Atom(
            kind,
            kind,
            (value,),
            free=self.free(value),
            depth=max((self.atoms[i].depth for i in gens), default=0),
            nonneg=True,
            integer=True,
        )
        return self.atom((kind, str(num)), atom)

    def compared_positions(self, value: Rat) -> set[Index]:
        """The indices whose numbers conditions in a value compare."""
        atoms = [self.atoms[gen] for gen in self.atoms_of(value)]
        tests = [atom.args[0] for atom in atoms if atom.is_condition]
        compared = [self.atoms[gen] for gen in self.atoms_of(*tests)]
        return {index for atom in compared if atom.kind == "index" for index in atom.index}

    def absolute(self, value: Rat) -> Rat:
        """The absolute value."""
        return self.case_split([value], lambda args: self._absolute(args[0]))

    def _absolute(self, value: Rat) -> Rat:
        if self.nonneg(value):
            return value
        if self.nonneg(self.neg(value)):
            return self.neg(value)
        if self._lead(value.num) < 0:
            value = self.neg(value)
        sign = self.sub(self.mul(self.number(2), self._positive(value)), self.number(1))
        return self.mul(value, sign)

    def greatest(self, a: Rat, b: Rat) -> Rat:
        """The larger of two values."""
        half = self.number(fmpq(1, 2))
        total = self.add(self.add(a, b), self.absolute(self.sub(a, b)))
        return self.mul(half, total)

    def least(self, a: Rat, b: Rat) -> Rat:
        """The smaller of two values."""
        return self.neg(self.greatest(self.neg(a), self.neg(b)))
