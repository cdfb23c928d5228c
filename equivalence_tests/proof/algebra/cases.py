"""Equality case by case: of the conditions in two values, the combinations that are possible.

Where a condition says that something is 0, it is put in; combinations that contradict one another,
`x > 1` and `x < 0`, need not be equal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flint import fmpq_mpoly

from equivalence_tests.proof.algebra.algebra import Algebra, CapacityExceeded
from equivalence_tests.proof.algebra.atoms import Rat
from equivalence_tests.proof.algebra.signs import Inequality
from equivalence_tests.proof.errors import Undecided

_MOST_CASES, _MOST_WHOLE = 300, 9


@dataclass(frozen=True)
class Region:
    """The conditions of a case."""

    rows: tuple[Inequality, ...] = ()
    zeros: tuple[fmpq_mpoly, ...] = ()


class Cases:
    """The cases of one comparison."""

    def __init__(self, algebra: Algebra):
        """Compares values of this algebra."""
        self.algebra, self._left = algebra, _MOST_CASES

    def equal(self, a: Rat, b: Rat) -> bool:
        """True if two values are equal in each case, where both are defined."""
        algebra = self.algebra
        # What is computed of values in a case assumes no more than they do.
        before = dict(algebra.assumptions), dict(algebra.denominators)
        try:
            return self._is_zero(algebra.add(a, algebra.neg(b)), Region())
        finally:
            algebra.assumptions, algebra.denominators = before

    def _is_zero(self, value: Rat, region: Region) -> bool:
        if value.num.is_zero():
            return True
        algebra, gen = self.algebra, self._condition(value)
        if gen is None:
            return self._vanishes(value, region)
        argument = algebra.atoms[gen].args[0].num
        for holds, row in _branches(algebra.atoms[gen].kind, argument):
            self._left -= 1
            if self._left < 0:
                return False
            here = algebra.make(value.num.subs({f"g{gen}": int(holds)}), value.den)
            there = region
            if row is None:
                here, there = self._with_zero(here, region, argument)
            else:
                there = Region((*region.rows, row), region.zeros)
            if here.num.is_zero() or self._is_empty(there):
                continue
            if not self._is_zero(here, there):
                return False
        return True

    def _condition(self, value: Rat) -> int | None:
        """The condition in a value with the fewest terms; None without any."""
        atoms = self.algebra.atoms
        gens = self.algebra.generators(value.num)
        gens = [gen for gen in gens if atoms[gen].is_condition]
        return min(gens, key=lambda gen: (len(atoms[gen].args[0].num), gen), default=None)

    def _with_zero(self, value: Rat, region: Region, zero: fmpq_mpoly) -> tuple[Rat, Region]:
        """A value and what holds, where a polynomial is 0: without an atom that it determines."""
        algebra = self.algebra
        unchanged = value, Region(region.rows, (*region.zeros, zero))
        if algebra.is_special(value):  # 0 times what is not defined is not 0
            return unchanged
        for gen, solution in self._solutions(zero):
            try:
                rows = [*region.rows, *algebra.limits_of(gen)]
                rows = tuple(self._put(row, gen, solution) for row in rows)
                zeros = tuple(self._put((poly, False), gen, solution)[0] for poly in region.zeros)
                return algebra.substitute(value, gen, solution), Region(rows, zeros)
            except CapacityExceeded:
                raise
            except Undecided:  # it divides by 0
                continue
        if value.den.gcd(zero).is_constant():  # else it is a multiple that is divided by it
            return algebra.make(value.num % zero, value.den), unchanged[1]
        return unchanged

    def _solutions(self, zero: fmpq_mpoly) -> Iterator[tuple[int, Rat]]:
        """Atoms of which a polynomial that is 0 says what they are, each with that value."""
        algebra = self.algebra
        for gen in algebra.generators(zero):
            rows = algebra.coefficients(zero, gen)
            if not (set(rows) <= {0, 1} and rows[1].is_constant()):
                continue
            rest = rows.get(0, algebra.ctx.constant(0))
            value = Rat(-rest / rows[1].leading_coefficient(), algebra.one)
            is_allowed = algebra.is_integer(value) or not algebra.atoms[gen].integer
            if is_allowed and not algebra.occurs(gen, value):
                yield gen, value

    def _put(self, row: Inequality, gen: int, value: Rat) -> Inequality:
        poly, strict = row
        num, den = self.algebra.substitute(Rat(poly, self.algebra.one), gen, value)
        return (num if den.is_constant() else num * den), strict

    def _is_empty(self, region: Region, *more: Inequality) -> bool:
        """True if what holds in a case is seen to be contradictory."""
        rows = [*region.rows, *more]
        return self.algebra.contradict(rows, region.zeros, self._signs(rows))

    def _signs(self, rows: Sequence[Inequality]) -> dict[int, bool]:
        """Atoms that a condition says are 0 or more, or if True, more than 0."""
        signs: dict[int, bool] = {}
        for poly, strict in rows:
            for gen in self.algebra.generators(poly)[:1]:
                lead = poly.leading_coefficient()
                if lead > 0 and poly == self.algebra.generator(gen) * lead:
                    signs[gen] = strict or signs.get(gen, False)
        return signs

    def _vanishes(self, value: Rat, region: Region) -> bool:
        """True if a value without conditions is 0 in a case, or the case is not possible."""
        if self._is_empty(region):
            return True
        if self.algebra.is_special(value):
            return False
        _, factors = value.num.factor()
        if any(self._is_forced(region, factor) for factor, _ in factors):
            return True
        zero = self._whole_number(value, region)
        return zero is not None and self._is_zero(*self._with_zero(value, region, zero))

    def _is_forced(self, region: Region, poly: fmpq_mpoly) -> bool:
        """True if a polynomial is seen to be 0 in a case."""
        return all(self._is_empty(region, (sign * poly, True)) for sign in (1, -1))

    def _whole_number(self, value: Rat, region: Region) -> fmpq_mpoly | None:
        """A floor in an exponent less the small number that it is in a case; None without any."""
        algebra = self.algebra
        powers = [algebra.atoms[gen] for gen in algebra.generators(value.num, value.den)]
        exponents = [atom.args[1] for atom in powers if atom.name == "pow"]
        for gen in algebra.atoms_of(*exponents):
            if algebra.atoms[gen].name == "floor":
                for number in range(_MOST_WHOLE):
                    zero = algebra.generator(gen) - number
                    if self._is_forced(region, zero):
                        return zero
        return None


def _branches(kind: str, argument: fmpq_mpoly) -> list[tuple[bool, Inequality | None]]:
    """The cases of a condition: whether it holds, and what its argument is; None for 0."""
    if kind == "positive":
        return [(True, (argument, True)), (False, (-argument, False))]
    return [(True, None), (False, (argument, True)), (False, (-argument, True))]
