"""Checks a certificate apart from the prover: both programs are run in exact arithmetic.

Both are followed equation by equation on random inputs, with balls of 200 bits, from the start and
then from states that are related as the certificate says, and otherwise at random. Parameters have
to agree after every step, states where they are related, and the normal forms with what the
programs compute. Where the certificate says identical, both are followed in their own dtypes too,
with NaN, infinities, signed zeros and denormal numbers among the inputs, and every bit has to
agree. Where it says different, its example has to part them.

Of this project it imports `equations` and `normal_forms` alone: no rules, no algebra, no induction,
nothing of how a proof is found. What is trusted is in `TRUSTED`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flint
import jax
import jax.numpy as jnp
import numpy as np
from flint import arb, fmpq
from jax.extend.core import ClosedJaxpr

from equivalence_tests.proof.certificate import equations
from equivalence_tests.proof.certificate.equations import Array
from equivalence_tests.proof.certificate.normal_forms import Case, Forms, NotEvaluable

Pair = tuple[list[Array], list[Array]]  # of the left side and of the right one
BITS, _DIGITS, _MOST_STEPS = 200, 1e-30, 400
VERDICTS = ("identical", "equal over the reals", "not decided", "different")
COVERAGES = ("any", "0 to 5 axes", "given")
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, -1e-30, 1.0)
TRUSTED = (
    "JAX: that a traced program is what runs; what it computes of whole numbers and random keys",
    "python-flint and NumPy: arithmetic with balls and with numbers",
    "sides.adapt and proof.reading.sides: from a side to its programs",
    "the certificate's induction: that what holds of these inputs holds of all",
    "the certificate's scope: that what holds of arrays of a few more shapes holds of all",
)


class CertificateError(ValueError):
    """A certificate that what the programs compute does not bear out."""


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


@dataclass(frozen=True)
class Side:
    """One side as programs.

    Attributes:
      start: (numbers, parameters) -> (state, parameters).
      step: (numbers, state, gradients) -> (state, parameters).
      paths: of the state's leaves.
      comparisons: the numbers with which Python compares hyper-parameters.
    """

    start: ClosedJaxpr
    step: ClosedJaxpr
    paths: tuple[str, ...]
    comparisons: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Programs:
    """Both sides, and what they get: parameters' paths and shapes, and the symbols' numbers."""

    sides: tuple[Side, Side]
    paths: Sequence[str]
    shapes: Sequence[jax.ShapeDtypeStruct]
    numbers: Mapping[str, float]


# From hyper-parameters that are fixed, and a shape for every leaf or None for the parameters' own.
Trace = Callable[[Mapping[str, float], tuple[int, ...] | None], Programs]


def check_programs(
    certificate: Case, trace: Trace, points: int, steps: int, shapes: int, seed: int
) -> Checked:
    """Checks a certificate against programs; see `check`.

    Raises:
      CertificateError: the programs do not compute what it says, or it cannot be checked.
    """
    checked, rng = Checked(), np.random.default_rng(seed)
    cases, scope = certificate["cases"], certificate["scope"]
    _require(
        certificate["verdict"] == max((case["verdict"] for case in cases), key=VERDICTS.index),
        "the verdict is not that of the weakest case",
    )
    before, flint.ctx.prec = flint.ctx.prec, BITS
    try:
        for case in cases:
            programs = trace(case["fixed"], None)
            _check_scope(certificate, case, programs)
            if case["verdict"] == "different":
                example = case["counterexample"]
                there = trace(example["hyper_params"], None)
                _Run(case, there, checked, rng).example(example)
            if case["verdict"] not in VERDICTS[:2]:
                continue
            for axes in (5, 0, 2)[:shapes] if scope["coverage"] != "given" else ():
                shape = tuple(int(n) for n in rng.integers(1, 3 if axes > 2 else 6, axes))
                there = trace(case["fixed"], shape)
                _Run({**case, "obligations": []}, there, checked, rng).follow(steps, exact=True)
                checked.shapes += 1
            compared = checked.values
            for _ in range(points):
                _Run(case, programs, checked, rng).follow(steps, exact=True)
                if case["verdict"] == "identical":
                    _Run(case, programs, checked, rng).follow(steps, exact=False)
            _require(checked.values > compared, f"not checked: {', '.join(checked.skipped)}")
    except equations.NotKnown as error:
        raise CertificateError(f"not checked: {error}") from error
    finally:
        flint.ctx.prec = before
    return checked


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise CertificateError(message)


def _check_scope(certificate: Case, case: Case, programs: Programs) -> None:
    """Raises unless the scope is that of the parameters, and no wider than the proof."""
    scope, cases = certificate["scope"], certificate["cases"]
    leaves = list(zip(programs.paths, programs.shapes, strict=True))
    expected = {path: [str(leaf.dtype), list(leaf.shape)] for path, leaf in leaves}
    actual = {path: [dtype, scope["shapes"].get(path)] for path, dtype in scope["leaves"].items()}
    _require(
        actual == expected,
        f"scope: the certificate is for {actual}, the parameters are {expected}. Check it with "
        "the parameters of its proof",
    )
    coverage = scope["coverage"]
    _require(coverage in COVERAGES, f"scope: no such coverage: {coverage!r}")
    general = all(row.get("general", True) for row in case["obligations"])
    _require(general or coverage == "given", "scope: its proof is for the shapes given alone")
    free = {*programs.numbers, *case["fixed"]} - {*scope["fixed"]}
    _require({*scope["settings"]} == free, f"scope: the settings are {', '.join(sorted(free))}")
    for name, number in (pair for side in programs.sides for pair in side.comparisons):
        fixed = {**case["fixed"], name: number}
        _require(any(fixed == each["fixed"] for each in cases), f"no case for {name} = {number}")


class _Run:
    """One run of both sides, from one random input."""

    def __init__(self, case: Case, programs: Programs, checked: Checked, rng: np.random.Generator):
        self.case, self.programs, self.checked, self.rng = case, programs, checked, rng
        self.constants: Pair | None = None  # the states at first

    def follow(self, steps: int, exact: bool) -> None:
        """Follows both sides from the start, in exact arithmetic or in their own dtypes."""
        numbers = self.programs.numbers
        shrunk = [numbers[name] * int(self.rng.integers(8, 17)) / 16 for name in sorted(numbers)]
        settings = [np.asarray(value, jnp.result_type(float)) for value in shrunk]
        inputs, agree = self._special, self._same_bits
        if exact:
            settings = [equations.balls(np.asarray(value)) for value in shrunk]
            inputs, agree = self._rational, self._agree
        try:
            states, shown = self._both("start", [[*settings, *inputs()]] * 2, exact)
            agree(shown, "at the start")
            for step in range(1, steps + 1):
                grads, states = (
                    inputs(),
                    self._other_states(states) if exact and step > 1 else states,
                )
                args = [[*settings, *state, *grads] for state in states]
                before, (states, shown) = states, self._both("step", args, exact)
                agree(shown, f"after step {step}")
                if exact:
                    self._check_relation(states, f"after step {step}")
                if exact and (step > 1 or self.case.get("after_first") is None):
                    self._check_forms(
                        self._form_inputs(settings, grads, before), before, states, shown
                    )
            self.checked.points += exact
        except equations.Unclear as error:
            self.checked.skipped[f"a point at which {error} cannot be compared"] = None

    def example(self, example: Case) -> None:
        """Follows both sides along an example, which has to part them."""
        leaf, index = self.programs.paths.index(example["leaf"]), tuple(example["index"])
        moves = [row["grads"] for row in example["grads"] for _ in range(row["steps"])]
        size = sum(int(np.prod(leaf.shape)) for leaf in self.programs.shapes)
        if len(moves) * size > _MOST_STEPS:
            self.checked.skipped["an example of many steps"] = None
            return
        for exact in (True, False):
            try:
                lhs, rhs = self._along(example, moves, exact)
            except equations.Unclear:
                continue
            a: Any = lhs[leaf][index]
            b: Any = rhs[leaf][index]
            if _do_not_overlap(a, b) if exact else _is_more_than_rounding(a, b):
                self.checked.examples += 1
                return
        self.checked.skipped["an example that does not part them here"] = None

    def _along(self, example: Case, moves: Sequence[Case], exact: bool) -> Pair:
        """Returns the parameters after an example's last step."""

        def values(row: Case) -> list[Array]:
            pairs = list(zip(row.values(), self.programs.shapes, strict=True))
            arrays = [np.asarray(value, float) for value, _ in pairs]
            if exact:
                return [equations.balls(array) for array in arrays]
            return [a.astype(leaf.dtype) for a, (_, leaf) in zip(arrays, pairs, strict=True)]

        states, shown = self._both("start", [values(example["params"])] * 2, exact)
        for grads in map(values, moves):
            states, shown = self._both("step", [[*state, *grads] for state in states], exact)
        return shown

    def _both(self, part: str, args: Sequence[list[Array]], exact: bool) -> tuple[Pair, Pair]:
        """Returns states and parameters of both sides."""
        pairs = list(zip(self.programs.sides, args, strict=True))
        lhs, rhs = (equations.run(getattr(side, part), row, exact) for side, row in pairs)
        ours, theirs = (len(side.paths) for side in self.programs.sides)
        return (lhs[:ours], rhs[:theirs]), (lhs[ours:], rhs[theirs:])

    def _rational(self) -> list[Array]:
        return [self._fractions(-1, leaf.shape) for leaf in self.programs.shapes]

    def _fractions(self, least_sign: int, shape: tuple[int, ...]) -> Array:
        sixteenths = self.rng.integers(1, 33, shape) * self.rng.choice([least_sign, 1], shape)
        return np.asarray(np.frompyfunc(lambda n: arb(fmpq(int(n), 16)), 1, 1)(sixteenths))

    def _special(self) -> list[Array]:
        arrays: list[Array] = []
        for leaf in self.programs.shapes:
            values, chosen = self.rng.standard_normal(leaf.shape), self.rng.random(leaf.shape) < 0.3
            with np.errstate(all="ignore"):
                odd = np.where(chosen, self.rng.choice(_SPECIAL, leaf.shape), values)
                arrays.append(odd.astype(leaf.dtype))
        return arrays

    def _other_states(self, states: Pair) -> Pair:
        """Returns other states that are related: each symbol's numbers times random ones.

        The same ones where a leaf is a function of others, or a counter's state decides what is
        related, which symbols do not say.
        """
        by_counter = any(row.get("where") for row in self.case["obligations"])
        if self.case["derived"] or by_counter:
            return states
        factors: dict[str | None, Array] = {}

        def multiply(name: str | None, value: Array) -> Array:
            if name is None or value.dtype != object or self.case["relation_given"]:
                return value
            if name not in factors:
                factors[name] = self._fractions(1, value.shape)
            return np.asarray(value * factors[name])

        ours, theirs = self.case["symbols"]
        return [*map(multiply, ours, states[0])], [*map(multiply, theirs, states[1])]

    # Comparisons

    def _agree(self, shown: Pair, when: str) -> None:
        for path, a, b in zip(self.programs.paths, *shown, strict=True):
            self._equal(a, b, f"{path} {when}")

    def _check_relation(self, states: Pair, when: str) -> None:
        ours, theirs = self.case["symbols"]
        for i, name in enumerate(ours):
            for j, other in enumerate(theirs):
                if name is not None and name == other:
                    paths = self.programs.sides[0].paths[i], self.programs.sides[1].paths[j]
                    self._equal(states[0][i], states[1][j], f"{' and '.join(paths)} {when}")

    def _equal(self, a: Array, b: Array, where: str) -> None:
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = (np.asarray(jax.random.key_data(key)) for key in (a, b))
        for index in np.ndindex(a.shape):
            self._close(a[index], b[index], f"{where} at {list(index)}")

    def _close(self, a: Any, b: Any, where: str) -> None:
        a, b = (value if isinstance(value, arb) else arb(float(value)) for value in (a, b))
        if not (a.is_finite() and b.is_finite()):
            self.checked.skipped[f"{where}: {a.str(3)} and {b.str(3)}"] = None
            return
        if not a.overlaps(b):
            raise CertificateError(f"{where}: {a.str(12)} on the left, {b.str(12)} on the right")
        if max(a.rad(), b.rad()) > _DIGITS * max(1, abs(float(a.mid()))):
            self.checked.skipped[f"{where}: too few digits"] = None
            return
        self.checked.values += 1

    def _form_inputs(
        self, settings: list[Array], grads: list[Array], before: Pair
    ) -> dict[str, Array]:
        """Returns the values of the names in normal forms."""
        inputs = dict(zip(sorted(self.programs.numbers), settings, strict=True))
        paths = [path.replace("params", "grads", 1) for path in self.programs.paths]
        inputs |= dict(zip(paths, grads, strict=True))
        for names, values in zip(self.case["symbols"], before, strict=True):
            inputs |= {n: value for n, value in zip(names, values, strict=True) if n is not None}
        least = self.case.get("after_first") or {}  # what a count is above a number
        return inputs | {name: inputs[name] - least[name] for name in least if name in inputs}

    def _check_forms(
        self, inputs: dict[str, Array], before: Pair, states: Pair, shown: Pair
    ) -> None:
        forms = Forms(self.case, inputs)
        for row in self.case["obligations"]:
            counters = row.get("where", [])  # else it is about other states of these
            here = all(int(before[side][leaf]) == value for side, leaf, value in counters)
            if row["when"] != "step" or row.get("terms") is None or not here:
                continue
            for side, place in enumerate(row["places"]):
                of_relation = self.case["relation_given"] and side == 0 and not row.get("params")
                if place is None or of_relation:
                    continue  # what the relation makes, which the side does not hold
                array = (shown if row.get("params") else states)[side][place]
                index = tuple(int(self.rng.integers(size)) for size in array.shape)
                symbols = {f"i{axis}": at for axis, at in enumerate(index)}
                try:
                    value = forms.value(row["terms"][side], symbols)
                except (NotEvaluable, KeyError) as error:
                    self.checked.skipped[f"normal form of {row['leaf']}: {error}"] = None
                    continue
                self._close(value, array[index], f"normal form of {row['leaf']}")
                self.checked.forms += 1

    def _same_bits(self, shown: Pair, when: str) -> None:
        for path, a, b in zip(self.programs.paths, *shown, strict=True):
            same = (np.isnan(a) & np.isnan(b)) | ((a == b) & (np.signbit(a) == np.signbit(b)))
            for index in np.argwhere(~same)[:1]:
                here = tuple(map(int, index))
                raise CertificateError(
                    f"{path} at {list(here)} {when}: {a[here]!r} on the left, {b[here]!r} on the "
                    "right, and the certificate says identical"
                )
            self.checked.bits += a.size


def _do_not_overlap(a: arb, b: arb) -> bool:
    return a.is_finite() and b.is_finite() and not a.overlaps(b)


def _is_more_than_rounding(a: np.floating, b: np.floating) -> bool:
    """True if rounding does not explain, in a few steps, how far apart two numbers are."""
    x, y, little = float(a), float(b), 64 * float(jnp.finfo(a.dtype).eps)
    return np.isfinite(x) != np.isfinite(y) or abs(x - y) > little * max(abs(x), abs(y))
