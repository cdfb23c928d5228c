"""An input on which two sides differ, and both values there."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from equivalence_tests.proof.dtypes import Json

Numbers = float | list[Any]  # of an array, as nested lists


@dataclass(frozen=True)
class Counterexample:
    """Both sides on one input, in float64."""

    hyper_params: Mapping[str, float]
    params: Mapping[str, Numbers]
    grads: Sequence[Mapping[str, Numbers]]
    step: int
    leaf: str
    index: tuple[int, ...]
    left: float
    right: float
    arithmetic: str = "float64"
    from_step_on: bool = False

    @property
    def difference(self) -> float:
        """The distance between both values."""
        return abs(self.left - self.right)

    def as_dict(self) -> Json:
        """The same as plain data."""
        return {
            "hyper_params": dict(self.hyper_params),
            "params": dict(self.params),
            "grads": [
                {"steps": len(list(group)), "grads": dict(grads)}
                for grads, group in itertools.groupby(self.grads)
            ],
            "step": self.step,
            "leaf": self.leaf,
            "index": list(self.index),
            "left": self.left,
            "right": self.right,
            "difference": self.difference,
            "arithmetic": self.arithmetic,
        }

    def __str__(self) -> str:
        entry = f"{self.leaf}{list(self.index) if self.index else ''}"
        when = f"from step {self.step} on" if self.from_step_on else f"after step {self.step}"
        lines = [
            f"{when}, {entry} is {self.left!r} on the left and {self.right!r} on "
            f"the right, {self.difference:.3g} apart ({self.arithmetic})"
        ]
        if self.hyper_params:
            lines.append(
                f"  with {', '.join(f'{k} = {v!r}' for k, v in self.hyper_params.items())}"
            )
        lines += [f"  {path} = {_numbers_text(value)}" for path, value in self.params.items()]
        last = 0
        for grads, group in itertools.groupby(self.grads):
            first, last = last + 1, last + len(list(group))
            when = f"step {first}" if first == last else f"steps {first} to {last}, each"
            lines += [f"  {when}: {path} = {_numbers_text(value)}" for path, value in grads.items()]
        return "\n".join(lines)


_MOST_SHOWN = 64  # numbers of an array; `as_dict` has all of a larger one


def _numbers_text(value: Numbers) -> str:
    array = np.asarray(value)
    if array.size <= _MOST_SHOWN:
        return str(value)
    shape, low, high = "x".join(map(str, array.shape)), array.min().item(), array.max().item()
    if low == high:
        return f"{low!r} in all of {shape}"
    return f"{shape} numbers from {low!r} to {high!r}, each of them in `as_dict()`"
