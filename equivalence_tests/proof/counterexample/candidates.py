"""Inputs on which two sides may differ: small and round ones, and numbers of their programs."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.proof.dtypes import is_float, is_integer
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.reading.sides import Inputs, Program

STEPS = 4
Grads = list[list[np.ndarray]]
Candidate = tuple[list[np.ndarray], Grads]
Fill = Callable[[jax.ShapeDtypeStruct], float | np.ndarray]
_COMPARED = frozenset(
    ("lt", "le", "gt", "ge", "eq", "ne", "max", "min", "clamp", "rem", "div", "sub")
)
_FARTHEST = 2**17  # steps
_MOST_NUMBERS, _MOST_PRODUCTS = 24, 6  # of steps
_LARGE, _TINY = 1e3, 1e-3  # numbers that the simple candidates come nowhere near
_MOST_SIZES = 6
_MOST_VALUES = 12


def simple(inputs: Inputs) -> Iterator[Candidate]:
    """Inputs to try first, the simplest ones before all others."""
    steps, signs = _steps, alternating
    ones, zeros = (lambda leaf: 1.0), (lambda leaf: 0.0)
    pairs: list[tuple[Fill, Fill]] = [
        (ones, ones),
        (zeros, ones),
        (signs, steps),
        (steps, signs),
        (steps, lambda leaf: 1e-8 * signs(leaf)),
        (signs, lambda leaf: steps(leaf) - 1),
        (steps, lambda leaf: 1e4 * signs(leaf)),
    ]
    for start, move in pairs:
        yield full_arrays(inputs.shapes, start), [full_arrays(inputs.shapes, move)] * STEPS
    rng = np.random.default_rng(7)  # no leaf like another, no step either: leaves may be mixed up
    rows = [[rng.integers(-8, 9, leaf.shape) / 4 for leaf in inputs.shapes] for _ in range(9)]
    yield rows[0], rows[1:]


def of_sizes(inputs: Inputs, wanted: Sequence[float]) -> Iterator[Candidate]:
    """Gradients, then parameters, that are 0 or around the numbers that a program has."""
    zeros = full_arrays(inputs.shapes, lambda leaf: 0.0)
    yield zeros, [zeros] * STEPS
    for near in ([factor * size for factor in (4.0, 0.25)] for size in wanted):
        for each in near:
            grads = full_arrays(inputs.shapes, lambda leaf, each=each: each * alternating(leaf))
            yield full_arrays(inputs.shapes, _steps), [grads] * STEPS
        for each in near:
            start = full_arrays(inputs.shapes, lambda leaf, each=each: each * alternating(leaf))
            yield start, [full_arrays(inputs.shapes, lambda leaf, each=each: each)] * STEPS


def sizes(sides: Sequence[Program]) -> list[float]:
    """The large and the tiny numbers of programs, by their sizes."""
    numbers = {abs(number) for side in sides for number in _numbers(side.step, compared=False)}
    extreme = [n for n in numbers if np.isfinite(n) and (n > _LARGE or 0 < n < _TINY)]
    return sorted(extreme, key=lambda n: (-abs(np.log10(n)), n))[:_MOST_SIZES]


def step_numbers(sides: Sequence[Program]) -> list[int]:
    """The numbers of steps after which programs may change their behaviour, in order."""
    compared = {n for side in sides for n in compared_numbers(side) if n == int(n) and n > 1}
    dtypes = [leaf.dtype for side in sides for leaf in side.avals if is_integer(leaf.dtype)]
    compared |= {float(jnp.iinfo(dtype).max) for dtype in dtypes}
    products = {a * b for a, b in itertools.combinations(sorted(compared), 2)} - compared

    def late_steps(numbers: set[float], most: int) -> list[int]:
        return sorted(int(n) for n in numbers if STEPS < n <= _FARTHEST)[:most]

    return sorted(late_steps(compared, _MOST_NUMBERS) + late_steps(products, _MOST_PRODUCTS))


def other_settings(
    numbers: Mapping[str, float], sides: Sequence[Program]
) -> Iterator[dict[str, float]]:
    """Yields hyper-parameters of which one is of another sign, size or value."""
    compared = {n for side in sides for n in compared_numbers(side)}
    asked = sorted((n for n in compared if n), key=lambda n: (abs(n), n))[-_MOST_VALUES // 2 :]
    for name, number in numbers.items():
        scaled = [factor * number for factor in (-1.0, 1.37, 30.0, 1e-3)]
        for other in dict.fromkeys([*scaled, *asked, *(2 * n for n in asked)]):
            if other != number:
                yield {**numbers, name: other}


def compared_numbers(side: Program) -> set[float]:
    """Returns the numbers with which a side's step compares something."""
    return {n for n in _numbers(side.step, compared=True) if np.isfinite(n)}


def exact_values(
    shapes: Sequence[jax.ShapeDtypeStruct], sides: Sequence[Program]
) -> Iterator[Candidate]:
    """Yields gradients, then parameters, that are exactly a number that a program compares with."""
    dtypes = [leaf.dtype for leaf in shapes]
    numbers = {n for side in sides for n in compared_numbers(side)}
    smallest = sorted(numbers, key=lambda n: (abs(n), n))[:_MOST_VALUES]
    between = [(a + b) / 2 for a, b in itertools.pairwise(sorted(smallest))]
    for number in dict.fromkeys((*smallest, *between)):
        arrays = full_arrays(shapes, lambda leaf, number=number: number)
        with np.errstate(over="ignore"):  # in float16 some are infinite
            exactly = [a.astype(dtype) for a, dtype in zip(arrays, dtypes, strict=True)]
        ordinary = full_arrays(shapes, alternating)
        yield ordinary, [exactly, ordinary]
        yield exactly, [ordinary, ordinary]


def _numbers(program: AnyJaxpr, *, compared: bool) -> Iterator[float]:
    """The numbers of a program that something is compared with, or all fractions."""
    inner, consts = programs.jaxpr_and_consts(program)
    values = dict(zip(inner.constvars, consts, strict=True))
    for eqn in inner.eqns:
        calls = any(map(programs.is_jaxpr, eqn.params.values()))  # of a comparison, perhaps
        if not compared or eqn.primitive.name in _COMPARED or calls:
            for atom in eqn.invars:
                value = atom.val if isinstance(atom, core.Literal) else values.get(atom)
                dtype = programs.aval_of(atom).dtype
                wanted = is_float(dtype) or (compared and is_integer(dtype))
                if value is not None and np.ndim(value) == 0 and wanted:
                    yield float(np.asarray(value))
        for value in eqn.params.values():
            for each in value if isinstance(value, tuple) else (value,):
                if programs.is_jaxpr(each):
                    yield from _numbers(each, compared=compared)


def full_arrays(shapes: Sequence[jax.ShapeDtypeStruct], value: Fill) -> list[np.ndarray]:
    """Returns an array of each shape, filled by a function of the shape."""
    return [np.broadcast_to(value(leaf), leaf.shape).astype(float) for leaf in shapes]


def _steps(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    return (1.0 + np.arange(np.prod(leaf.shape, dtype=int))).reshape(leaf.shape)


def alternating(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    """Returns 0.5, -1, 1.5, -2 and so on."""
    values = _steps(leaf)
    return np.where(values % 2 == 0, -values, values) / 2
