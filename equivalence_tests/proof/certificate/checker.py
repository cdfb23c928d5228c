"""Checks a certificate apart from the prover: both programs are run in exact arithmetic.

Both jaxprs are followed equation by equation on random inputs, with rational numbers and balls of
200 bits; parameters must agree after every step, states where the certificate relates them, and
both normal forms with what the programs compute. Where the certificate says identical, both are
run in their own dtype as well, with NaN, infinities, signed zeros and denormal numbers among the
inputs, and every bit must agree.

The certificate's scope is held to as well: its leaves and shapes must be those of the parameters,
and where it speaks of other shapes, the sides must agree for some of these.

Nothing of how a proof is found is asked: neither rules, nor algebra, nor induction. What is trusted
is in `TRUSTED`, and in what a check returns.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb, fmpq

from equivalence_tests.proof.algebra import normal_forms
from equivalence_tests.proof.dtypes import is_key
from equivalence_tests.proof.errors import NoRule, Unclear
from equivalence_tests.proof.interpreter import run as interpreter
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    check_inputs,
    trace_side,
)
from equivalence_tests.proof.scope import ANY, ANY_SIZE, GIVEN, MOST_AXES
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.metadata.trees import Params

Arrays = list[np.ndarray]
Pair = list[Arrays]  # of the left and of the right side
Number = arb | float | np.generic
_DIGITS = 1e-30
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, -1e-30, 1.0)


TRUSTED = (
    "JAX: that a traced program is what runs",
    "python-flint: balls of real numbers",
    "sides.adapt and proof.reading: from a side to its programs",
    "proof.interpreter and the `numbers` of proof.primitives: what an equation computes",
    "proof.dtypes.decimal: which number a floating-point constant means",
    "the certificate's relation and induction: that what holds of these inputs holds of all",
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
      skipped: what could not be checked, and why.
      trusted: what was not checked, and is taken for right.
    """

    points: int = 0
    shapes: int = 0
    values: int = 0
    forms: int = 0
    bits: int = 0
    skipped: dict[str, None] = field(default_factory=dict)
    trusted: tuple[str, ...] = TRUSTED


def check(
    certificate: str | Mapping[str, Any],
    left: SideLike | MakeSide,
    right: SideLike | MakeSide,
    params: Params,
    *,
    hyper_params: Mapping[str, float] | None = None,
    points: int = 2,
    steps: int = 3,
    seed: int = 0,
) -> Checked:
    """Checks the certificate of a proof, `proof.to_json()`, against both sides.

    Args:
      certificate: as text or as data.
      left: the left side, as it was handed to the prover.
      right: the right side.
      params: as they were handed to the prover.
      hyper_params: as they were handed to the prover.
      points: random inputs for each case.
      steps: steps from each.
      seed: of the inputs.

    Returns:
      What was checked.

    Raises:
      CertificateError: the programs do not compute what the certificate says.
    """
    data = json.loads(certificate) if isinstance(certificate, str) else certificate
    checked, rng = Checked(), np.random.default_rng(seed)
    pair: tuple[Any, Any] = (left, right)
    if hyper_params is None:
        pair = (lambda hp: left), (lambda hp: right)
    for case in data["cases"]:
        numbers = hyper_params or {}
        fixed = {name: case["fixed"][name] for name in case["fixed"]}
        inputs = check_inputs(params, {k: v for k, v in numbers.items() if k not in fixed}, fixed)
        names = data["names"]
        sides = tuple(
            trace_side(make, inputs, name) for make, name in zip(pair, names, strict=True)
        )
        _check_scope(data["scope"], inputs)
        if case["verdict"] not in ("identical", "equal over the reals"):
            continue
        for other in _other_shapes(data["scope"], inputs, rng):
            sides_there = tuple(
                trace_side(make, other, n) for make, n in zip(pair, names, strict=True)
            )
            with interpreter.precise():
                _Run({**case, "obligations": []}, sides_there, other, checked, rng).exactly(steps)
            checked.shapes += 1
        for _ in range(points):
            with interpreter.precise():
                _Run(case, sides, inputs, checked, rng).exactly(steps)
            if case["verdict"] == "identical":
                _Run(case, sides, inputs, checked, rng).bit_for_bit(steps)
    return checked


def _check_scope(scope: Mapping[str, Any], inputs: Inputs) -> None:
    """Raises unless the scope names the parameters' leaves, dtypes and shapes."""
    leaves = list(zip(inputs.paths, inputs.shapes, strict=True))
    expected = {path: [str(leaf.dtype), list(leaf.shape)] for path, leaf in leaves}
    actual = {path: [dtype, scope["shapes"].get(path)] for path, dtype in scope["leaves"].items()}
    if actual != expected:
        raise CertificateError(
            f"scope: the certificate is for {actual}, the parameters are {expected}. Check it with "
            "the parameters of its proof"
        )
    if scope["coverage"] not in (ANY, ANY_SIZE, GIVEN):
        raise CertificateError(f"scope: no such coverage: {scope['coverage']!r}")


def _other_shapes(
    scope: Mapping[str, Any], inputs: Inputs, rng: np.random.Generator
) -> Iterator[Inputs]:
    """Yields inputs of other shapes that the scope covers: no axes, the most, and two."""
    if scope["coverage"] == GIVEN:
        return
    for axes in (0, 2, MOST_AXES):
        sizes = tuple(int(size) for size in rng.integers(1, 3 if axes > 2 else 6, axes))
        params = jax.tree.map(
            lambda leaf, sizes=sizes: jax.ShapeDtypeStruct(sizes, leaf.dtype), inputs.params
        )
        yield replace(inputs, params=params)


class _Run:
    def __init__(
        self,
        case: Mapping[str, Any],
        sides: tuple[Program, ...],
        inputs: Inputs,
        checked: Checked,
        rng: np.random.Generator,
    ):
        self.case, self.sides, self.inputs = case, sides, inputs
        self.checked, self.rng = checked, rng

    def exactly(self, steps: int) -> None:
        """Follows both sides in exact arithmetic from one random input."""
        hyper = [interpreter.to_balls(np.asarray(v)) for v in self._hyper()]
        params = [self._rational(leaf.shape) for leaf in self.inputs.shapes]
        try:
            states, shown = self._both(lambda s: (s.start, [*hyper, *params]), exact=True)
            self._agree(shown, "at the start")
            for step in range(steps):
                grads = [self._rational(leaf.shape) for leaf in self.inputs.shapes]
                before = states
                states, shown = self._both(
                    lambda s, h=before, g=grads: (s.step, [*hyper, *h[self.sides.index(s)], *g]),
                    exact=True,
                )
                self._agree(shown, f"after step {step + 1}")
                self._check_relation(states, f"after step {step + 1}")
                if step > 0 or self.case.get("after_first") is None:
                    self._forms(hyper, before, grads, states, shown)
            self.checked.points += 1
        except NoRule as error:
            self.checked.skipped[f"exact arithmetic: {error}"] = None
        except Unclear as error:
            self.checked.skipped[f"a point at which {error} cannot be compared"] = None

    def bit_for_bit(self, steps: int) -> None:
        """Follows both sides in their own dtype, through special values."""
        hyper = [np.asarray(v, jnp.result_type(float)) for v in self._hyper()]
        params = [self._special(leaf) for leaf in self.inputs.shapes]
        try:
            states, shown = self._both(lambda s: (s.start, [*hyper, *params]), exact=False)
            self._same_bits(shown, "at the start")
            for step in range(steps):
                grads = [self._special(leaf) for leaf in self.inputs.shapes]
                states, shown = self._both(
                    lambda s, h=states, g=grads: (s.step, [*hyper, *h[self.sides.index(s)], *g]),
                    exact=False,
                )
                self._same_bits(shown, f"after step {step + 1}")
        except NoRule as error:
            self.checked.skipped[f"bits: {error}"] = None

    def _hyper(self) -> list[float]:
        """Hyper-parameters somewhat below those that were given."""
        numbers = self.inputs.numbers
        return [numbers[name] * int(self.rng.integers(8, 17)) / 16 for name in sorted(numbers)]

    def _rational(self, shape: tuple[int, ...]) -> np.ndarray:
        values = self.rng.integers(1, 33, shape) * self.rng.choice([-1, 1], shape)
        result = np.empty(shape, object)
        for index in np.ndindex(shape):
            result[index] = arb(fmpq(int(np.asarray(values)[index]), 16))
        return result

    def _special(self, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        values = np.asarray(self.rng.standard_normal(leaf.shape))
        chosen = np.asarray(self.rng.random(leaf.shape) < 0.3)
        odd = np.asarray(self.rng.choice(np.array(_SPECIAL), leaf.shape))
        with np.errstate(all="ignore"):
            return np.where(chosen, odd, values).astype(leaf.dtype)

    def _both(
        self, program: Callable[[Program], tuple[AnyJaxpr, Arrays]], *, exact: bool
    ) -> tuple[Pair, Pair]:
        states: Pair = []
        shown: Pair = []
        for side in self.sides:
            jaxpr, args = program(side)
            run = interpreter.exactly(jaxpr, args) if exact else interpreter.run(jaxpr, args)
            states.append(run[: len(side.paths)])
            shown.append(run[len(side.paths) :])
        return states, shown

    def _agree(self, shown: Pair, when: str) -> None:
        for path, a, b in zip(self.inputs.paths, *shown, strict=True):
            self._equal(a, b, f"{path} {when}")

    def _check_relation(self, states: Pair, when: str) -> None:
        ours, theirs = self.case["symbols"]
        for i, name in enumerate(ours):
            for j, other in enumerate(theirs):
                if name is not None and name == other:
                    where = f"{self.sides[0].paths[i]} and {self.sides[1].paths[j]} {when}"
                    self._equal(states[0][i], states[1][j], where)

    def _equal(self, a: np.ndarray, b: np.ndarray, where: str) -> None:
        if is_key(a.dtype):
            return
        a, b = np.asarray(a), np.asarray(b)
        for index in np.ndindex(a.shape):
            self._close(a[index], b[index], f"{where} at {list(index)}")
            self.checked.values += 1

    def _close(self, a: Number | np.ndarray, b: Number | np.ndarray, where: str) -> None:
        a, b = arb(_plain(a)), arb(_plain(b))
        if not a.is_finite() and not b.is_finite():
            return
        if not a.overlaps(b):
            raise CertificateError(f"{where}: {a.str(12)} on the left, {b.str(12)} on the right")
        if a.rad() > _DIGITS * max(1, abs(float(a.mid()))):
            self.checked.skipped[f"{where}: too few digits are left to tell"] = None

    def _forms(self, hyper: Arrays, before: Pair, grads: Arrays, states: Pair, shown: Pair) -> None:
        known = dict(zip(sorted(self.inputs.numbers), hyper, strict=True))
        paths = [path.replace("params", "grads", 1) for path in self.inputs.paths]
        known |= dict(zip(paths, grads, strict=True))
        for names, values in zip(self.case["symbols"], before, strict=True):
            pairs = zip(names, values, strict=True)
            known |= {name: value for name, value in pairs if name is not None}
        for name, least in (self.case.get("after_first") or {}).items():
            if name in known:  # what the count is above that number
                known[name] = known[name] - least
        for row in self.case["obligations"]:
            if row["when"] != "step" or row.get("terms") is None:
                continue
            if any(
                int(before[side][index]) != value for side, index, value in row.get("where", [])
            ):
                continue  # it is about other states of a counter
            source = shown if row.get("params") else states
            for side in (0, 1):
                if side == 0 and not row.get("params") and self.case["relation_given"]:
                    continue  # the relation's result, which the left side does not hold
                if row["places"][side] is None:
                    continue  # the relation's result as well
                array = source[side][row["places"][side]]
                if is_key(array.dtype):
                    continue
                array = np.asarray(array)
                index = tuple(int(self.rng.integers(size)) for size in array.shape)
                at = {f"i{axis}": i for axis, i in enumerate(index)}
                try:
                    value = normal_forms.evaluate(self.case, row["terms"][side], known, at)
                except (normal_forms.NotEvaluable, KeyError) as error:
                    self.checked.skipped[f"normal form of {row['leaf']}: {error}"] = None
                    continue
                self._close(value, array[index], f"normal form of {row['leaf']}")
                self.checked.forms += 1

    def _same_bits(self, shown: Pair, when: str) -> None:
        for path, a, b in zip(self.inputs.paths, *shown, strict=True):
            both_nan = np.isnan(a.astype(float)) & np.isnan(b.astype(float))
            same = both_nan | (_bits(a) == _bits(b))
            if not same.all():
                index = tuple(int(i) for i in np.argwhere(~same)[0])
                raise CertificateError(
                    f"{path} at {list(index)} {when}: {a[index]!r} on the left, {b[index]!r} on "
                    "the right, and the certificate says identical"
                )
            self.checked.bits += a.size


def _bits(array: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return flat.reshape(array.shape)


def _plain(value: Number | np.ndarray) -> arb | float:
    if isinstance(value, np.bool_ | np.integer | int):
        return int(value)
    return value if isinstance(value, arb) else float(value)
