"""Checks a certificate apart from the prover: its induction, at random points.

The certificate says how the states of both sides are related: which symbols, or which functions of
symbols, their leaves are. Both programs are followed equation by equation, with balls of 200 bits.
The start has to be related so. A step from related states, whose symbols are otherwise random, has
to give the same parameters and states that are related again; where counters go round, from each of
their states. The normal forms have to be what the programs compute. Where the certificate says
identical, the same is done in the dtypes of the programs, with NaN, infinities, signed zeros and
denormal numbers among the inputs, and every bit has to agree. Where it says different, its example
has to part both sides.

Of this project it imports `interpreter`, `normal_forms`, `programs` and `statement` alone: no
rules, no algebra, no induction, nothing of how a proof is found; the prover looks for examples and
guesses with the same interpreter. It trusts what `TRUSTED` names. Of these the induction is the
largest: that both sides agree at random points is no proof that they agree at all. A branch that no
random number takes, `count == 50000`, is the prover's to see, and so are the assumptions: where one
does not hold, values are not finite or a comparison is open, and `skipped` says so. Random states
have the signs of those that a run reaches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb

from equivalence_tests.proof.certificate.normal_forms import Case, Forms, NotEvaluable
from equivalence_tests.proof.certificate.programs import Programs, Trace
from equivalence_tests.proof.certificate.statement import (
    PROVED,
    CertificateError,
    check_header,
    check_induction,
    check_scope,
    reading,
    require,
)
from equivalence_tests.proof.interpreter.balls import Array, Unclear, balls, precise
from equivalence_tests.proof.interpreter.entries import is_kind
from equivalence_tests.proof.interpreter.run import as_type, run

Pair = tuple[list[Array], list[Array]]  # of the left side and of the right one
Symbols = dict[str, Array]  # the values of those that a certificate relates states by
_OF_SIDES = ("on the left", "on the right")
_OF_RELATION = ("by the certificate", "by the program")
_DIGITS, _MOST_STEPS = 1e-30, 400
_TRIALS = 4  # of random inputs, until comparisons of them have an answer
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, -1e-30, 1.0)
_ZEROS = (0.0, -0.0)
TRUSTED = (
    "JAX: that a traced program is what runs; what it computes of whole numbers and random keys",
    "python-flint and NumPy: arithmetic with balls and with numbers",
    "proof.interpreter: what each primitive computes of them",
    "sides.adapt and proof.reading.sides: from a side to its programs",
    "the certificate's induction: that what holds of these inputs holds of all",
    "the certificate's scope: that what holds of arrays of a few more shapes holds of all",
    "the certificate's assumptions: that it lists all of them",
)


@dataclass
class Checked:
    """The amount that a check has covered."""

    points: int = 0
    shapes: int = 0
    values: int = 0
    forms: int = 0
    bits: int = 0
    examples: int = 0
    skipped: dict[str, None] = field(default_factory=dict[str, None])
    trusted: tuple[str, ...] = TRUSTED


def check_programs(
    certificate: Case, trace: Trace, points: int, steps: int, shapes: int, seed: int
) -> Checked:
    """Checks a certificate against programs; see `check`."""
    checked, rng = Checked(), np.random.default_rng(seed)
    check_header(certificate)
    with precise():
        for case in certificate["cases"]:
            programs = trace(case["fixed"], None, False)
            check_scope(certificate, case, programs)
            if case["verdict"] == "different":
                _check_example(case, trace, checked, rng)
            if case["verdict"] not in PROVED:
                continue
            check_induction(case, programs)
            is_narrow = certificate["scope"]["coverage"] == "given"
            for axes in () if is_narrow else (5, 0, 2)[:shapes]:
                shape = tuple(int(n) for n in rng.integers(1, 3 if axes > 2 else 6, axes))
                other = _Run(case, trace(case["fixed"], shape, False), checked, rng, True, False)
                checked.shapes += bool(other.follow(steps))
            compared, most = set[str](), checked.points + points
            for _ in range(_TRIALS * points):
                if checked.points < most:
                    compared |= _Run(case, programs, checked, rng, True).follow(steps)
            for _ in range(points if programs.numbers else 0):
                _Run(case, programs, checked, rng, True, any_sign=True).follow(steps)
            for zeros in (False, True) * points if case["verdict"] == "identical" else ():
                compared |= _Run(case, programs, checked, rng, False, zeros=zeros).follow(steps)
            missing = [path for path in programs.paths if path not in compared]
            require(not missing, f"not checked: {', '.join((*missing, *checked.skipped))}")
    return checked


def _check_example(case: Case, trace: Trace, checked: Checked, rng: np.random.Generator) -> None:
    """Counts an example that parts the sides, which a long one is not tried to do."""
    example, answers = case["counterexample"], list[bool | None]()
    for wide in (False, True)[: 1 + (example["arithmetic"] == "float64")]:
        if True in answers:
            break
        programs = trace(example["hyper_params"], None, wide)
        size = sum(int(np.prod(leaf.shape)) for leaf in programs.shapes)
        if example["step"] * size > _MOST_STEPS:
            checked.skipped["an example of many steps"] = None
            return
        runs = [_Run(case, programs, checked, rng, exact) for exact in (True, False)]
        answers += [each.parts(example) for each in runs]
    require(True in answers or None in answers, "the example does not part the sides")
    checked.examples += True in answers
    if True not in answers:
        what = "an example at which a comparison is open, or values are not finite"
        checked.skipped[what] = None


class _Run:
    """One run of both sides, from one random input."""

    def __init__(
        self,
        case: Case,
        programs: Programs,
        checked: Checked,
        rng: np.random.Generator,
        exact: bool,
        own_shapes: bool = True,
        zeros: bool = False,
        any_sign: bool = False,
    ):
        self.case, self.programs, self.checked = case, programs, checked
        self.rng, self.exact, self.own = rng, exact, own_shapes and exact
        self.first, self.zeros, self.any_sign = cast(Pair | None, None), zeros, any_sign
        specs = [each for row in case["states"] for side in row["leaves"] for each in side]
        own_symbols = not any(isinstance(each, int) for each in specs)
        self.states: list[Case] = case["states"] if self.own or own_symbols else []

    @reading()
    def follow(self, steps: int) -> set[str]:
        """Follows both sides from the start, then from states that are related, at random."""
        compared, numbers = set[str](), self.programs.numbers
        shrunk = {name: numbers[name] * self.rng.integers(8, 17) / 16 for name in sorted(numbers)}
        if self.any_sign:
            shrunk = {name: number * self.rng.choice((1, -1)) for name, number in shrunk.items()}
        self.settings = {name: self._lift(n, jnp.result_type(float)) for name, n in shrunk.items()}
        settings = list(self.settings.values())
        try:
            states, shown = self._both("start", [[*settings, *self._inputs()]] * 2)
            self._agree(shown, "at the start")
            after_first = self.case["after_first"] is not None
            related = None if after_first else self._symbols_of(states, "at the start")
            for step in range(1, max(steps, steps - 1 + len(self.states)) + 1):
                if step > 1 and related is not None:  # every other state is as good
                    row, symbols = related
                    related = row, {name: self._other(each) for name, each in symbols.items()}
                    states = self._general(*related)
                grads, when = self._inputs(), f"after step {step}"
                states, shown = self._both("step", [[*settings, *each, *grads] for each in states])
                compared |= self._agree(shown, when)
                if related is not None and self.own:
                    self._check_forms(*related, grads, (*states, *shown))
                related = self._symbols_of(states, when)
            self.checked.points += self.exact
        except Unclear as error:
            self.checked.skipped[f"a point at which {error} cannot be compared"] = None
        return compared

    @reading()
    def parts(self, example: Case) -> bool | None:
        """Returns whether an example parts both sides; None if that is open."""
        leaf, index = self.programs.paths.index(example["leaf"]), tuple(example["index"])
        kind = self.programs.shapes[leaf].dtype

        def values(row: Case) -> list[Array]:
            pairs = zip(row.values(), self.programs.shapes, strict=True)
            return [self._lift(value, np.float64 if self.exact else p.dtype) for value, p in pairs]

        try:
            states, shown = self._both("start", [values(example["params"])] * 2)
            for row in example["grads"]:
                for _ in range(row["steps"]):
                    args = [[*state, *values(row["grads"])] for state in states]
                    states, shown = self._both("step", args)
        except Unclear:
            return None
        a, b = (each[leaf][index] for each in cast(Any, shown))
        if self.exact:
            return not a.overlaps(b) if a.is_finite() and b.is_finite() else None
        if not (np.isfinite(a) and np.isfinite(b)):
            return True if np.isfinite(a) != np.isfinite(b) else None
        x, y = float(a), float(b)
        return abs(x - y) > 64 * float(jnp.finfo(kind).eps) * max(abs(x), abs(y))

    def _both(self, part: str, args: Sequence[list[Array]]) -> tuple[Pair, Pair]:
        """Returns states and parameters of both sides."""
        pairs = list(zip(self.programs.sides, args, strict=True))
        lhs, rhs = (run(getattr(side, part), row, self.exact) for side, row in pairs)
        ours, theirs = (len(side.paths) for side in self.programs.sides)
        return (lhs[:ours], rhs[:theirs]), (lhs[ours:], rhs[theirs:])

    def _lift(self, value: Any, dtype: Any) -> Array:
        array = np.asarray(value, float).astype(dtype)
        return balls(array) if self.exact else array

    def _inputs(self) -> list[Array]:
        """Returns parameters or gradients at random."""
        return [self._input(leaf.shape, leaf.dtype) for leaf in self.programs.shapes]

    def _input(self, shape: tuple[int, ...], dtype: Any) -> Array:
        if self.exact:
            return np.asarray(self._fractions(shape) * self.rng.choice([-1, 1], shape))
        odd = self.rng.random(shape) < (1.0 if self.zeros else 0.3)
        special = self.rng.choice(_ZEROS if self.zeros else _SPECIAL, shape)
        values = np.where(odd, special, self.rng.standard_normal(shape))
        with np.errstate(all="ignore"):
            return values.astype(dtype)

    def _fractions(self, shape: tuple[int, ...]) -> Array:
        return self._lift(self.rng.integers(1, 33, shape) / 16, np.float64)

    # States

    def _symbols_of(self, states: Pair, when: str) -> tuple[Case, Symbols] | None:
        """Returns how the certificate relates states, and the values of its symbols in these."""
        self.first = self.first or states
        fitting = (
            row
            for row in self.states
            if all(int(states[side][leaf]) == number for side, leaf, number in row["where"])
        )
        row = next(fitting, None)
        require(
            not self.states or row is not None,
            f"no state of the certificate has the counters' values {when}",
        )
        if row is None:
            return None
        slots = [
            (spec, array)
            for specs, arrays in zip(row["leaves"], states, strict=True)
            for spec, array in zip(specs, arrays, strict=True)
            if isinstance(spec, str)
        ]
        slots.sort(key=lambda slot: slot[1].dtype == object)  # counts first
        symbols = dict(reversed(slots))
        for name, least in (self.case["after_first"] or {}).items():  # counts above a number
            if name in symbols:
                above = bool(np.all(symbols[name] >= least))
                require(above, f"{name} {when}: the count is below {least}")
        for side, pair in enumerate(zip(self._general(row, symbols), states, strict=True)):
            program, name = self.programs.sides[side], ("left", "right")[side]
            for path, expected, actual in zip(program.paths, *pair, strict=True):
                if expected is not actual:
                    self._equal(expected, actual, f"{path} on the {name} {when}", _OF_RELATION)
        return row, symbols

    def _forms(self, inputs: Symbols) -> Forms:
        """Returns the normal forms for values of symbols, counts as what is above their least."""
        least = (self.case["after_first"] or {}).items()
        above = {name: inputs[name] - number for name, number in least if name in inputs}
        return Forms(self.case, {**self.settings, **inputs, **above})

    def _general(self, row: Case, symbols: Symbols) -> Pair:
        """Returns the states that are related so, for these values of the symbols."""
        forms, result = self._forms(symbols), (list[Array](), list[Array]())
        for side, leaves in enumerate(result):
            program = self.programs.sides[side]
            avals: Any = program.step.in_avals[len(self.settings) :][: len(program.paths)]
            specs = zip(row["leaves"][side], program.paths, avals, strict=True)
            for number, (spec, path, aval) in enumerate(specs):
                if isinstance(spec, int):
                    value, where = np.empty(aval.shape, object), f"how {path} is related"
                    for index in np.ndindex(aval.shape):
                        value[index] = _form(forms, spec, index, where)
                elif spec is None:  # it never changes
                    value = (self.first or ())[side][number]
                else:
                    value = symbols[spec]
                    fits = value.shape == aval.shape
                    require(
                        fits, f"{path}: its shape is {aval.shape}, that of {spec} {value.shape}"
                    )
                leaves.append(as_type(value, aval, self.exact))
        return result

    def _other(self, value: Any) -> Array:
        """Returns another value of a symbol, of the same sign."""
        if is_kind(value, jax.dtypes.prng_key):
            data = jax.random.key_data(value)
            more = self.rng.integers(0, 99, data.shape).astype(data.dtype)
            return jax.random.wrap_key_data(data + more, impl=jax.random.key_impl(value))
        if value.dtype == np.bool_:
            return value ^ (self.rng.random(value.shape) < 0.5)
        if is_kind(value, jnp.integer):
            return value + self.rng.integers(0, 8, value.shape).astype(value.dtype)
        factors = self._fractions(value.shape)
        with np.errstate(all="ignore"):
            return np.asarray(np.where(value == 0, factors, value * factors)).astype(value.dtype)

    # Comparisons

    def _agree(self, shown: Pair, when: str) -> set[str]:
        """Returns the parameters of which something was compared, or which have no values."""
        pairs = zip(self.programs.paths, *shown, strict=True)
        return {path for path, a, b in pairs if self._equal(a, b, f"{path} {when}") or not a.size}

    def _equal(self, a: Any, b: Any, where: str, words: tuple[str, str] = _OF_SIDES) -> bool:
        """Returns whether anything was compared."""
        if is_kind(a, jax.dtypes.prng_key):
            a, b = (np.asarray(jax.random.key_data(key)) for key in (a, b))
        before = self.checked.values
        if self.exact:
            for index in np.ndindex(a.shape):
                self._close(a[index], b[index], f"{where} at {list(index)}", words)
            return self.checked.values > before
        same = (a == b) & (np.signbit(a) == np.signbit(b)) if a.dtype != bool else a == b
        for index in np.argwhere(~(same | (np.isnan(a) & np.isnan(b))))[:1].tolist():
            x, y = a[tuple(index)], b[tuple(index)]
            both = f"{x!r} {words[0]}, {y!r} {words[1]}"
            raise CertificateError(
                f"{where} at {index}: {both}, and the certificate says identical"
            )
        self.checked.bits += a.size
        return True

    def _close(self, a: Any, b: Any, where: str, words: tuple[str, str]) -> None:
        a, b = (value if isinstance(value, arb) else arb(float(value)) for value in (a, b))
        if not (a.is_finite() and b.is_finite()):
            self.checked.skipped[f"{where}: {a.str(3)} and {b.str(3)}"] = None
        elif not a.overlaps(b):
            raise CertificateError(f"{where}: {a.str(12)} {words[0]}, {b.str(12)} {words[1]}")
        elif max(a.rad(), b.rad()) > _DIGITS * max(1, abs(float(a.mid()))):
            self.checked.skipped[f"{where}: too few digits"] = None
        else:
            self.checked.values += 1

    def _check_forms(
        self, row: Case, symbols: Symbols, grads: list[Array], results: Sequence[list[Array]]
    ) -> None:
        """Compares an entry of each normal form with what the programs made of related states."""
        paths = [path.replace("params", "grads", 1) for path in self.programs.paths]
        forms = self._forms({**dict(zip(paths, grads, strict=True)), **symbols})
        for each in self.case["obligations"]:
            here = each["when"] == "step" and each.get("where", []) == row["where"]
            for side, place in enumerate(each["places"] if here and "terms" in each else ()):
                # What the relation makes of one side's state is what the other one has.
                holder = side if place is not None else 1 - side
                array = results[2 * bool(each.get("params")) + holder][each["places"][holder]]
                index = tuple(int(self.rng.integers(size)) for size in array.shape)
                what = f"normal form of {each['leaf']}"
                try:
                    value = _form(forms, each["terms"][side], index, what)
                except CertificateError as error:
                    self.checked.skipped[str(error)] = None
                    continue
                self._close(value, array[index], what, _OF_RELATION)
                self.checked.forms += 1


def _form(forms: Forms, number: int, index: tuple[int, ...], what: str) -> arb:
    try:
        return forms.value(number, {f"i{axis}": at for axis, at in enumerate(index)})
    except (NotEvaluable, KeyError) as error:
        raise CertificateError(f"not checked: {what}: {error}") from error
