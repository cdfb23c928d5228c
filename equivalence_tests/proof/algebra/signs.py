"""The signs of values, known or assumed; division, which assumes.

Beside sums of what is never negative it is found by linear programming, of atoms with limits: a
floor is at most its argument, and more than that less 1.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from flint import fmpq, fmpq_mpoly

from equivalence_tests.proof.algebra.atoms import Rat
from equivalence_tests.proof.algebra.inequalities import Monomial, Terms, contradict
from equivalence_tests.proof.algebra.quotients import Quotients

Inequality = tuple[fmpq_mpoly, bool]  # a polynomial that is 0 or more; True: that is more than 0


class Signs(Quotients):
    """Quotients with signs."""

    def __init__(
        self, capacity: int = 40, work: int = 400_000, guarded: frozenset[str] = frozenset()
    ):
        """Makes an algebra."""
        super().__init__(capacity, work)
        self.guarded = guarded
        self.denominators: dict[str, Rat] = {}
        self.assumptions: dict[str, None] = {}
        self._limited: dict[tuple[str, bool], bool] = {}

    def div(self, a: Rat, b: Rat) -> Rat:
        """The quotient; assumes that the denominator is not zero."""
        inverse = self.case_split([b], lambda args: self._inverse(args[0]))
        return self.mul(a, inverse)

    def _inverse(self, b: Rat) -> Rat:
        if b.num.is_zero():
            return self._make_undefined()
        self.assume(b, "is not 0")
        return self.make(b.den, b.num)

    def power(self, a: Rat, exponent: int) -> Rat:
        """A power with a whole exponent."""
        if exponent < 0:
            return self.div(self.number(1), self.power(a, -exponent))
        result = self.number(1)
        for _ in range(exponent):
            result = self.mul(result, a)
        return result

    def assume(self, value: Rat, what: str) -> None:
        """Records an assumption, unless it holds; where it cannot, that the case is another one."""
        holds = self._holds(value, what)
        if holds:
            return
        if holds is False and self.in_case:
            self.assumptions[_shorten(self._text_of_other_cases())] = None
            return
        if what == "is more than 0" and self._is_above(value, strict=False):
            what = "is not 0"
        if what == "is not 0":
            self.denominators[self.text(value)] = value
            if value.num.leading_coefficient() < 0:
                value = self.neg(value)
        self.assumptions[f"{_shorten(self.text(value))} {what}"] = None

    def _holds(self, value: Rat, what: str) -> bool | None:
        """Whether something is seen to hold in the case that is looked at; None if that is open."""
        less = self.neg(value)
        if what == "is not 0":
            if self._is_above(value, strict=True) or self._is_above(less, strict=True):
                return True
            is_zero = self._is_above(value, strict=False) and self._is_above(less, strict=False)
            return False if is_zero else None
        if what not in ("is more than 0", "is not negative"):
            return None
        strict = what == "is more than 0"
        if self._is_above(value, strict=strict):
            return True
        return False if self._is_above(less, strict=not strict) else None

    def _is_above(self, value: Rat, *, strict: bool) -> bool:
        """True if a value is seen to be 0 or more in the case that is looked at; strict: more."""
        if self.above_zero(value) if strict else self.nonneg(value):
            return True
        if not self.in_case or not value.den.is_constant():
            return False
        poly = value.num / value.den.leading_coefficient()
        return self.contradict([(-poly, not strict), *self.in_case])

    def _text_of_other_cases(self) -> str:
        return " or ".join(
            f"{self.text(Rat(-poly, self.one))} {'is not negative' if strict else 'is more than 0'}"
            for poly, strict in self.in_case
        )

    def nonneg(self, value: Rat) -> bool:
        """True if a value is known to be 0 or more, wherever it is defined."""
        return all(self._nonneg(poly) for poly in value)

    def _nonneg(self, poly: fmpq_mpoly) -> bool:
        return self._has_no_negative_term(poly) or self.is_limited(poly, False)

    def _has_no_negative_term(self, poly: fmpq_mpoly) -> bool:
        return all(
            coefficient > 0
            and all(
                power % 2 == 0 or self.atoms[gen].nonneg
                for gen, power in enumerate(monomial)
                if power
            )
            for monomial, coefficient in poly.to_dict().items()
        )

    def above_zero(self, value: Rat) -> bool:
        """True if a value is known to be more than 0."""
        if not self._nonneg(value.den):
            return False
        constant = value.num.to_dict().get((0,) * self._capacity, 0)
        above = constant > 0 and self._has_no_negative_term(value.num)
        return above or self.is_limited(value.num, True)

    def is_limited(self, poly: fmpq_mpoly, strict: bool) -> bool:
        """True if a polynomial is 0 or more, or more than 0, by what limits its atoms."""
        gens = self.generators(poly)
        if poly.total_degree() > 1 or not any(self.limits_of(gen) for gen in gens):
            return False
        key = str(poly), strict
        if key not in self._limited:
            self._limited[key] = self.contradict([(-poly, not strict)])
        return self._limited[key]

    def contradict(
        self,
        rows: Sequence[Inequality],
        zeros: Sequence[fmpq_mpoly] = (),
        signs: Mapping[int, bool] = {},
    ) -> bool:
        """True if inequalities and equations are seen not to hold together."""
        table = self._eliminate_equations(self._with_limits(rows, zeros, signs), zeros)
        if table is None:
            return True
        terms = [self._sharpen(*row) for row in table]
        monomials = {monomial for row, _ in terms for monomial in row if any(monomial)}
        for monomial in monomials:
            powers = [(gen, power) for gen, power in enumerate(monomial) if power]
            known = {gen: signs.get(gen, self._sign_of(gen)) for gen, _ in powers}
            if all(known[gen] is not None or power % 2 == 0 for gen, power in powers):
                terms.append(({monomial: fmpq(1)}, all(known[gen] is True for gen, _ in powers)))
        self._count_work(len(terms) * len(monomials))
        return contradict(terms)

    def _with_limits(
        self, rows: Sequence[Inequality], zeros: Sequence[fmpq_mpoly], signs: Mapping[int, bool]
    ) -> list[Inequality]:
        """Adds the inequalities that hold of their atoms for all arguments."""
        result, seen = list(rows), set[int]()
        waiting = [*(poly for poly, _ in rows), *zeros]
        while waiting:
            for gen in set(self.generators(waiting.pop())) - seen:
                limits = [*self.limits_of(gen), *self._of_maximum(gen, seen)]
                seen.add(gen)
                sign = signs.get(gen, self._sign_of(gen))
                result += [*limits, *[(self.generator(gen), sign)] * (sign is not None)]
                waiting += [poly for poly, _ in limits]
        return result

    def _of_maximum(self, gen: int, others: Collection[int]) -> list[Inequality]:
        """Inequalities of an atom and others, where one is the largest of many; of an algebra."""
        raise NotImplementedError

    def _eliminate_equations(
        self, rows: list[Inequality], zeros: Sequence[fmpq_mpoly]
    ) -> list[Inequality] | None:
        """Inequalities in which equations are put in; None where these have no solution."""
        waiting = list(zeros)
        while waiting:
            zero = waiting.pop()
            if zero.is_zero():
                continue
            terms, constant = self._in_whole_numbers(zero) or (zero.to_dict(), fmpq(0))
            if zero.is_constant() or constant.q > 1:
                return None
            ones = [1, -1]
            is_integral = self._in_whole_numbers(zero) is not None
            gen = next(
                (
                    monomial.index(1)
                    for monomial, number in terms.items()
                    if sum(monomial) == 1 and (number in ones or not is_integral)
                    if zero.degrees()[monomial.index(1)] == 1
                ),
                None,
            )
            if gen is None or not self.coefficients(zero, gen)[1].is_constant():
                rows = [*rows, (zero, False), (-zero, False)]
                continue
            parts = self.coefficients(zero, gen)
            value = -parts.get(0, self.ctx.constant(0)) / parts[1].leading_coefficient()
            rows = [(self._put(poly, gen, value), strict) for poly, strict in rows]
            waiting = [self._put(poly, gen, value) for poly in waiting]
        return rows

    def _put(self, poly: fmpq_mpoly, gen: int, value: fmpq_mpoly) -> fmpq_mpoly:
        """A polynomial with another one in the place of an atom, but not within other atoms."""
        rows = self.coefficients(poly, gen)
        return sum((row * value**power for power, row in rows.items()), self.ctx.constant(0))

    def _sign_of(self, gen: int) -> bool | None:
        """True of an atom that is more than 0, False of one that is 0 or more, else None."""
        atom = self.atoms[gen]
        base = self.constant(atom.args[0]) if atom.kind == "function" and atom.args else None
        if atom.name == "exp" or (atom.name == "pow" and base is not None and base > 0):
            return True
        return False if atom.nonneg else None

    def limits_of(self, gen: int) -> list[Inequality]:
        """Inequalities of an atom that hold for all arguments: of floors and some powers."""
        atom, here = self.atoms[gen], self.generator(gen)
        if atom.kind != "function" or atom.name not in ("floor", "pow"):
            return []
        first = atom.args[0]
        if atom.name == "floor":
            if not first.den.is_constant():
                return []
            rest = first.num / first.den.leading_coefficient() - here
            return [(rest, False), (1 - rest, True)]
        base = self.constant(first)
        if base is None or base < 0 or not self.nonneg(atom.args[1]):
            return []
        return [(1 - here if base <= 1 else here - 1, False)]

    def _in_whole_numbers(self, poly: fmpq_mpoly) -> tuple[dict[Monomial, fmpq], fmpq] | None:
        """Terms without a common factor, and the constant; None unless all atoms are integers."""
        if not all(self.atoms[gen].integer for gen in self.generators(poly)):
            return None
        terms = poly.to_dict()
        constant = terms.pop((0,) * self._capacity, fmpq(0))
        if not terms:
            return None
        below = math.lcm(*(int(number.q) for number in terms.values()))
        scale = fmpq(below, math.gcd(*(int(number * below) for number in terms.values())))
        return {monomial: number * scale for monomial, number in terms.items()}, constant * scale

    def _sharpen(self, poly: fmpq_mpoly, strict: bool) -> tuple[Terms, bool]:
        """An inequality, of whole numbers the sharpest: `2 * n > 3` is `n >= 2`."""
        parts = self._in_whole_numbers(poly)
        if parts is None:
            return poly.to_dict(), strict
        terms, constant = parts
        least = (-constant).floor() + 1 if strict else (-constant).ceil()
        return {**terms, (0,) * self._capacity: fmpq(-least)}, False


def _shorten(text: str) -> str:
    return text if len(text) <= 300 else text[:300] + " ..."
