# pyright: strict
"""The list of all that does not fit a template, and the error or the warning about it."""

import warnings

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import (
    CheckpointError,
    ConvertedWarning,
    LeftOverWarning,
    Place,
    leaf_name,
)
from optax_bridge.checkpoints.trees import SAME_MAKE, Names, listed_leaves

_NAMED = 8  # leaves of another shape that a message names before it counts the rest

_OTHER_STATE = (
    "What `optax-bridge convert` wrote may be the state of the other kind: convert again with "
    "another --recipe, or with --like."
)
_BESIDE = (
    "Give the template an array of that shape; one without elements, np.zeros(0) say, takes as "
    "many as there are."
)
_REPLICATED = (
    "One of them is replicated, a copy for each device, and the other is not: restore into "
    "flax.jax_utils.unreplicate(state) and replicate what comes, or restore by "
    "optax_bridge.checkpoints.restore_checkpoint, which takes either."
)


class Misfits:
    """All that does not fit, and what to do about it."""

    def __init__(self, place: Place, *, keep: bool = False):
        self.place, self.keep = place, keep
        self.remedy, self.changed = SAME_MAKE, False
        self.requirement = "every leaf of what is restored, and no other"
        self.if_missing = "optax_bridge.checkpoints restores in part by missing='keep'."
        self.missing: list[Names] = []
        self.surplus: list[Names] = []
        self.unused: list[Names] = []
        self.wrong: list[tuple[Names, str, str]] = []
        self.converted: list[tuple[Names, str, str]] = []
        self.replicated = self.beside = 0

    @property
    def is_exact(self) -> bool:
        """True if template and checkpoint have the same leaves, and none was converted."""
        return not (self.changed or self.missing or self.surplus or self.unused or self.wrong)

    def place_of(self, path: Names) -> str:
        """The name of a leaf of the checkpoint in errors."""
        return f"{self.place}, {leaf_name(path)}" if path else str(self.place)

    def settle(self) -> None:
        """Raises or warns of what does not fit."""
        if self.wrong or (not self.keep and (self.missing or self.surplus)):
            raise self.error()
        if self.converted:
            each = [f"{leaf_name(path)}: {before} to {new}" for path, before, new in self.converted]
            warnings.warn(
                ConvertedWarning(
                    f"{self.place}: {listing(each)}. The template and the checkpoint have other "
                    "types; parameters, and moments of those that a step lifted to float32, are as "
                    "the checkpoint has them, all else as the template."
                ),
                stacklevel=5,
            )
        unused = self.surplus + self.unused
        if unused:
            warnings.warn(
                LeftOverWarning(
                    f"{self.place}: {listed_leaves(unused)} left over: nothing that was restored "
                    "has a place for it. Give the template a field of that name to have it; what "
                    "the program takes itself, it leaves out of what is restored.",
                    unused,
                ),
                stacklevel=5,
            )

    def error(self) -> CheckpointError:
        """The error about all that does not fit."""
        missing, surplus = ([], []) if self.keep else (self.missing, self.surplus)
        if len(self.wrong) == 1 and not missing and not surplus:
            path, expected, actual = self.wrong[0]
            remedy = _BESIDE if self.beside and self.remedy == SAME_MAKE else self.remedy
            return CheckpointError(self.place_of(path), expected, actual, remedy)
        problems = [f"no {listed_leaves(missing)}"] if missing else []
        problems += [
            f"{leaf_name(p)}: {is_} for {expected}" for p, expected, is_ in self.wrong[:_NAMED]
        ]
        problems += [f"{len(self.wrong) - _NAMED} more such"] if len(self.wrong) > _NAMED else []
        problems += [f"{listed_leaves(surplus)} besides"] if surplus else []
        remedies = [_REPLICATED if self.replicated == len(self.wrong) > 0 else self.remedy]
        if self.remedy == SAME_MAKE and any("opt_state" in path for path in missing):
            remedies.append(_OTHER_STATE)
        return CheckpointError(
            self.place, self.requirement, "; ".join(problems),
            " ".join([*remedies, self.if_missing] if missing and self.if_missing else remedies),
        )  # fmt: skip
