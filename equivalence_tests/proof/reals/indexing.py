# pyright: strict
"""Symbolic indices of arrays, and where operations that move entries read."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from equivalence_tests.proof.algebra.atoms import Index
from equivalence_tests.proof.node import Node


def indices(shape: Sequence[int], name: str = "i") -> tuple[Index, ...]:
    """The general index of an array: a symbol for each axis, 0 for an axis of length 1."""
    return tuple(0 if size == 1 else f"{name}{axis}" for axis, size in enumerate(shape))


def reshaped_index(
    old: Sequence[int], new: Sequence[int], index: Sequence[Index]
) -> tuple[Index, ...] | None:
    """Returns the index before a reshape of an entry after it; None if it has no simple form."""
    if 0 in (*old, *new):
        return None
    source: list[Index] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        size_old = size_new = 1
        while i < len(old) and old[i] == 1:
            source.append(0)
            i += 1
        while j < len(new) and new[j] == 1:
            j += 1
        a, b = i, j
        if i == len(old) and j == len(new):
            break
        if i == len(old) or j == len(new):
            return None
        size_old, size_new = old[i], new[j]
        i, j = i + 1, j + 1
        while size_old != size_new:
            if size_old < size_new:
                size_old *= old[i]
                i += 1
            else:
                size_new *= new[j]
                j += 1
        if i - a == 1:  # its digits are the new indices
            parts = [(index[k], int(np.prod(new[k + 1 : j]))) for k in range(b, j) if new[k] != 1]
            source.append(parts[0][0] if len(parts) == 1 else _join(parts, size_new))
        elif j - b == 1:
            for k in range(a, i):
                stride = int(np.prod(old[k + 1 : i]))
                digit = _digit(index[b], stride, old[k], size_old)
                source.append(0 if old[k] == 1 else digit)
        else:
            return None
    return tuple(source)


def _digit(index: Index, stride: int, size: int, total: int) -> Index:
    """A digit of an index, `index // stride % size`."""
    if isinstance(index, int):
        return index // stride % size
    if isinstance(index, tuple) and index[0] == "join":
        strides = index[2::2]
        above = (total, *strides)
        falling = all(high > low for high, low in itertools.pairwise(above))  # no shifted index
        for part, part_stride, higher in zip(index[1::2], strides, above, strict=False):
            if falling and part_stride == stride and higher == stride * size:
                return part
    # Of the first digit nothing is to be taken off: `total` in the place of its size says so.
    return ("of", index, stride, total if stride * size == total else size)


def _join(parts: list[tuple[Index, int]], total: int) -> Index:
    """The index below `total` with these digits, each with its stride."""
    if all(isinstance(part, int) for part, _ in parts):
        return sum(part * stride for part, stride in parts if isinstance(part, int))
    first, strides = parts[0][0], [stride for _, stride in parts]
    if isinstance(first, tuple) and first[0] == "of" and first[3] == total:
        sizes = [strides[i] // strides[i + 1] for i in range(len(parts) - 1)]
        of_one = [("of", first[1], *each) for each in zip(strides, (total, *sizes), strict=True)]
        if [part for part, _ in parts] == of_one:  # all digits of one index, put together again
            return first[1]
    return ("join", *(item for pair in parts for item in pair))


def shift(index: Index, by: int) -> Index:
    """An index further on."""
    return _affine(index, 1, by)


def _affine(index: Index, stride: int, by: int) -> Index:
    """`stride * index + by`."""
    if isinstance(index, int):
        return stride * index + by
    if isinstance(index, tuple) and index[0] == "join" and len(index) == 5 and index[4] == 1:
        _, inner, inner_stride, inner_by, _ = index
        if isinstance(inner_by, int):
            return _affine(inner, stride * inner_stride, stride * inner_by + by)
    return index if (stride, by) == (1, 0) else ("join", index, stride, by, 1)


def _reversed_index(node: Node, index: tuple[Index, ...]) -> tuple[Index, ...]:
    axes = node.settings["dimensions"]
    rows = enumerate(zip(index, node.shape, strict=True))
    return tuple(_affine(i, -1, size - 1) if axis in axes else i for axis, (i, size) in rows)


def _broadcast(node: Node, index: tuple[Index, ...]) -> tuple[Index, ...]:
    dims = node.settings["broadcast_dimensions"]
    pairs = zip(node.args[0].shape, dims, strict=True)
    return tuple(0 if size == 1 else index[dim] for size, dim in pairs)


def _transposed_index(node: Node, index: tuple[Index, ...]) -> tuple[Index, ...]:
    sources = dict(zip(node.settings["permutation"], index, strict=True))
    return tuple(sources[axis] for axis in range(len(index)))


# From the index of an entry to the operand's index at which it is read; None if not simply said.
MOVES: dict[str, Callable[[Node, tuple[Index, ...]], tuple[Index, ...] | None]] = {
    "broadcast_in_dim": _broadcast,
    "transpose": _transposed_index,
    "rev": _reversed_index,
    "reshape": lambda node, index: reshaped_index(node.args[0].shape, node.shape, index),
}
