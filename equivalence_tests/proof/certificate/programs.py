"""The programs of both sides, as the checker gets them. Knows nothing of the prover."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
from jax.extend.core import ClosedJaxpr


@dataclass(frozen=True)
class Side:
    """One side as programs.

    Attributes:
      start: (numbers, parameters) -> (state, parameters).
      step: (numbers, state, gradients) -> (state, parameters).
      paths: of the state's leaves.
      comparisons: the numbers with which Python compares hyper-parameters.
    """

    start: ClosedJaxpr
    step: ClosedJaxpr
    paths: tuple[str, ...]
    comparisons: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Programs:
    """Both sides, and what they get: parameters' paths and shapes, and the symbols' numbers."""

    sides: tuple[Side, Side]
    paths: Sequence[str]
    shapes: Sequence[jax.ShapeDtypeStruct]
    numbers: Mapping[str, float]


class Trace(Protocol):
    """Traces both sides."""

    def __call__(
        self, fixed: Mapping[str, float], shape: tuple[int, ...] | None = None, wide: bool = False
    ) -> Programs:
        """Returns the programs.

        Args:
          fixed: hyper-parameters that are numbers.
          shape: of every leaf; None for the parameters' own.
          wide: whether the parameters are in float64, not in their dtypes.
        """
        ...
