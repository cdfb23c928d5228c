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

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
from equivalence_tests.proof.interpreter.balls import Array, NoRule, Unclear, balls, precise
from equivalence_tests.proof.interpreter.run import as_type, run

Pair = tuple[list[Array], list[Array]]  # of the left side and of the right one
Symbols = dict[str, Array]  # the values of those that a certificate relates states by
_OF_SIDES = ("on the left", "on the right")
_OF_RELATION = ("by the certificate", "by the program")
_DIGITS, _MOST_STEPS = 1e-30, 400
_TRIALS = 4  # of random inputs, until comparisons of them have an answer
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, -1e-30, 1.0)
TRUSTED = (
    "JAX: that a traced program is what runs; what it computes of whole numbers and random keys",
    "python-flint and NumPy: arithmetic with balls and with numbers",
    "proof.interpreter: what each primitive computes of them",
    "sides.adapt and proof.reading.sides: from a side to its programs",
    "the certificate's induction: that what holds of these inputs holds of all",
    "the certificate's scope: that what holds of arrays of a few more shapes holds of all",
)


@dataclass
class Checked:
    """The amount that a check has covered.

    Attributes:
      points: runs in exact arithmetic.
      shapes: other shapes than those of the proof for which the sides were run.
      values: values that were compared there.
      forms: values of normal forms that were compared with the programs'.
      bits: values of which every bit was compared.
      examples: inputs that part the sides.
      skipped: what could not be checked, and why.
      trusted: what was not checked, and is taken for right.
    """

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
    """Checks a certificate against programs; see `check`.

    Raises:
      CertificateError: the programs do not compute what it says, or it cannot be checked.
    """
    checked, rng = Checked(), np.random.default_rng(seed)
    check_header(certificate)
    scope = certificate["scope"]
    with precise(), _as_refusals():
        for case in certificate["cases"]:
            programs = trace(case["fixed"])
            check_scope(certificate, case, programs)
            if case["verdict"] in PROVED:
                check_induction(case, programs)
            if case["verdict"] == "different":
                _check_example(case, trace, checked, rng)
            if case["verdict"] not in PROVED:
                continue
            for axes in (5, 0, 2)[:shapes] if scope["coverage"] != "given" else ():
                shape = tuple(int(n) for n in rng.integers(1, 3 if axes > 2 else 6, axes))
                there = trace(case["fixed"], shape)
                other = _Run(case, there, checked, rng, exact=True, own_shapes=False)
                checked.shapes += bool(other.follow(steps))
            _check_points(case, programs, checked, rng, points, steps)
    return checked


@contextlib.contextmanager
def _as_refusals() -> Iterator[None]:
    try:
        yield
    except NoRule as error:
        raise CertificateError(f"not checked: {error}") from error


@reading()
def _check_points(
    case: Case,
    programs: Programs,
    checked: Checked,
    rng: np.random.Generator,
    points: int,
    steps: int,
) -> None:
    """Raises unless both sides agree, and a value or the bits of every parameter were compared."""
    compared, most = set[str](), checked.points + points
    for _ in range(_TRIALS * points):
        compared |= _Run(case, programs, checked, rng, exact=True).follow(steps)
        if checked.points == most:
            break
    for _ in range(points if case["verdict"] == "identical" else 0):
        compared |= _Run(case, programs, checked, rng, exact=False).follow(steps)
    missing = [path for path in programs.paths if path not in compared]
    require(not missing, f"not checked: {', '.join((*missing, *checked.skipped))}")


def _check_example(case: Case, trace: Trace, checked: Checked, rng: np.random.Generator) -> None:
    """Counts an example that parts the sides, which a long one is not tried to do.

    In the dtypes of the parameters, or in float64, if the certificate says that.

    Raises:
      CertificateError: every run has finite numbers, and none of them parts the sides.
    """
    example, answers = case["counterexample"], list[bool | None]()
    for wide in (False, True)[: 1 + (example["arithmetic"] == "float64")]:
        programs = trace(example["hyper_params"], wide=wide)
        size = sum(int(np.prod(leaf.shape)) for leaf in programs.shapes)
        if example["step"] * size > _MOST_STEPS:
            checked.skipped["an example of many steps"] = None
            return
        runs = [_Run(case, programs, checked, rng, exact) for exact in (True, False)]
        answers += [each.parts(example) for each in runs]
        if any(answers):
            checked.examples += 1
            return
    require(None in answers, "the example does not part the sides")
    checked.skipped["an example at which a comparison is open, or values are not finite"] = None


class _Run:
    """One run of both sides, from one random input.

    Attributes:
      states: how the certificate relates states; none where the shapes are others than those of its
        proof, for which its terms are.
      first: the first states that are related.
    """

    def __init__(
        self,
        case: Case,
        programs: Programs,
        checked: Checked,
        rng: np.random.Generator,
        exact: bool,
        own_shapes: bool = True,
    ):
        self.case, self.programs, self.checked = case, programs, checked
        self.rng, self.exact = rng, exact
        self.first: Pair | None = None
        terms = {term for row in case["states"] for side in row["terms"] for term in side}
        self.states: list[Case] = case["states"]
        if terms != {None} and not (own_shapes and exact):
            self.states = []
        self.rows: list[Case] = case["obligations"] if own_shapes and exact else []

    @reading()
    def follow(self, steps: int) -> set[str]:
        """Follows both sides from the start, then from states that are related, at random.

        Returns:
          The parameters of which a value was compared after a step, or which have none.
        """
        compared, numbers = set[str](), self.programs.numbers
        shrunk = [numbers[name] * int(self.rng.integers(8, 17)) / 16 for name in sorted(numbers)]
        values = [np.asarray(each, jnp.result_type(float)) for each in shrunk]
        settings = [balls(np.asarray(n)) for n in shrunk] if self.exact else values
        self.settings = dict(zip(sorted(numbers), settings, strict=True))
        try:
            states, shown = self._both("start", [[*settings, *self._inputs()]] * 2)
            self._agree(shown, "at the start")
            after_first = self.case["after_first"] is not None
            related = None if after_first else self._symbols_of(states, "at the start")
            for step in range(1, max(steps, steps - 1 + len(self.states)) + 1):
                if step > 1 and related is not None:  # every other state is as good
                    state, symbols = related
                    related = state, {name: self._other(each) for name, each in symbols.items()}
                    states = self._general(*related)
                grads, when = self._inputs(), f"after step {step}"
                args = [[*settings, *state, *grads] for state in states]
                states, shown = self._both("step", args)
                compared |= self._agree(shown, when)
                if related is not None:
                    self._check_forms(*related, grads, states, shown)
                related = self._symbols_of(states, when)
            self.checked.points += self.exact
        except Unclear as error:
            self.checked.skipped[f"a point at which {error} cannot be compared"] = None
        return compared

    @reading()
    def parts(self, example: Case) -> bool | None:
        """Returns whether an example parts both sides; None if that is open.

        In exact arithmetic, else by more than rounding.
        """
        leaf, index = self.programs.paths.index(example["leaf"]), tuple(example["index"])

        def values(row: Case) -> list[Array]:
            arrays = [np.asarray(value, float) for value in row.values()]
            pairs = zip(arrays, self.programs.shapes, strict=True)
            return [balls(a) if self.exact else a.astype(p.dtype) for a, p in pairs]

        try:
            states, shown = self._both("start", [values(example["params"])] * 2)
            for row in example["grads"]:
                for _ in range(row["steps"]):
                    args = [[*state, *values(row["grads"])] for state in states]
                    states, shown = self._both("step", args)
        except Unclear:
            return None
        a: Any = shown[0][leaf][index]
        b: Any = shown[1][leaf][index]
        return _do_not_overlap(a, b) if self.exact else _is_more_than_rounding(a, b)

    def _both(self, part: str, args: Sequence[list[Array]]) -> tuple[Pair, Pair]:
        """Returns states and parameters of both sides."""
        pairs = list(zip(self.programs.sides, args, strict=True))
        lhs, rhs = (run(getattr(side, part), row, self.exact) for side, row in pairs)
        ours, theirs = (len(side.paths) for side in self.programs.sides)
        return (lhs[:ours], rhs[:theirs]), (lhs[ours:], rhs[theirs:])

    def _inputs(self) -> list[Array]:
        """Returns parameters or gradients at random."""
        shapes = self.programs.shapes
        if self.exact:
            signed = [self._fractions(leaf.shape) * self._choice([-1, 1], leaf) for leaf in shapes]
            return list(map(np.asarray, signed))
        with np.errstate(all="ignore"):
            values = [self.rng.standard_normal(leaf.shape) for leaf in shapes]
            odd = [self._choice(_SPECIAL, leaf) for leaf in shapes]
            chosen = [self.rng.random(leaf.shape) < 0.3 for leaf in shapes]
            rows = zip(map(np.where, chosen, odd, values), shapes, strict=True)
            return [np.asarray(each).astype(leaf.dtype) for each, leaf in rows]

    def _choice(self, values: Sequence[float], leaf: jax.ShapeDtypeStruct) -> Array:
        return np.asarray(self.rng.choice(values, leaf.shape))

    def _fractions(self, shape: tuple[int, ...]) -> Array:
        sixteenths = np.asarray(self.rng.integers(1, 33, shape) / 16)
        return balls(sixteenths) if self.exact else sixteenths

    # States

    def _symbols_of(self, states: Pair, when: str) -> tuple[Case, Symbols] | None:
        """Returns how the certificate relates states, and the values of its symbols in these.

        Raises:
          CertificateError: they are not related so.
        """
        if not self.states:
            return None
        self.first = self.first or states
        rows = [
            row
            for row in self.states
            if all(int(states[side][leaf]) == number for side, leaf, number in row["where"])
        ]
        require(bool(rows), f"no state of the certificate has the counters' values {when}")
        symbols: Symbols = {}
        slots = [
            (name, array)
            for names, arrays in zip(self.case["symbols"], states, strict=True)
            for name, array in zip(names, arrays, strict=True)
        ]
        for name, array in sorted(slots, key=lambda slot: slot[1].dtype == object):  # counts first
            if name is not None and name not in symbols:
                least = self._least.get(name)
                symbols[name] = array if least is None else array - least
                above = least is None or np.all(symbols[name] >= 0)
                require(bool(above), f"{name} {when}: the count is below {least}")
        for side, pair in enumerate(zip(self._general(rows[0], symbols), states, strict=True)):
            program, name = self.programs.sides[side], ("left", "right")[side]
            for path, expected, actual in zip(program.paths, *pair, strict=True):
                if expected is not actual:
                    self._equal(expected, actual, f"{path} on the {name} {when}", _OF_RELATION)
        return rows[0], symbols

    @property
    def _least(self) -> Mapping[str, int]:
        return self.case["after_first"] or {}  # what a count is above a number

    def _general(self, state: Case, symbols: Symbols) -> Pair:
        """Returns the states that are related so, for these values of the symbols."""
        forms = Forms(self.case, {**self.settings, **symbols})
        return self._side(0, state, forms), self._side(1, state, forms)

    def _side(self, side: int, state: Case, forms: Forms) -> list[Array]:
        program, leaves = self.programs.sides[side], list[Array]()
        avals: Any = program.step.in_avals[len(self.settings) :]
        rows = zip(program.paths, state["terms"][side], self.case["symbols"][side], strict=True)
        for number, (path, term, name) in enumerate(rows):
            aval = avals[number]
            if term is not None:
                value = np.empty(aval.shape, object)
                for index in np.ndindex(aval.shape):
                    value[index] = _form(forms, term, index, f"how {path} is related")
            elif name is not None:
                least, value = self._least.get(name), forms.inputs[name]
                value = value if least is None else value + least
                same = value.shape == aval.shape
                require(same, f"{path}: its shape is {aval.shape}, that of {name} {value.shape}")
            else:  # it never changes
                value = (self.first or ())[side][number]
            leaves.append(as_type(value, aval, self.exact))
        return leaves

    def _other(self, value: Array) -> Array:
        """Returns another value of a symbol, of the same sign."""
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            key: Any = value
            data = jax.random.key_data(key)
            more = self.rng.integers(0, 99, data.shape).astype(data.dtype)
            return jax.random.wrap_key_data(data + more, impl=jax.random.key_impl(key))
        if value.dtype == np.bool_:
            return value ^ (self.rng.random(value.shape) < 0.5)
        if jnp.issubdtype(value.dtype, jnp.integer):
            return value + self.rng.integers(0, 8, value.shape).astype(value.dtype)
        factors = self._fractions(value.shape)
        with np.errstate(all="ignore"):
            return np.asarray(np.where(value == 0, factors, value * factors)).astype(value.dtype)

    # Comparisons

    def _agree(self, shown: Pair, when: str) -> set[str]:
        """Returns the parameters of which something was compared, or which have no values."""
        pairs = zip(self.programs.paths, *shown, strict=True)
        return {path for path, a, b in pairs if self._equal(a, b, f"{path} {when}") or not a.size}

    def _equal(self, a: Array, b: Array, where: str, words: tuple[str, str] = _OF_SIDES) -> bool:
        """Returns whether anything was compared.

        Raises:
          CertificateError: two arrays differ.
        """
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = (np.asarray(jax.random.key_data(key)) for key in (a, b))
        before = self.checked.values
        if self.exact:
            for index in np.ndindex(a.shape):
                self._close(a[index], b[index], f"{where} at {list(index)}", words)
            return self.checked.values > before
        same = (a == b) & (np.signbit(a) == np.signbit(b)) if a.dtype != bool else a == b
        same = same | (np.isnan(a) & np.isnan(b))
        for index in np.argwhere(~same)[:1]:
            here = tuple(map(int, index))
            raise CertificateError(
                f"{where} at {list(here)}: {a[here]!r} {words[0]}, {b[here]!r} {words[1]}, and the "
                "certificate says identical"
            )
        self.checked.bits += a.size
        return True

    def _close(self, a: Any, b: Any, where: str, words: tuple[str, str]) -> None:
        a, b = (value if isinstance(value, arb) else arb(float(value)) for value in (a, b))
        if not (a.is_finite() and b.is_finite()):
            self.checked.skipped[f"{where}: {a.str(3)} and {b.str(3)}"] = None
            return
        if not a.overlaps(b):
            raise CertificateError(f"{where}: {a.str(12)} {words[0]}, {b.str(12)} {words[1]}")
        if max(a.rad(), b.rad()) > _DIGITS * max(1, abs(float(a.mid()))):
            self.checked.skipped[f"{where}: too few digits"] = None
            return
        self.checked.values += 1

    def _check_forms(
        self, state: Case, symbols: Symbols, grads: list[Array], states: Pair, shown: Pair
    ) -> None:
        """Compares an entry of each normal form with what the programs made of related states."""
        paths = [path.replace("params", "grads", 1) for path in self.programs.paths]
        inputs = {**self.settings, **dict(zip(paths, grads, strict=True)), **symbols}
        forms = Forms(self.case, inputs)
        for row in self.rows:
            if (
                row["when"] != "step"
                or "terms" not in row
                or row.get("where", []) != state["where"]
            ):
                continue
            for side, place in enumerate(row["places"]):
                # What the relation makes of one side's state is what the other one has.
                holder = side if place is not None else 1 - side
                array = (shown if row.get("params") else states)[holder][row["places"][holder]]
                index = tuple(int(self.rng.integers(size)) for size in array.shape)
                what = f"normal form of {row['leaf']}"
                try:
                    value = _form(forms, row["terms"][side], index, what)
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


def _do_not_overlap(a: arb, b: arb) -> bool | None:
    return not a.overlaps(b) if a.is_finite() and b.is_finite() else None


def _is_more_than_rounding(a: np.floating, b: np.floating) -> bool | None:
    """True if rounding does not explain, in a few steps, how far apart two numbers are."""
    x, y, little = float(a), float(b), 64 * float(jnp.finfo(a.dtype).eps)
    if np.isfinite(x) != np.isfinite(y):
        return True
    return abs(x - y) > little * max(abs(x), abs(y)) if np.isfinite(x) else None
