"""Real numbers in normal form: quotients of polynomials over atoms, computed by FLINT.

An atom is what is no polynomial: an entry of an input, a root, a power with a symbol in its
exponent, a sum over an index, a function. An atom's arguments are quotients themselves, so two
atoms are one where their arguments are equal.

Conditions are numbers as well: an *indicator* is 1 where its condition holds, else 0, so a
selection is `c * a + (1 - c) * b`, and what is selected multiplies, adds and cancels like anything
else. Functions of something selected are selected functions, and no denominator has an indicator.

Relations are applied wherever a polynomial is made: a root's power is its radicand, an indicator
is its own square, and excludes that of the opposite condition.
"""

import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flint import Ordering, fmpq, fmpq_mpoly, fmpq_mpoly_ctx, fmpz

from equivalence_tests.proof.errors import Undecided

MOST_TERMS = 4000
UNDEFINED = "undefined"
_LARGEST_ROOT, _LARGEST_POWER = 12, 64


class Rat(NamedTuple):
    """A quotient of polynomials without common factor, the denominator with leading term 1."""

    num: fmpq_mpoly
    den: fmpq_mpoly


# An index: a number, a symbol, or (as `("of", symbol, stride, size)`) a digit of a symbol; several
# of these make the tuple at which an array is read.
Index = Any


@dataclass(frozen=True, eq=False)
class Atom:
    """What is no polynomial.

    Attributes:
      kind: `leaf`, `index`, `root`, `positive`, `zero`, `sum`, `function`, `array`, `special`.
      name: of the input or the function.
      args: arguments.
      index: where an array is read.
      bound: of a sum, its indices and their sizes.
      free: symbols of indices that occur and are not bound.
      depth: how many sums are nested in it.
      nonneg: whether it is known to be 0 or more.
      whole: whether it is known to be an integer.
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
    whole: bool = False
    order: int = 0


class Full(Undecided):
    """There are more atoms than the algebra has room for: begin anew with a larger one."""


class Algebra:
    """Atoms, and arithmetic with quotients of polynomials over them."""

    def __init__(self, capacity: int = 40, work: int = 400_000):
        """Makes an algebra.

        Args:
          capacity: the most atoms; with more, `Full` is raised.
          work: the most terms that are handled; with more, `Undecided` is raised.
        """
        self.work = work
        self.atoms: list[Atom] = []
        self.by_key: dict[Any, int] = {}
        self.assumptions: dict[str, None] = {}
        self._fresh = itertools.count()
        self._special: set[int] = set()
        self._labels: dict[int, int] = {}
        self._capacity = capacity
        self.ctx = fmpq_mpoly_ctx.get([f"g{i}" for i in range(capacity)], Ordering.lex)
        self.one = self.ctx.constant(1)

    # Polynomials

    def gen(self, number: int) -> fmpq_mpoly:
        """An atom as a polynomial."""
        return self.ctx.gen(number)

    def used(self, *polys: fmpq_mpoly) -> list[int]:
        """The atoms that occur, the newest first."""
        found = set()
        for poly in polys:
            degrees = poly.degrees()
            found |= {i for i, degree in enumerate(degrees[: len(self.atoms)]) if degree > 0}
        return sorted(found, reverse=True)

    def atoms_of(self, *values: Rat) -> list[int]:
        """The atoms that occur in values, the newest first."""
        return self.used(*(poly for value in values for poly in value))

    def free(self, *values: Rat) -> frozenset[str]:
        """The symbols of indices that occur in values."""
        return frozenset().union(*(self.atoms[i].free for i in self.atoms_of(*values)))

    def coefficients(self, poly: fmpq_mpoly, gen: int) -> dict[int, fmpq_mpoly]:
        """A polynomial as one in a single atom: exponent -> coefficient."""
        self._worked(len(poly))
        rows: dict[int, dict[Any, fmpq]] = {}
        for monomial, coefficient in poly.to_dict().items():
            rest = (*monomial[:gen], 0, *monomial[gen + 1 :])
            rows.setdefault(monomial[gen], {})[rest] = coefficient
        return {power: self.ctx.from_dict(row) for power, row in rows.items()}

    def _reduced(self, poly: fmpq_mpoly) -> tuple[fmpq_mpoly, fmpq_mpoly]:
        """Numerator and denominator of a polynomial after all relations."""
        poly, den = poly, self.one
        while True:
            if len(poly) > MOST_TERMS:
                raise Undecided(f"a normal form has more than {MOST_TERMS} terms")
            for gen in self.used(poly):
                atom = self.atoms[gen]
                if atom.kind == "root" and poly.degrees()[gen] >= atom.order:
                    poly, factor = self._root_out(poly, gen)
                    den = den * factor
                    break
                if atom.kind in ("positive", "zero") and (new := self._indicated(poly, gen)):
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
            total = total + term * self.gen(gen) ** (power % order)
        return total, radicand.den**most

    def _indicated(self, poly: fmpq_mpoly, gen: int) -> tuple[fmpq_mpoly] | None:
        """A polynomial after the relations of one indicator; None if they change nothing."""
        atom = self.atoms[gen]
        rows = self.coefficients(poly, gen)
        on = sum((row for power, row in rows.items() if power), self.ctx.constant(0))
        changed = any(power > 1 for power in rows)
        argument = atom.args[0].num
        if atom.kind == "zero":
            # Where it is 1, its argument is 0. The argument's own relations stay out of it.
            rest = on % argument if not on.is_zero() and not argument.is_constant() else on
            if rest != on:
                on, changed = rest, True
        opposite = self.by_key.get(
            ("zero" if atom.kind == "positive" else "positive", str(argument))
        )
        if opposite is not None and on.degrees()[opposite] > 0:
            on, changed = self.coefficients(on, opposite).get(0, self.ctx.constant(0)), True
        if not changed:
            return None
        return (rows.get(0, self.ctx.constant(0)) + on * self.gen(gen),)

    # Quotients

    def make(self, num: fmpq_mpoly, den: fmpq_mpoly) -> Rat:
        """The normal form of a quotient."""
        self._worked(8 + len(num) + len(den))
        num, over = self._reduced(num)
        den, under = self._reduced(den)
        if den.is_zero():
            raise Undecided("a denominator is zero, whatever the input")
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

    def _worked(self, terms: int) -> None:
        self.work -= terms
        if self.work < 0:
            raise Undecided("the normal form takes too long")

    def number(self, value: Any) -> Rat:
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
            return self.selected([a, b], lambda args: self.add(*args))
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
            return self.selected([a, b], lambda args: self.mul(*args))
        return self._mul(a, b)

    def _mul(self, a: Rat, b: Rat) -> Rat:
        return self.make(a.num * b.num, a.den * b.den)

    def div(self, a: Rat, b: Rat) -> Rat:
        """The quotient; assumes that the denominator is not zero."""
        inverse = self.selected([b], lambda args: self._inverse(args[0]))
        return self.mul(a, inverse)

    def _inverse(self, b: Rat) -> Rat:
        if b.num.is_zero():
            return self.special(UNDEFINED)
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

    def is_zero(self, a: Rat) -> bool:
        """Whether a value is zero for all inputs."""
        return self._reduced(a.num)[0].is_zero()

    def equal(self, a: Rat, b: Rat) -> bool:
        """Whether two values are equal for all inputs for which both are defined."""
        return self._reduced(a.num * b.den - b.num * a.den)[0].is_zero()

    def assume(self, value: Rat, what: str) -> None:
        """Notes what has to hold, unless it is clear that it does."""
        if what == "is not 0" and (self.constant(value) is not None or self.above_zero(value)):
            return
        if what == "is not negative" and self.nonneg(value):
            return
        from equivalence_tests.proof.text import shown

        text = shown(self, value)
        self.assumptions[f"{text if len(text) <= 300 else text[:300] + ' ...'} {what}"] = None

    # Signs

    def nonneg(self, value: Rat) -> bool:
        """Whether a value is known to be 0 or more, wherever it is defined."""
        return all(self._nonneg(poly) for poly in value)

    def _nonneg(self, poly: fmpq_mpoly) -> bool:
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
        """Whether a value is known to be more than 0."""
        constant = value.num.to_dict().get((0,) * self._capacity, 0)
        return self.nonneg(value) and constant > 0

    # Atoms

    def atom(self, key: Any, atom: Atom) -> Rat:
        """An atom as a value: the one that there is, or a new one."""
        number = self.by_key.get(key)
        if number is None:
            number = self._same(atom)
        if number is None:
            number = len(self.atoms)
            if number == self._capacity:
                raise Full(f"a normal form has more than {number} atoms")
            self.atoms.append(atom)
        self.by_key[key] = number
        return Rat(self.gen(number), self.one)

    def _same(self, atom: Atom) -> int | None:
        """An atom of the same kind with equal arguments."""
        if not atom.args:
            return None
        for number, other in enumerate(self.atoms):
            alike = (other.kind, other.name, other.index, other.bound, other.order)
            if alike != (atom.kind, atom.name, atom.index, atom.bound, atom.order):
                continue
            if other.free == atom.free and len(other.args) == len(atom.args):
                pairs = zip(atom.args, other.args, strict=True)
                if all(self.equal(a, b) for a, b in pairs):
                    return number
        return None

    def special(self, name: str) -> Rat:
        """A value that is no number: an infinity, or what was computed of one or of 1 / 0.

        Whatever is computed of it is undefined, and of something undefined nothing is known, not
        even that 0 times it is 0; it goes where it is not selected.
        """
        value = self.atom(("special", name), Atom("special", name))
        self._special |= set(self.atoms_of(value))
        return value

    def is_special(self, *values: Rat) -> bool:
        """Whether something in values is no number."""
        return any(value.num.degrees()[gen] > 0 for value in values for gen in self._special)

    def leaf(self, name: str, index: Sequence[Index], *, whole: bool = False) -> Rat:
        """An entry of an input."""
        index = tuple(index)
        free = _symbols(index)
        atom = Atom("leaf", name, index=index, free=free, whole=whole)
        return self.atom(("leaf", name, index), atom)

    def position(self, index: Index) -> Rat:
        """An index as a number."""
        if isinstance(index, int):
            return self.number(index)
        atom = Atom("index", "index", index=(index,), free=_symbols((index,)), nonneg=True)
        return self.atom(("index", index), atom)

    def call(
        self, kind: str, name: str, args: Sequence[Rat], index: Sequence[Index] = (), **known: Any
    ) -> Rat:
        """A function of values, of which nothing else is known than `known` says."""
        args = tuple(args)
        free = _symbols(tuple(index))
        if kind != "array":  # whose arguments have indices of their own
            free = free | self.free(*args)
        depth = max((self.atoms[i].depth for i in self.atoms_of(*args)), default=0)
        atom = Atom(kind, name, args, tuple(index), free=free, depth=depth, **known)
        order = known.get("order", 0)
        return self.atom((kind, name, order, tuple(index), self.texts(args)), atom)

    def texts(self, values: Sequence[Rat]) -> tuple[str, ...]:
        """Values as keys."""
        return tuple(f"{v.num}/{v.den}" for v in values)

    def selected(self, args: Sequence[Rat], function: Callable[[list[Rat]], Rat]) -> Rat:
        """A function of values, taken apart into the cases of their indicators."""
        for gen in self.atoms_of(*args):
            if self.atoms[gen].kind in ("positive", "zero"):
                break
        else:
            if self._special and self.is_special(*args):
                return self.special(UNDEFINED)
            return function(list(args))
        cases = []
        for number in (1, 0):
            name = f"g{gen}"
            here = [self.make(a.num.subs({name: number}), a.den) for a in args]
            cases.append(self.selected(here, function))
        indicator = Rat(self.gen(gen), self.one)
        return self.choose(indicator, cases[0], cases[1])

    def choose(self, indicator: Rat, then: Rat, otherwise: Rat) -> Rat:
        """One value where an indicator is 1, and another where it is 0."""
        # Also of values that are no numbers: what is not selected does no harm.
        return self._add(otherwise, self._mul(indicator, self._add(then, self.neg(otherwise))))

    def complement(self, indicator: Rat) -> Rat:
        """1 where the other is 0, and the other way round."""
        return self.sub(self.number(1), indicator)

    # Conditions

    def positive(self, value: Rat) -> Rat:
        """The indicator of a value's being more than 0."""
        return self.selected([value], lambda args: self._positive(args[0]))

    def _positive(self, value: Rat) -> Rat:
        number = self.constant(value)
        if number is not None:
            return self.number(int(number > 0))
        if self.above_zero(value):
            return self.number(1)
        if self.nonneg(value):
            return self.complement(self._zero(value))
        if self.nonneg(self.neg(value)):
            return self.number(0)
        num = self._reduced(value.num * value.den)[0]
        lead = self._lead(num)
        num = num / abs(lead)
        if lead < 0:
            other = self.add(self._positive(self.neg(value)), self._zero(value))
            return self.complement(other)
        return self._indicator("positive", num)

    def _lead(self, poly: fmpq_mpoly) -> fmpq:
        """A coefficient by which a polynomial and its negative are told apart.

        It does not depend on what indices are called, nor on which atom came first.
        """

        def key(term: tuple[Any, fmpq]) -> Any:
            factors = [(self.label(gen), power) for gen, power in enumerate(term[0]) if power]
            return sorted(factors), term[0]

        return max(poly.to_dict().items(), key=key)[1]

    def label(self, gen: int) -> int:
        """A number for an atom that does not depend on what indices are called."""
        if gen not in self._labels:
            from equivalence_tests.proof.text import shown_atom

            text = re.sub(r"\b(u\d+|b\d+\.\d+)\b", "#", shown_atom(self, gen))
            self._labels[gen] = zlib.crc32(text.encode())
        return self._labels[gen]

    def zero(self, value: Rat) -> Rat:
        """The indicator of a value's being 0."""
        return self.selected([value], lambda args: self._zero(args[0]))

    def _zero(self, value: Rat) -> Rat:
        number = self.constant(value)
        if number is not None:
            return self.number(int(number == 0))
        num = value.num
        if self._nonneg(num) or self._nonneg(-num):
            result = self.number(1)
            terms = num.to_dict()
            for monomial in terms:
                none = self.number(1)
                for gen, power in enumerate(monomial):
                    if power:
                        none = self.mul(none, self.complement(self._atom_is_zero(gen)))
                result = self.mul(result, self.complement(none))
            return result
        _, factors = num.factor()
        none = self.number(1)
        for factor, _ in factors:
            factor = factor
            gens = self.used(factor)
            if len(gens) == 1 and factor == self.gen(gens[0]):
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
        return self._indicator("zero", self.gen(gen))

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
            whole=True,
        )
        return self.atom((kind, str(num)), atom)

    def absolute(self, value: Rat) -> Rat:
        """The absolute value."""
        return self.selected([value], lambda args: self._absolute(args[0]))

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

    # Roots and powers

    def root(self, value: Rat, order: int = 2) -> Rat:
        """A root; assumes that its radicand is not negative."""
        return self.selected([value], lambda args: self._root(args[0], order))

    def _root(self, value: Rat, order: int) -> Rat:
        if value.num.is_zero():
            return self.number(0)
        self.assume(value, "is not negative")
        outside, inside = self.number(1), self.number(1)
        for poly, sign in ((value.num, 1), (value.den, -1)):
            lead, factors = poly.factor_squarefree()
            out, kept = _root_of_number(fmpq(lead), order)
            outside = self.mul(outside, self.number(out**sign))
            inside = self.mul(inside, self.number(kept**sign))
            for factor, multiplicity in factors:
                base = Rat(factor, self.one)
                whole, rest = divmod(int(multiplicity), order)
                if whole:
                    taken = self._absolute(base) if order % 2 == 0 else base
                    outside = self.mul(outside, self.power(taken, sign * whole))
                inside = self.mul(inside, self.power(base, sign * rest))
        number = self.constant(inside)
        if number == 1:
            return outside
        atom = self.call("root", f"root{order}", (inside,), order=order, nonneg=True)
        return self.mul(outside, atom)

    def to_the(self, base: Rat, exponent: Rat) -> Rat:
        """A power with any exponent; assumes a base above 0 where that is not whole."""
        return self.selected([base, exponent], lambda args: self._to_the(*args))

    def _to_the(self, base: Rat, exponent: Rat) -> Rat:
        number = self.constant(exponent)
        if number is not None:
            if number < 0:
                return self.div(self.number(1), self._to_the(base, self.number(-number)))
            if number.q == 1 and number.p <= _LARGEST_POWER:
                return self.power(base, int(number.p))
            if number.q <= _LARGEST_ROOT and number.p <= _LARGEST_POWER:
                return self.power(self._root(base, int(number.q)), int(number.p))
            return self._one_power(base, exponent)
        if self.constant(base) == 1:
            return base
        if not exponent.den.is_constant():
            return self._one_power(base, exponent)
        result = self.number(1)
        for monomial, coefficient in exponent.num.to_dict().items():
            times, kept = coefficient, fmpq(1)
            if coefficient.q > 1 or abs(coefficient.p) > _LARGEST_POWER:
                times, kept = (1 if coefficient > 0 else -1), abs(coefficient)
            if not any(monomial):
                factor = base if kept == 1 else self._to_the(base, self.number(kept))
            else:
                part = Rat(self.ctx.from_dict({monomial: kept}), self.one)
                factor = self._one_power(base, part)
            result = self.mul(result, self.power(factor, int(times)))
        return result

    def _one_power(self, base: Rat, exponent: Rat) -> Rat:
        numbers = [*exponent.num.coeffs(), *exponent.den.coeffs()]
        whole = all(self.atoms[gen].whole for gen in self.atoms_of(exponent))
        if not whole or any(number.q > 1 for number in numbers):
            self.assume(base, "is not negative")
        return self.call("function", "pow", (base, exponent), nonneg=self.nonneg(base))

    # Sums

    def total(self, body: Rat, bounds: Sequence[tuple[str, int]]) -> Rat:
        """The sum of a value over indices; factors without the indices stand in front of it."""
        if self._special and self.is_special(body):
            symbols = {symbol for symbol, _ in bounds}
            if self.free(body) & symbols:
                raise Undecided("a sum over what is not defined everywhere")
            return self.selected([body], lambda args: self.total(args[0], bounds))
        return self._total(body, list(bounds))

    def _total(self, body: Rat, bounds: list[tuple[str, int]]) -> Rat:
        symbols = {symbol for symbol, _ in bounds}
        body = self._rationalised(body, symbols)
        own = {gen for gen in self.atoms_of(body) if self.atoms[gen].free & symbols}
        content = self.ctx.constant(0)
        for row in self._split(body.den, own).values():
            content = row if content.is_zero() else content.gcd(row)
        rest = body.den // content
        lead = rest.leading_coefficient()
        rest, content = rest / lead, content * lead
        result = self.number(0)
        for monomial, row in self._split(body.num, own).items():
            front = self.make(row, content)
            term = self.make(self.ctx.from_dict({monomial: 1}), rest)
            result = self.add(result, self.mul(front, self._summed(term, bounds)))
        return result

    def _split(self, poly: fmpq_mpoly, own: set[int]) -> dict[Any, fmpq_mpoly]:
        """A polynomial as one in some atoms: exponents of these -> coefficient."""
        rows: dict[Any, dict[Any, fmpq]] = {}
        for monomial, coefficient in poly.to_dict().items():
            inside = tuple(e if i in own else 0 for i, e in enumerate(monomial))
            outside = tuple(0 if i in own else e for i, e in enumerate(monomial))
            rows.setdefault(inside, {})[outside] = coefficient
        return {inside: self.ctx.from_dict(row) for inside, row in rows.items()}

    def _rationalised(self, body: Rat, symbols: set[str]) -> Rat:
        """A quotient without square roots of what depends on indices in its denominator."""
        for _ in range(8):
            for gen in self.used(body.den):
                atom = self.atoms[gen]
                if atom.kind == "root" and atom.order == 2 and atom.free & symbols:
                    break
            else:
                return body
            rows = self.coefficients(body.den, gen)
            even, odd = (rows.get(power, self.ctx.constant(0)) for power in (0, 1))
            other = even - odd * self.gen(gen)
            body = self.make(body.num * other, body.den * other)
        return body

    def _summed(self, term: Rat, bounds: list[tuple[str, int]]) -> Rat:
        """The sum of a monomial over a denominator: a product of sums that share no index."""
        result = self.number(1)
        free = self.free(term)
        for symbol, size in bounds:
            if symbol not in free:
                result = self.mul(result, self.number(size))
        bounds = [bound for bound in bounds if bound[0] in free]
        for factor, own in self._unrelated(term, bounds):
            result = self.mul(result, self._sum_atom(*self._merged(factor, own)))
        return result

    def _unrelated(
        self, term: Rat, bounds: list[tuple[str, int]]
    ) -> list[tuple[Rat, list[tuple[str, int]]]]:
        """A product as factors that have no index in common, each with its indices."""
        symbols = {symbol for symbol, _ in bounds}
        parts: list[tuple[frozenset[str], Rat]] = []
        if not term.den.is_constant():
            below = Rat(self.one, term.den)
            parts.append((self.free(below) & symbols, below))
        degrees = term.num.degrees()
        for gen in self.used(term.num):
            power = Rat(self.gen(gen) ** degrees[gen], self.one)
            parts.append((self.atoms[gen].free & symbols, power))
        joined: list[tuple[frozenset[str], Rat]] = []
        for names, part in parts:
            for other in [each for each in joined if each[0] & names]:
                joined.remove(other)
                names, part = names | other[0], self._mul(part, other[1])
            joined.append((names, part))
        return [(part, [b for b in bounds if b[0] in names]) for names, part in joined]

    def _merged(
        self, term: Rat, bounds: list[tuple[str, int]]
    ) -> tuple[Rat, list[tuple[str, int]]]:
        """A sum of a sum as one sum over all their indices."""
        symbols = {symbol for symbol, _ in bounds}
        for gen in self.used(term.num):
            atom = self.atoms[gen]
            if atom.kind == "sum" and atom.free & symbols and term.num.degrees()[gen] == 1:
                fresh = {name: self.fresh() for name, _ in atom.bound}
                inner = self.renamed(atom.args[0], fresh)
                rest = self.make(self.coefficients(term.num, gen)[1], term.den)
                more = [(fresh[name], size) for name, size in atom.bound]
                return self._mul(rest, inner), bounds + more
        return term, bounds

    def _sum_atom(self, body: Rat, bounds: list[tuple[str, int]]) -> Rat:
        depth = max((self.atoms[gen].depth for gen in self.atoms_of(body)), default=0)
        best: tuple[Any, ...] | None = None
        orders = itertools.permutations(bounds) if len(bounds) <= 4 else [tuple(bounds)]
        for order in orders:
            names = {name: f"b{depth}.{place}" for place, (name, _) in enumerate(order)}
            sizes = tuple((names[name], size) for name, size in order)
            renamed = self.renamed(body, names)
            key = ([size for _, size in sizes], self.texts((renamed,)))
            if best is None or key < best[0]:
                best = (key, sizes, renamed)
        assert best is not None
        (_, texts), sizes, renamed = best
        free = self.free(renamed) - {name for name, _ in sizes}
        atom = Atom(
            "sum",
            "sum",
            (renamed,),
            bound=sizes,
            free=free,
            depth=depth + 1,
            nonneg=self.nonneg(renamed),
        )
        return self.atom(("sum", sizes, texts), atom)

    def fresh(self) -> str:
        """A symbol for an index that occurs nowhere else."""
        return f"u{next(self._fresh)}"

    def renamed(self, value: Rat, names: dict[str, str]) -> Rat:
        """A value with symbols of indices replaced."""
        gens = [gen for gen in self.atoms_of(value) if self.atoms[gen].free & names.keys()]
        if not gens:
            return value
        new = {gen: self._renamed_atom(gen, names) for gen in gens}
        parts = []
        for poly in value:
            result = self.number(0)
            for monomial, coefficient in poly.to_dict().items():
                rest = tuple(0 if i in new else e for i, e in enumerate(monomial))
                term = Rat(self.ctx.from_dict({rest: coefficient}), self.one)
                for gen, atom in new.items():
                    for _ in range(monomial[gen]):
                        term = self.mul(term, atom)
                result = self.add(result, term)
            parts.append(result)
        first, second = parts
        return self.make(first.num * second.den, first.den * second.num)

    def _renamed_atom(self, gen: int, names: dict[str, str]) -> Rat:
        atom = self.atoms[gen]
        index = tuple(_renamed_index(item, names) for item in atom.index)
        if atom.kind == "leaf":
            return self.leaf(atom.name, index, whole=atom.whole)
        if atom.kind == "index":
            return self.position(index[0])
        if atom.kind == "array":  # its arguments have indices of their own
            known = {"nonneg": atom.nonneg, "whole": atom.whole}
            return self.call("array", atom.name, atom.args, index, **known)
        args = tuple(self.renamed(arg, names) for arg in atom.args)
        if atom.kind == "root":
            return self._root(args[0], atom.order)
        if atom.kind in ("positive", "zero"):
            return self.positive(args[0]) if atom.kind == "positive" else self.zero(args[0])
        if atom.kind == "sum":
            free = self.free(args[0]) - {name for name, _ in atom.bound}
            new = Atom(**{**_fields(atom), "args": args, "free": free})
            return self.atom(("sum", atom.bound, self.texts(args)), new)
        known = {"nonneg": atom.nonneg, "whole": atom.whole}
        return self.call(atom.kind, atom.name, args, index, **known)


def _fields(atom: Atom) -> dict[str, Any]:
    return {name: getattr(atom, name) for name in atom.__dataclass_fields__}


def _symbols(index: tuple[Index, ...]) -> frozenset[str]:
    found: set[str] = set()
    for item in index:
        if isinstance(item, str):
            found.add(item)
        elif isinstance(item, tuple):
            found |= _symbols(tuple(part for part in item[1:] if isinstance(part, str | tuple)))
    return frozenset(found)


def _renamed_index(index: Index, names: dict[str, str]) -> Index:
    if isinstance(index, str):
        return names.get(index, index)
    if isinstance(index, tuple):
        return (index[0], *(_renamed_index(part, names) for part in index[1:]))
    return index


def _root_of_number(value: fmpq, order: int) -> tuple[fmpq, fmpq]:
    """The part of a number that comes out of a root, and the part that stays, a whole number."""
    sign = -1 if value < 0 else 1
    # n/d = n * d**(order-1) / d**order
    outside, inside = fmpq(1, value.q), fmpz(abs(value.p)) * fmpz(value.q) ** (order - 1)
    if inside.height_bits() > 4000:
        return fmpq(1), value
    kept = fmpz(1)
    for prime, power in inside.factor(trial_limit=10000) if _large(inside) else inside.factor():
        whole, rest = divmod(int(power), order)
        outside = outside * fmpq(prime**whole)
        kept = kept * prime**rest
    return outside, fmpq(sign * kept)


def _large(number: fmpz) -> bool:
    return number.height_bits() > 128
