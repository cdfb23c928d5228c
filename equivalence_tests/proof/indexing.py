"""Places in arrays, with symbols for indices."""

import itertools
from collections.abc import Sequence

import numpy as np

from equivalence_tests.proof.atoms import Index


def indices(shape: Sequence[int], name: str = "i") -> tuple[Index, ...]:
    """A general place in an array: a symbol for each axis, 0 for an axis of length 1."""
    return tuple(0 if size == 1 else f"{name}{axis}" for axis, size in enumerate(shape))


def reshaped_index(
    old: Sequence[int], new: Sequence[int], index: Sequence[Index]
) -> tuple[Index, ...] | None:
    """Where in an array of one shape the entry of its reshaped form is; None if not simply said."""
    if 0 in (*old, *new):
        return None
    place: list[Index] = []
    i = j = 0
    while i < len(old) or j < len(new):
        a, b = i, j
        size_old = size_new = 1
        while i < len(old) and old[i] == 1:
            place.append(0)
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
            place.append(parts[0][0] if len(parts) == 1 else _joined(parts, size_new))
        elif j - b == 1:
            for k in range(a, i):
                stride = int(np.prod(old[k + 1 : i]))
                digit = _digit(index[b], stride, old[k], size_old)
                place.append(0 if old[k] == 1 else digit)
        else:
            return None
    return tuple(place)


def _digit(index: Index, stride: int, size: int, total: int) -> Index:
    """A digit of an index, `index // stride % size`.

    Args:
      index: it, below `total`.
      stride: what the digit counts.
      size: how many values it has.
      total: the product of all digits' sizes.
    """
    if isinstance(index, int):
        return index // stride % size
    if isinstance(index, tuple) and index[0] == "join":
        strides = index[2::2]
        above = (total, *strides)
        falling = all(high > low for high, low in itertools.pairwise(above))  # no shifted index
        for part, own, higher in zip(index[1::2], strides, above, strict=False):
            if falling and own == stride and higher == stride * size:
                return part
    # Of the first digit nothing is to be taken off: `total` in the place of its size says so.
    return ("of", index, stride, total if stride * size == total else size)


def _joined(parts: list[tuple[Index, int]], total: int) -> Index:
    """The index below `total` of which these are digits, each with what it counts."""
    digits = [part for part, _ in parts]
    if all(isinstance(part, int) for part in digits):
        return sum(part * stride for part, stride in parts)
    first = digits[0]
    of_one = all(
        isinstance(part, tuple) and part[:2] == ("of", first[1]) and part[2] == stride
        for part, stride in parts
    )
    if of_one and first[3] == total:  # perhaps all digits of one index, put together again
        strides = [stride for _, stride in parts]
        if [part[3] * part[2] for part in digits[1:]] == strides[:-1]:
            return first[1]
    return ("join", *(item for pair in parts for item in pair))


def shifted(index: Index, by: int) -> Index:
    """An index further on."""
    if by == 0:
        return index
    return index + by if isinstance(index, int) else ("join", index, 1, by, 1)
