"""Operations that move, sort, round or accumulate entries of arrays of exact numbers.

Where entries go, JAX itself says: it runs the primitive on integers in their place.
"""

import functools
import itertools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flint import arb
from jax import lax
from jax.extend.core import JaxprEqn

from equivalence_tests.proof.node import Settings
from equivalence_tests.proof.reading.programs import aval_of

Array = np.ndarray
Combine = Callable[..., arb]
# Those that only move entries, and those that put several in one place.
_MOVING = (
    "gather",
    "dynamic_slice",
    "dynamic_update_slice",
    "pad",
    "scatter",
    "rev",
    "split",
    "tile",
)
_SCATTER_COMBINE: dict[str, Combine] = {
    "scatter-add": lambda a, b: a + b,
    "scatter-sub": lambda a, b: a - b,
    "scatter-mul": lambda a, b: a * b,
    "scatter-min": lambda a, b: a.min(b),
    "scatter-max": lambda a, b: a.max(b),
}
_CUMULATIVE: dict[str, Combine] = {
    "cummax": lambda a, b: a.max(b),
    "cummin": lambda a, b: a.min(b),
}


def run_on_balls(eqn: JaxprEqn, args: Sequence[Array]) -> list[Array] | None:
    """The results of an operation on exact numbers; None without a rule for it.

    Args:
      eqn: its equation.
      args: arrays; exact numbers are arrays of objects.
    """
    name = eqn.primitive.name
    if name in _MOVING:
        return _move_entries(eqn, args)
    if name in _SCATTER_COMBINE or name.replace("_", "-") in _SCATTER_COMBINE:
        return [_scatter(eqn, args, _SCATTER_COMBINE[name.replace("_", "-")])]
    if name in _CUMULATIVE:
        return [_accumulate(eqn.params, args[0], _CUMULATIVE[name])]
    if name == "sort":
        return _sort(eqn.params, args)
    if name in ("argmax", "argmin"):
        return [_extreme(eqn, args[0])]
    if name == "round":
        even = eqn.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
        return [np.asarray(np.frompyfunc(lambda value: _nearest(value, even), 1, 1)(args[0]))]
    if name == "top_k":
        return _top_k(eqn, args[0])
    return None


_OF_SCATTER = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")


def _nearest(value: arb, even: bool) -> arb:
    """The nearest whole number, of two the even one or the one away from 0."""
    down = value.floor()
    if value - down != 0.5:
        return (value + 0.5).floor()
    odd = int(down.unique_fmpz() or 0) % 2 == 1
    return down + int(odd if even else value > 0)


def _scatter_numbers(eqn: JaxprEqn, function: Callable[..., jax.Array], *args: Array) -> np.ndarray:
    """A scatter of whole numbers."""
    options = {name: eqn.params[name] for name in _OF_SCATTER}
    return np.asarray(function(*map(jnp.asarray, args), **options))


def _bind(eqn: JaxprEqn, args: Sequence[Array]) -> list[np.ndarray]:
    if eqn.primitive.name == "scatter":
        return [_scatter_numbers(eqn, lax.scatter, *args)]
    results = eqn.primitive.bind(*map(jnp.asarray, args), **eqn.params)
    results = results if eqn.primitive.multiple_results else [results]
    return [np.asarray(each) for each in results]


def _move_entries(eqn: JaxprEqn, args: Sequence[Array]) -> list[Array]:
    """Moves entries by JAX's own primitive on their numbers from 1 on; 0 and less JAX fills in."""
    entries: list[arb] = []
    arguments: list[Array] = []
    for arg in args:
        if arg.dtype != object:
            arguments.append(arg)
            continue
        first = len(entries) + 1
        entries += list(arg.reshape(-1))
        arguments.append(np.arange(first, len(entries) + 1, dtype=np.int32).reshape(arg.shape))
    results = []
    for numbers in _bind(eqn, arguments):
        result = np.empty(numbers.shape, object)
        for index in np.ndindex(numbers.shape):
            number = int(numbers[index])
            result[index] = entries[number - 1] if number > 0 else arb("nan")
        results.append(result)
    return results


def _scatter(eqn: JaxprEqn, args: Sequence[Array], combine: Combine) -> Array:
    """Each update where JAX puts a 1 in its place."""
    operand, indices, updates = args
    result = np.empty(operand.shape, object)
    result[...] = operand
    for index in np.ndindex(updates.shape):
        marks = np.zeros(updates.shape, np.int32)
        marks[index] = 1
        at = _scatter_numbers(
            eqn, lax.scatter_add, np.zeros(operand.shape, np.int32), indices, marks
        )
        for target in np.argwhere(at):
            where = tuple(int(i) for i in target)
            result[where] = combine(result[where], updates[index])
    return result


def _accumulate(params: Settings, array: Array, combine: Combine) -> Array:
    """Returns a running maximum, minimum or the like along an axis."""
    axis, result = params["axis"], array.copy()
    rows = np.moveaxis(result, axis, 0)
    order = range(len(rows))
    steps = list(reversed(order)) if params["reverse"] else list(order)
    spread = np.frompyfunc(combine, 2, 1)
    for before, here in itertools.pairwise(steps):
        rows[here] = spread(rows[before], rows[here])
    return result


def _overlap(first: arb, second: arb) -> bool:
    exact = first.is_exact() and second.is_exact()
    return not exact and first.overlaps(second)


def _order(values: Sequence[arb | int]) -> list[int]:
    """The stable order of values.

    Raises:
      ValueError: two overlap.
    """

    def compare(a: int, b: int) -> int:
        first, second = values[a], values[b]
        if isinstance(first, arb) and isinstance(second, arb) and _overlap(first, second):
            raise ValueError("an order of numbers that are too close")
        return -1 if first < second else int(first > second)

    return sorted(range(len(values)), key=functools.cmp_to_key(compare))


def _sort(params: Settings, args: Sequence[Array]) -> list[Array] | None:
    """Arrays in the order of the first."""
    if params["num_keys"] != 1:
        return None
    axis = params["dimension"]
    moved_args = [np.moveaxis(arg, axis, -1) for arg in args]
    results = [each.copy() for each in moved_args]
    for index in np.ndindex(moved_args[0].shape[:-1]):
        order = _order(list(moved_args[0][index]))
        for result, arg in zip(results, moved_args, strict=True):
            result[index] = arg[index][order]
    return [np.moveaxis(result, -1, axis) for result in results]


def _extreme(eqn: JaxprEqn, array: Array) -> np.ndarray:
    """Returns the index of the largest or the smallest, the first of equal ones."""
    (axis,) = eqn.params["axes"]
    rows = np.moveaxis(array, axis, -1)
    result = np.empty(rows.shape[:-1], aval_of(eqn.outvars[0]).dtype)
    for index in np.ndindex(result.shape):
        values = list(rows[index])
        if eqn.primitive.name == "argmax":
            values = [-value for value in values]
        result[index] = _order(values)[0]
    return result


def _top_k(eqn: JaxprEqn, array: Array) -> list[Array]:
    """The largest, and where they are."""
    k = eqn.params["k"]
    values = np.empty((*array.shape[:-1], k), object)
    positions = np.empty(values.shape, np.int32)
    for index in np.ndindex(array.shape[:-1]):
        order = _order([-value for value in array[index]])[:k]
        values[index], positions[index] = array[index][order], order
    return [values, positions]
