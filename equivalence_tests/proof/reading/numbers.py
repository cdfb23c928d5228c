"""Checks that a side is the same program with numbers as with symbols in their place."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.interpreter.run import run
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    Program,
    trace_side,
)
from equivalence_tests.sides.precision import float64

_STEPS = 2
_ROUNDING = 1e-2  # of the largest entry: in half precision, where rounding may also grow
_ROUNDING_64 = 1e-6


def check_numbers(make: MakeSide, program: Program, inputs: Inputs) -> None:
    """Checks that a side does not tell numbers from the symbols of a proof."""
    inputs = _beside(program, inputs)
    if not inputs.numbers or _agree(make, program, inputs, _ROUNDING):
        return
    there = inputs.wide
    with float64():
        try:
            same = _agree(make, trace_side(make, there, program.name), there, _ROUNDING_64)
        except ProofError:  # it does not run in float64
            same = False
    if not same:
        raise ProofError(
            f"{program.name} side ({program.kind}): with {_text(inputs)} as numbers of Python it "
            "is another program than with symbols in their place, as one is that asks "
            "isinstance(rate, float); a proof for all numbers would be of the other program. Let "
            "it decide by values, or prove it without hyper_params"
        )


def _beside(program: Program, inputs: Inputs) -> Inputs:
    """Inputs without the numbers about which the side has asked, which are cases of their own."""
    numbers = dict(inputs.numbers)
    for name, asked in program.asked:
        if numbers.get(name) == asked:
            numbers[name] = asked + 0.25 + abs(asked) / 7
    return replace(inputs, numbers=numbers)


def _agree(make: MakeSide, program: Program, inputs: Inputs, rounding: float) -> bool:
    """True if a side computes the same, rounding aside, with symbols and with numbers."""
    numbers = replace(inputs, numbers={}, fixed={**inputs.numbers, **inputs.fixed})
    concrete = trace_side(make, numbers, program.name)
    if concrete.paths != program.paths:
        return False
    pairs = zip(_results(program, inputs), _results(concrete, numbers), strict=True)
    return all(_is_near(one, other, rounding) for one, other in pairs)


def _results(program: Program, inputs: Inputs) -> list[np.ndarray]:
    """The states and parameters of a side at its start and after some steps."""
    rng = np.random.default_rng(0)
    avals: Sequence[Any] = program.start.in_avals  # those of the symbols come first
    symbols = [
        np.asarray(inputs.numbers[name], aval.dtype)
        for name, aval in zip(sorted(inputs.numbers), avals, strict=False)
    ]

    def draw() -> list[np.ndarray]:
        return [np.asarray(rng.normal(size=leaf.shape), leaf.dtype) for leaf in inputs.shapes]

    results = run(program.start, [*symbols, *draw()])
    seen = list(results)
    for _ in range(_STEPS):
        results = run(program.step, [*symbols, *results[: len(program.paths)], *draw()])
        seen += results
    return seen


def _is_near(one: np.ndarray, other: np.ndarray, rounding: float) -> bool:
    if one.shape != other.shape or not jnp.issubdtype(one.dtype, jnp.number):
        return one.shape == other.shape
    lhs, rhs = (np.asarray(array, np.float64) for array in (one, other))
    scale = max(
        (abs(number) for number in rhs.reshape(-1).tolist() if math.isfinite(number)), default=0
    )
    return bool(np.allclose(lhs, rhs, rtol=0, atol=rounding * scale, equal_nan=True))


def _text(inputs: Inputs) -> str:
    return ", ".join(f"{name} = {number:g}" for name, number in inputs.numbers.items())
