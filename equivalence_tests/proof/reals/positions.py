"""Entries at positions that a program computes: each of a short axis is a case."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import jax

from equivalence_tests.proof.algebra.algebra import Algebra, Index, Rat
from equivalence_tests.proof.node import Node

MOST_POSITIONS = 16  # along an axis where positions are compared
Positions = Mapping[int, Rat]  # an axis -> the position along it
_CLIP, _DROP = jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.FILL_OR_DROP


class Entries(Protocol):
    """A graph's arrays, entry by entry, in an algebra."""

    @property
    def algebra(self) -> Algebra:
        """The algebra of the entries."""
        ...

    def entry(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """Returns the entry of an array at an index."""
        ...


def dynamic_slice(reals: Entries, node: Node, index: tuple[Index, ...]) -> Rat | None:
    """An entry of `dynamic_slice`, of slices as long as an axis or of length 1; None of others."""
    arg, *starts = node.args
    return _read(reals, arg, _slice_positions(reals, arg.shape, node.shape, starts), index)


def gather(reals: Entries, node: Node, index: tuple[Index, ...]) -> Rat | None:
    """An entry of `gather` at one position; None of others."""
    arg, numbers = node.args
    settings = node.settings
    dims = jax.lax.GatherDimensionNumbers(*settings["dimension_numbers"])
    axes, sizes = tuple(dims.start_index_map), settings["slice_sizes"]
    expected_sizes = [size if axis not in axes else 1 for axis, size in enumerate(arg.shape)]
    if len(numbers.shape) != 1 or tuple(dims.collapsed_slice_dims) != tuple(sorted(axes)):
        return None
    if list(sizes) != expected_sizes or settings["mode"] != _CLIP:
        return None
    start = _numbers(reals, numbers, axes)
    rest = iter(index)
    places = tuple(0 if axis in axes else next(rest) for axis in range(len(arg.shape)))
    return _read(reals, arg, {a: _clamp(reals, start[a], arg.shape[a] - 1) for a in axes}, places)


def dynamic_update_slice(reals: Entries, node: Node, index: tuple[Index, ...]) -> Rat | None:
    """An entry of `dynamic_update_slice`, likewise."""
    arg, update, *starts = node.args
    positions = _slice_positions(reals, arg.shape, update.shape, starts)
    if positions is None:
        return None
    here = reals.entry(update, tuple(0 if a in positions else i for a, i in enumerate(index)))
    return _choose_at(reals, positions, index, here, reals.entry(arg, index))


def scatter(reals: Entries, node: Node, index: tuple[Index, ...]) -> Rat | None:
    """An entry of `scatter` or of `scatter-add` at one position; None of others."""
    arg, numbers, update = node.args
    settings = node.settings
    dims = jax.lax.ScatterDimensionNumbers(*settings["dimension_numbers"])
    axes = tuple(dims.scatter_dims_to_operand_dims)
    rest = tuple(size for axis, size in enumerate(arg.shape) if axis not in axes)
    if len(numbers.shape) != 1 or tuple(dims.inserted_window_dims) != tuple(sorted(axes)):
        return None
    replaces = node.op == "scatter" and "update_jaxpr" not in settings
    if update.shape != rest or settings["mode"] != _DROP or not (replaces or node.op != "scatter"):
        return None
    before = reals.entry(arg, index)
    new = reals.entry(update, tuple(i for axis, i in enumerate(index) if axis not in axes))
    new = new if replaces else reals.algebra.add(before, new)
    return _choose_at(reals, _numbers(reals, numbers, axes), index, new, before)


def argmax(reals: Entries, node: Node, index: tuple[Index, ...]) -> Rat | None:
    """The position of the first of the largest entries along a short axis, or of the smallest."""
    (arg,), (axis,) = node.args, node.settings["axes"]
    if not 0 < arg.shape[axis] <= MOST_POSITIONS:
        return None
    algebra, sign = reals.algebra, reals.algebra.number(1 if node.op == "argmax" else -1)
    best, place = None, algebra.number(0)
    for at in range(arg.shape[axis]):
        entry = algebra.mul(sign, reals.entry(arg, (*index[:axis], at, *index[axis:])))
        larger = algebra.number(1) if best is None else algebra.positive(algebra.sub(entry, best))
        best = entry if best is None else algebra.choose(larger, entry, best)
        place = algebra.choose(larger, algebra.number(at), place)
    return place


def _numbers(reals: Entries, numbers: Node, axes: Sequence[int]) -> dict[int, Rat]:
    """The positions along axes, one entry of an array for each."""
    return {axis: reals.entry(numbers, (number,)) for number, axis in enumerate(axes)}


def _slice_positions(
    reals: Entries, shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Node]
) -> Positions | None:
    """The positions along axes of which a slice has one; None where it has more, but not all."""
    positions: dict[int, Rat] = {}
    for axis, (size, length, start) in enumerate(zip(sizes, shape, starts, strict=True)):
        if size == length:
            continue  # the start is moved to 0
        if size != 1:
            return None
        positions[axis] = _clamp(reals, reals.entry(start, ()), length - 1)
    return positions


def _clamp(reals: Entries, number: Rat, most: int) -> Rat:
    """A position that is moved to the nearest that there is."""
    algebra = reals.algebra
    return algebra.least(algebra.greatest(number, algebra.number(0)), algebra.number(most))


def _read(
    reals: Entries, arg: Node, positions: Positions | None, index: tuple[Index, ...]
) -> Rat | None:
    """The entry at positions, which are those of entries, and an index along the other axes."""
    if positions is None or any(arg.shape[axis] > MOST_POSITIONS for axis in positions):
        return None
    if not positions:
        return reals.entry(arg, index)
    (axis, number), *others = positions.items()
    algebra, rest = reals.algebra, dict(others)
    result = None
    for at in reversed(range(arg.shape[axis])):
        entry = _read(reals, arg, rest, (*index[:axis], at, *index[axis + 1 :]))
        if entry is None:
            return None
        here = algebra.zero(algebra.sub(number, algebra.number(at)))
        result = entry if result is None else algebra.choose(here, entry, result)
    return result


def _choose_at(
    reals: Entries, positions: Positions, index: Sequence[Index], new: Rat, before: Rat
) -> Rat:
    """One value where an index is at positions, and another elsewhere."""
    algebra, here = reals.algebra, reals.algebra.number(1)
    for axis, number in positions.items():
        there = algebra.sub(number, algebra.position(index[axis]))
        here = algebra.mul(here, algebra.zero(there))
    return algebra.choose(here, new, before)
