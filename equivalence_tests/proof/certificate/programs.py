"""The programs of both sides, as the checker gets them. Knows nothing of the prover."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
from jax.extend.core import ClosedJaxpr


class Side(NamedTuple):
    """One side as programs."""

    start: ClosedJaxpr
    step: ClosedJaxpr
    paths: tuple[str, ...]
    comparisons: tuple[tuple[str, float], ...]


class Programs(NamedTuple):
    """Both sides, and what they get: parameters' paths and shapes, and the symbols' numbers."""

    sides: tuple[Side, Side]
    paths: Sequence[str]
    shapes: Sequence[jax.ShapeDtypeStruct]
    numbers: Mapping[str, float]


# Traces both sides, of hyper-parameters that are numbers, a shape of every leaf (None for the
# parameters' own), and whether the parameters are in float64 and not in their dtypes.
Trace = Callable[[Mapping[str, float], tuple[int, ...] | None, bool], Programs]
