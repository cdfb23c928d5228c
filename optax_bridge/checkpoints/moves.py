"""Where each leaf goes, as data: a plan is made, checked and carried out."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import (
    CheckpointError,
    ConvertedWarning,
    LeftOverWarning,
    Place,
)
from optax_bridge.checkpoints.trees import SAME_MAKE, dtype_of, listed_leaves
from optax_bridge.metadata.axis_metadata import leaves_with_path, unboxed
from optax_bridge.metadata.kept_axes import owners_of
from optax_bridge.metadata.paths import Names, key_names, leaf_name
from optax_bridge.metadata.trees import Leaf, OptState, Params

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


Misfit = tuple[Names, str, str]  # a place in the target, what is expected there, what is there


@dataclass(frozen=True)
class Move:
    """A leaf of the source, and its place in the target."""

    source: Names
    target: Names
    cast: tuple[str, str] | None = None  # the dtype before and after
    negate: bool = False


@dataclass(frozen=True)
class Plan:
    """Where each leaf goes, and all that does not fit."""

    place: Place
    moves: Sequence[Move] = ()
    missing: Sequence[Names] = ()
    surplus: Sequence[Names] = ()
    unused: Sequence[Names] = ()  # left over outside of states, which is no error
    wrong: Sequence[Misfit] = ()
    converted: Sequence[Misfit] = ()
    remedy: str = SAME_MAKE
    requirement: str = "every leaf of what is restored, and no other"
    if_missing: str = "optax_bridge.checkpoints restores in part by missing='keep'."
    beside: bool = False  # an array outside of a state does not fit
    replicated: int = 0  # misfits of which one side has copies for devices

    def check(self, *, keep: bool = False) -> None:
        """Raises or warns of what does not fit; with `keep`, what is missing stays as it is."""
        if self.wrong or (not keep and (self.missing or self.surplus)):
            raise self.error(keep=keep)
        if self.converted:
            each = [f"{leaf_name(path)}: {before} to {new}" for path, before, new in self.converted]
            warnings.warn(
                ConvertedWarning(
                    f"{self.place}: {listing(each)}. The template and the checkpoint have other "
                    "types; parameters, and moments of those that a step lifted to float32, are as "
                    "the checkpoint has them, all else as the template."
                ),
                stacklevel=6,
            )
        unused = [*self.surplus, *self.unused]
        if unused:
            warnings.warn(
                LeftOverWarning(
                    f"{self.place}: {listed_leaves(unused)} left over: nothing that was restored "
                    "has a place for it. Give the template a field of that name to have it; what "
                    "the program takes itself, it leaves out of what is restored.",
                    unused,
                ),
                stacklevel=6,
            )

    def apply(self, leaves: Mapping[Names, Leaf]) -> dict[Names, Leaf]:
        """The leaves of the source by their places in the target."""
        return {move.target: leaves[move.source] for move in self.moves}

    def error(self, *, keep: bool = False) -> CheckpointError:
        """The error about all that does not fit."""
        missing, surplus = ([], []) if keep else (list(self.missing), list(self.surplus))
        if len(self.wrong) == 1 and not missing and not surplus:
            path, expected, actual = self.wrong[0]
            remedy = _BESIDE if self.beside and self.remedy == SAME_MAKE else self.remedy
            return CheckpointError(place_of(self.place, path), expected, actual, remedy)
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


def place_of(place: Place, path: Names) -> str:
    """The name of a leaf of a checkpoint in errors."""
    return f"{place}, {leaf_name(path)}" if path else str(place)


def leaves_of_training(params: Params, opt_state: OptState) -> dict[Names, Leaf]:
    """Parameters and the optimizer's state without boxes, by path."""
    trees = {"params": params, "opt_state": opt_state}
    return {
        (name, *key_names(path)): leaf
        for name, tree in trees.items()
        for path, leaf in leaves_with_path(unboxed(tree))
    }


def with_renamed_parameters(
    params: Params, opt_state: OptState, rename: Callable[[Names], Names]
) -> dict[Names, Names]:
    """Each path of `leaves_of_training` -> the same with the parameter's path in it renamed."""
    paths = [key_names(path) for path, _ in leaves_with_path(unboxed(params))]
    targets = {("params", *path): ("params", *rename(path)) for path in paths}
    flat = [path for path, _ in leaves_with_path(unboxed(opt_state))]
    for path, span in zip(flat, owners_of(flat, dict.fromkeys(paths)), strict=True):
        names = key_names(path)
        start, end = span or (0, 0)
        new = (*names[:start], *rename(names[start:end]), *names[end:]) if span else names
        targets["opt_state", *names] = ("opt_state", *new)
    return targets


def plan_by_name(
    place: Place,
    source: Mapping[Names, Leaf],
    target: Mapping[Names, Leaf],
    names: Mapping[Names, Names],
    *,
    requirement: str,
    remedy: str,
    has_dtypes: bool = True,
) -> Plan:
    """The plan that moves each leaf of the source to its new name."""
    moves = [Move(path, new) for path, new in names.items() if new in target]
    targets = {move.target for move in moves}
    wrong: list[Misfit] = []
    for move in moves:
        expected, actual = (
            _described(leaf, has_dtypes) for leaf in (target[move.target], source[move.source])
        )
        if expected != actual:
            wrong.append((move.target, expected, actual))
    return Plan(
        place,
        moves,
        missing=[path for path in target if path not in targets],
        surplus=[new for new in names.values() if new not in target],
        wrong=wrong,
        requirement=requirement,
        remedy=remedy,
        if_missing="",
    )


def _described(leaf: Leaf, has_dtypes: bool) -> str:
    shape = list(np.shape(leaf))
    return f"{dtype_of(leaf)}{shape}" if has_dtypes else f"shape {shape}"
