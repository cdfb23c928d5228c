# pyright: strict
"""Rearranges arrays of PyTorch for Flax: `"o i h w -> h w i o"`, axes by name as in einops."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

_Axes = tuple[tuple[str, ...], ...]  # the names of each axis; several where it is a product
_AXIS = re.compile(r"\(([^()]*)\)|(\S+)")
_NAME = re.compile(r"[a-z]\w*", re.ASCII)


@dataclass(frozen=True)
class Rearrangement:
    """Axes of an array, renamed, split and joined."""

    before: _Axes
    after: _Axes
    sizes: Mapping[str, int]
    text: str = ""
    index: int | None = None  # of one array along the new first axis

    @classmethod
    def parse(cls, text: str, sizes: Mapping[str, int]) -> "Rearrangement":
        """The rearrangement that a text says."""
        one, arrow, other = text.partition("->")
        before, after = _axes(one), _axes(other) if arrow else ()
        names = [[name for axis in side for name in axis] for side in (before, after)]
        if sorted(names[0]) != sorted(names[1]) or len({*names[0]}) < len(names[0]):
            raise ValueError("the same axes, each once, on both sides of ->, as in 'o i -> i o'")
        if unknown := sorted(sizes.keys() - {*names[0]}):
            raise ValueError(f"sizes of its axes alone, not of {', '.join(unknown)}")
        return cls(before, after, dict(sizes), text)

    def __str__(self) -> str:
        return self.text + ("" if self.index is None else f", array {self.index}")

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The array as it lies in Flax."""
        if self.before:
            sizes, shape = self._sizes(array.shape), self.shape(array.shape)
            names = [name for axis in self.before for name in axis]
            order = [names.index(name) for axis in self.after for name in axis]
            array = array.reshape([sizes[name] for name in names]).transpose(order).reshape(shape)
        return array if self.index is None else array[self.index]

    def inverse(self, array: np.ndarray) -> np.ndarray:
        """The array as it lies in PyTorch; all of them where it was taken apart."""
        return replace(self, before=self.after, after=self.before, index=None)(array)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape in Flax, before the array is taken apart."""
        if not self.before:
            return tuple(shape)
        sizes = self._sizes(shape)
        return tuple(math.prod(sizes[name] for name in axis) for axis in self.after)

    def _sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """The length of each axis by its name."""
        if len(shape) != len(self.before):
            raise ValueError(f"an array of {len(self.before)} axes, found {list(shape)}")
        sizes = dict(self.sizes)
        for size, axis in zip(shape, self.before, strict=True):
            unknown = [name for name in axis if name not in sizes]
            given_size = math.prod(sizes[name] for name in axis if name in sizes)
            if len(unknown) > 1:
                raise ValueError(f"the size of {unknown[0]} or {unknown[1]}")
            if size % given_size or (not unknown and size != given_size):
                raise ValueError(f"{' '.join(axis)} in {size} of {list(shape)}")
            sizes |= {name: size // given_size for name in unknown}
        return sizes


def _axes(text: str) -> _Axes:
    pairs = _AXIS.findall(text.replace(",", " "))
    axes = tuple(tuple((joined or alone).split()) for joined, alone in pairs)
    names = [name for axis in axes for name in axis]
    if not names or not all(_NAME.fullmatch(name) for name in names):
        raise ValueError(f"names of axes in lower case, found {text.strip()!r}")
    return axes
