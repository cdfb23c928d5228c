"""Places in arrays, with symbols for indices."""

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
            place.append(parts[0][0] if len(parts) == 1 else _joined(parts))
        elif j - b == 1:
            for k in range(a, i):
                stride = int(np.prod(old[k + 1 : i]))
                place.append(0 if old[k] == 1 else _digit(index[b], stride, old[k]))
        else:
            return None
    return tuple(place)


def _digit(index: Index, stride: int, size: int) -> Index:
    if isinstance(index, int):
        return index // stride % size
    if isinstance(index, tuple) and index[0] == "join":
        for part, own in zip(index[1::2], index[2::2], strict=True):
            if own == stride:
                return part
    return ("of", index, stride, size)


def _joined(parts: list[tuple[Index, int]]) -> Index:
    digits = [part for part, _ in parts]
    if all(isinstance(part, int) for part in digits):
        return sum(part * stride for part, stride in parts)
    sources = {part[1] if isinstance(part, tuple) and part[0] == "of" else None for part in digits}
    if len(sources) == 1 and None not in sources:  # all digits of one index, put together again
        own = [part[2] for part in digits]
        if own == [stride for _, stride in parts]:
            return sources.pop()
    return ("join", *(item for pair in parts for item in pair))


def shifted(index: Index, by: int) -> Index:
    """An index further on."""
    if by == 0:
        return index
    return index + by if isinstance(index, int) else ("join", index, 1, by, 1)
