# pyright: strict
"""Retention of checkpoints."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol


class _Saved(Protocol):
    @property
    def step(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class KeepLastAndEvery:
    """Orbax's policy for: the last few, and of the older ones some at a distance.

    Attributes:
      keep_last_n: how many of the newest stay.
      keep_every_n_steps: of the older ones, from the oldest on, each stays that is at least so many
        steps after the one that stayed before; None for none.
    """

    keep_last_n: int
    keep_every_n_steps: int | None = None

    def should_preserve(
        self, checkpoints: Sequence[_Saved], *, context: object = None
    ) -> list[bool]:
        """For each checkpoint, by rising step, whether it stays."""
        del context
        older = max(0, len(checkpoints) - self.keep_last_n)
        decisions: list[bool] = []
        last: int | None = None
        for index, checkpoint in enumerate(checkpoints):
            keep = index >= older
            if not keep and self.keep_every_n_steps is not None:
                keep = last is None or checkpoint.step - last >= self.keep_every_n_steps
                last = checkpoint.step if keep else last
            decisions.append(keep)
        return decisions
