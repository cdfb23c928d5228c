"""Sizes at which a program does something else, found in two sides before they are compared.

A program may ask for shapes in Python: Adafactor factors from 128 on. What is never that large
never runs. Candidates are sizes that double, ranks, and the numbers in the sides'
source and settings; of these the smallest count at which one of the two is another program.
"""

import itertools
import math
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from equivalence_tests.sides.adapt import SideLike, as_side
from equivalence_tests.sides.held_values import functions_within, settings_of
from equivalence_tests.sides.inputs import problems
from equivalence_tests.sides.side import Side
from optax_bridge.metadata.trees import Params, PyTree, Updates

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Number:
    """A number in a program; `of_shape` if it is the size, a root of it, or one over these."""

    value: float
    of_shape: bool = field(compare=False)


Outline = tuple[str | Number, ...]

_LARGEST = 2**18  # elements of a tensor: what is larger takes too long to be tried by default
_MOST = 8  # shapes that are added
_MOST_RANKS = 8
_RANKS = (1, 2, 3, 4)  # in which each axis is made as long as a number says
_UNTRACED = 6  # shapes that are added for a side that cannot be traced
_RESHAPING = {"broadcast_in_dim", "reshape", "squeeze", "transpose"}

# The prover's own: few, as each is proved by itself.
_PROVED: dict[str, Shape] = {"kernel": (4, 3), "bias": (3,), "scalar": ()}


def default_params(*sides: SideLike) -> tuple[Params, Params]:
    """Returns parameters that reach every branch on a size: for runs, and shapes for a proof."""
    few: Params = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in _PROVED.items()}
    params = problems.odd_tree(dtypes=("float32",))
    shapes = sizes_reached(sides, [np.shape(leaf) for leaf in jax.tree.leaves(params)])
    if shapes:
        rng = np.random.default_rng(2)
        named = {"x".join(map(str, shape)): shape for shape in shapes}
        params["reached"] = {
            name: rng.standard_normal(shape).astype(np.float32) for name, shape in named.items()
        }
        few["reached"] = {n: jax.ShapeDtypeStruct(s, jnp.float32) for n, s in named.items()}
    return params, few


def sizes_reached(sides: Iterable[SideLike], usual: Sequence[Shape]) -> list[Shape]:
    """Returns shapes at which a side is another program than at any of the usual ones."""
    reached: list[Shape] = []
    for side in sides:
        functions = as_side(side)
        numbers = sorted(_numbers(side), key=str)
        if not functions.compiled:  # to trace it would change what it counts in Python
            reached += list(_shapes_near(numbers))[:_UNTRACED]
            continue
        outline = _Outlines(functions)
        outlines = [here for here in map(outline, usual) if here is not None]
        for shape in sorted(_candidates(outline, numbers), key=lambda s: (math.prod(s), len(s))):
            here = outline(shape)
            if here is not None and not any(_are_alike(here, other) for other in outlines):
                outlines.append(here)
                reached.append(shape)
    return list(dict.fromkeys(reached))[:_MOST]


class _Outlines:
    """The outline of a side's program by the shape of its parameter, each traced once."""

    def __init__(self, side: Side):
        self.side = side
        self.known: dict[Shape, Outline | None] = {}

    def __call__(self, shape: Shape) -> Outline | None:
        """Returns operations and numbers; None of an error."""
        if shape not in self.known:
            try:
                self.known[shape] = self._trace(shape)
            except Exception:  # a shape that the side does not take is not run
                self.known[shape] = None
        return self.known[shape]

    def _trace(self, shape: Shape) -> Outline:
        def take_first_step(params: Params, grads: Updates) -> PyTree:
            return self.side.view(self.side.step(self.side.init(params), grads))

        tree = {"w": jax.ShapeDtypeStruct(shape, jnp.float32)}
        with warnings.catch_warnings(action="ignore"):  # of a parameter that no user has
            program = jax.make_jaxpr(take_first_step)(tree, tree)
        return tuple(_operations(program.jaxpr, _follows_from(shape)))


def _are_alike(one: Outline | None, other: Outline | None) -> bool:
    """True if programs have the same operations, and numbers that are equal or of their shapes."""
    if one is None or other is None:
        return one is other
    return len(one) == len(other) and all(
        a == b or (isinstance(a, Number) and isinstance(b, Number) and a.of_shape and b.of_shape)
        for a, b in zip(one, other, strict=True)
    )


def _operations(jaxpr: core.Jaxpr, is_of_shape: Callable[[float], bool]) -> Iterator[str | Number]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _RESHAPING:
            continue
        yield eqn.primitive.name
        for atom in eqn.invars:
            if isinstance(atom, core.Literal) and np.ndim(atom.val) == 0:
                number = float(np.asarray(atom.val).astype(np.float64))
                yield Number(number, is_of_shape(number))
        for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_program):
            if _is_program(value):
                yield from _operations(getattr(value, "jaxpr", value), is_of_shape)


def _is_program(value: object) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def _follows_from(shape: Shape) -> Callable[[float], bool]:
    """Returns a test for numbers such as the size, one over it, and the roots of both; not 1."""
    products = {
        float(math.prod(some))
        for count in range(1, len(shape) + 1)
        for some in itertools.combinations(shape, count)
    }
    powers = [power for p in products - {0.0, 1.0} for power in (p, 1 / p, math.sqrt(p), p**-0.5)]

    def is_of_shape(number: float) -> bool:
        return any(math.isclose(number, one, rel_tol=1e-6) for one in powers)

    return is_of_shape


def _candidates(outline: _Outlines, numbers: Sequence[int | Shape]) -> Iterator[Shape]:
    for rank in range(_MOST_RANKS + 1):
        yield (2,) * rank
    yield from _shapes_near(numbers)
    for shape_of in (_long_axis(rank, axis) for rank in (1, 2, 3) for axis in (*range(rank), None)):
        last = 1
        while math.prod(shape_of(2 * last)) <= _LARGEST // 16:
            if not _are_alike(outline(shape_of(2 * last)), outline(shape_of(last))):
                yield shape_of(_smallest(outline, shape_of, last, 2 * last))
            last *= 2


def _long_axis(rank: int, axis: int | None) -> Callable[[int], Shape]:
    """Returns from a size the shape with that size along one axis, or along all, else 2."""
    return lambda size: tuple(size if axis in (None, other) else 2 for other in range(rank))


def _smallest(outline: _Outlines, shape_of: Callable[[int], Shape], low: int, high: int) -> int:
    """Returns the smallest size above `low` with the outline of `high`."""
    there = outline(shape_of(high))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle) if _are_alike(outline(shape_of(middle)), there) else (middle, high)
        )
    return high


def _shapes_near(numbers: Sequence[int | Shape]) -> Iterator[Shape]:
    """Yields shapes that a comparison with a number, or with a shape, may be about."""
    sizes = [number for number in numbers if isinstance(number, int)]
    shapes = [number for number in numbers if isinstance(number, tuple)]
    for size in sizes:
        shapes += [(size,), (size + 1,), (2, size), (size, size)]
    for shape_of in (_long_axis(rank, axis) for rank in _RANKS for axis in range(rank)):
        shapes += [shape_of(size + more) for size in sizes for more in (0, 1)]
    yield from (shape for shape in shapes if 0 < math.prod(shape) <= _LARGEST)


def _numbers(side: SideLike) -> set[int | Shape]:
    """Returns whole numbers and shapes in the source or the settings of a side."""
    numbers: set[int | Shape] = set()
    for value in settings_of(side).values():
        numbers |= {value} if type(value) is int else set()
    settings = getattr(getattr(side, "hyper_params", None), "__dict__", {})
    numbers |= {value for value in settings.values() if type(value) is int}
    for function in functions_within(side):
        if (function.__module__ or "").partition(".")[0] not in ("jax", "flax", "numpy"):
            numbers |= set(_constants(function.__code__))
    return {n for n in numbers if isinstance(n, tuple) or 5 < n <= _LARGEST}


def _constants(code: types.CodeType) -> Iterator[int | Shape]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _constants(constant)
        elif type(constant) is int:
            yield constant
        elif isinstance(constant, str) and constant.isdecimal() and len(constant) < 9:
            yield int(constant)
        elif isinstance(constant, tuple | frozenset):
            if _is_shape(constant):
                yield constant
            yield from (each for each in constant if _is_shape(each) or type(each) is int)


def _is_shape(value: object) -> TypeGuard[Shape]:
    return isinstance(value, tuple) and len(value) > 1 and all(type(n) is int for n in value)
