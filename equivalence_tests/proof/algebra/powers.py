# pyright: strict
"""Roots, powers with any exponent, exponentials and logarithms."""

from flint import fmpq, fmpq_mpoly, fmpz

from equivalence_tests.proof.algebra.atoms import Atom, Rat
from equivalence_tests.proof.algebra.conditions import Conditions

_LARGEST_ROOT, _LARGEST_POWER = 12, 64
_MOST_FACTORS = 8  # of one exponential: a larger multiple stays in the exponent


class Powers(Conditions):
    """Quotients with roots and powers."""

    def root(self, value: Rat, order: int = 2) -> Rat:
        """A root; assumes that its radicand is not negative."""
        for prime in (2, 3, 5, 7):
            if order % prime == 0 and order != prime:
                return self.root(self.root(value, order // prime), prime)
        return self.case_split([value], lambda args: self._root(args[0], order))

    def _root(self, value: Rat, order: int) -> Rat:
        if value.num.is_zero():
            return self.number(0)
        self.assume(value, "is not negative")
        outside, inside = self.number(1), self.number(1)
        for poly, sign in ((value.num, 1), (value.den, -1)):
            lead, factors = poly.factor() if order > 2 else poly.factor_squarefree()
            out, radicand = _root_of_number(fmpq(lead), order)
            outside = self.mul(outside, self.number(out**sign))
            inside = self.mul(inside, self.number(radicand**sign))
            for factor, multiplicity in factors:
                base = Rat(factor, self.one)
                inner = self._smaller_root(factor, order)
                if inner is not None:  # the cube root of a square root is one's square root
                    swapped = self.root(self.root(inner.args[0], order), inner.order)
                    outside = self.mul(outside, self.power(swapped, sign * int(multiplicity)))
                    continue
                times, rest = divmod(int(multiplicity), order)
                if times:
                    taken = self._absolute(base) if order % 2 == 0 else base
                    outside = self.mul(outside, self.power(taken, sign * times))
                inside = self.mul(inside, self.power(base, sign * rest))
        number = self.constant(inside)
        if number == 1:
            return outside
        if number is None and order == 2 and (parts := self._root_of_parts(inside)) is not None:
            return self.mul(outside, parts)
        atom = self.call("root", f"root{order}", (inside,), order=order, nonneg=True)
        return self.mul(outside, atom)

    def _smaller_root(self, poly: fmpq_mpoly, order: int) -> Atom | None:
        """The root of a smaller order that a polynomial is; None of others."""
        gens = self.generators(poly)
        atom = self.atoms[gens[0]] if poly in map(self.generator, gens) else None
        return atom if atom and atom.kind == "root" and atom.order < order else None

    def _root_of_parts(self, value: Rat) -> Rat | None:
        """The square root of a quotient as the quotient of square roots; None if that is open."""
        (lead, _), (below, _) = value.num.factor_squarefree(), value.den.factor_squarefree()
        top, bottom, number = value.num / lead, value.den / below, fmpq(lead) / fmpq(below)
        if number < 0:
            if bottom.is_constant() or self._nonneg(-top):
                top = -top
            else:
                bottom = -bottom
            number = -number
        has_signs = bottom.is_constant() or self._nonneg(top) or self._nonneg(bottom)
        if not has_signs or (number == 1 and bottom == self.one):
            return None
        out, radicand = _root_of_number(number, 2)
        result = self.number(out)
        for part, power in ((Rat(bottom, self.one), -1), (Rat(top, self.one), 1)):
            if self.constant(part) is not None:
                continue
            self.assume(part, "is not negative")
            atom = self.call("root", "root2", (part,), order=2, nonneg=True)
            result = self._mul(result, atom if power > 0 else Rat(self.one, atom.num))
        if radicand != 1:
            number_of = (self.number(radicand),)
            result = self._mul(result, self.call("root", "root2", number_of, order=2, nonneg=True))
        return result

    def to_the(self, base: Rat, exponent: Rat) -> Rat:
        """A power with any exponent; assumes a base above 0 where that is not whole."""
        return self.case_split([base, exponent], lambda args: self._to_the(*args))

    def _to_the(self, base: Rat, exponent: Rat) -> Rat:
        number = self.constant(exponent)
        if number is not None:
            if number < 0:
                return self.div(self.number(1), self._to_the(base, self.number(-number)))
            if number.q == 1 and number.p <= _LARGEST_POWER:
                return self.power(base, int(number.p))
            if number.q <= _LARGEST_ROOT and number.p <= _LARGEST_POWER:
                return self.power(self.root(base, int(number.q)), int(number.p))
            return self._one_power(base, exponent)
        if (base_number := self.constant(base)) == 1:
            return base
        if base_number is not None and base_number.p == 1:  # powers of a half are those of 2
            return self._to_the(self.number(base_number.q), self.neg(exponent))
        if not exponent.den.is_constant():
            return self._one_power(base, exponent)
        result = self.number(1)
        for monomial, coefficient in exponent.num.to_dict().items():
            times, rest = coefficient, fmpq(1)
            if coefficient.q > 1 or abs(coefficient.p) > _LARGEST_POWER:
                times, rest = (1 if coefficient > 0 else -1), abs(coefficient)
            if not any(monomial):
                factor = base if rest == 1 else self._to_the(base, self.number(rest))
            else:
                part = Rat(self.ctx.from_dict({monomial: rest}), self.one)
                factor = self._one_power(base, part)
            result = self.mul(result, self.power(factor, int(times)))
        return result

    def _one_power(self, base: Rat, exponent: Rat) -> Rat:
        numbers = [*exponent.num.coeffs(), *exponent.den.coeffs()]
        integer = all(self.atoms[gen].integer for gen in self.atoms_of(exponent))
        if not integer or any(number.q > 1 for number in numbers):
            self.assume(base, "is not negative")
        return self.call("function", "pow", (base, exponent), nonneg=self.nonneg(base))

    def exp(self, value: Rat) -> Rat:
        """The exponential; where it is that of a sum, as a product."""
        return self.case_split([value], lambda args: self._exp(args[0]))

    def _exp(self, exponent: Rat) -> Rat:
        if not exponent.den.is_constant():
            return self._exp_of_term(exponent)
        result = self.number(1)
        for monomial, coefficient in exponent.num.to_dict().items():
            times = int(coefficient.p)
            if not any(monomial) or coefficient.q > 1 or abs(times) > _MOST_FACTORS:
                times = 1 if coefficient > 0 else -1
            term = Rat(self.ctx.from_dict({monomial: coefficient / times}), self.one)
            result = self.mul(result, self.power(self._exp_of_term(term), times))
        return result

    def _exp_of_term(self, term: Rat) -> Rat:
        for gen in self.generators(term.num):  # exp(x * log(y)) is y ** x
            atom = self.atoms[gen]
            rows = self.coefficients(term.num, gen)
            if (atom.kind, atom.name, set(rows)) == ("function", "log", {1}):
                return self.to_the(atom.args[0], Rat(rows[1], term.den))
        return self.call("function", "exp", [term], nonneg=True)

    def log(self, value: Rat) -> Rat:
        """The logarithm, of a product the sum of those of its factors that are above 0."""
        return self.case_split([value], lambda args: self._log(args[0]))

    def _log(self, value: Rat) -> Rat:
        result, rest = self.number(0), self.number(1)
        for poly, sign in ((value.num, 1), (value.den, -1)):
            number, factors = poly.factor()
            for factor, power in factors:
                times = self.number(sign * int(power))
                gens = self.generators(factor)
                atom = self.atoms[gens[0]] if factor in map(self.generator, gens) else None
                if atom is not None and (atom.kind, atom.name) == ("function", "exp"):
                    result = self.add(result, self.mul(times, atom.args[0]))
                elif self.above_zero(base := Rat(factor, self.one)):
                    result = self.add(result, self.mul(times, self._log_atom(base)))
                else:
                    rest = self.mul(rest, self.power(base, sign * int(power)))
            rest = self.mul(rest, self.number(fmpq(number) ** sign))
        number = fmpq(rest.num.leading_coefficient())
        if abs(number) != 1 and (self.constant(rest) is None or number > 0):
            rest = self.mul(rest, self.number(1 / abs(number)))
            size, sign = fmpq(abs(number)), 1
            if size.p == 1:  # of a half that of 2, negative
                size, sign = 1 / size, -1
            part = self.mul(self.number(sign), self._log_atom(self.number(size)))
            result = self.add(result, part)
        if self.constant(rest) == 1:
            return result
        self.assume(rest, "is more than 0")
        return self.add(result, self._log_atom(rest))

    def _log_atom(self, value: Rat) -> Rat:
        return self.call("function", "log", [value])


def _root_of_number(value: fmpq, order: int) -> tuple[fmpq, fmpq]:
    """The part of a number that comes out of a root, and the part that stays, a whole number."""
    sign = -1 if value < 0 else 1
    # n/d = n * d**(order-1) / d**order
    outside, inside = fmpq(1, value.q), fmpz(abs(value.p)) * fmpz(value.q) ** (order - 1)
    if inside.height_bits() > 4000:
        return fmpq(1), value
    radicand = fmpz(1)
    for prime, power in inside.factor(trial_limit=10000) if _large(inside) else inside.factor():
        times, rest = divmod(int(power), order)
        outside = outside * fmpq(prime**times)
        radicand = radicand * prime**rest
    return outside, fmpq(sign * radicand)


def _large(number: fmpz) -> bool:
    return number.height_bits() > 128
