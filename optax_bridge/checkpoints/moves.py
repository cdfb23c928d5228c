"""Moves of leaves, as data: a planner makes a plan; one executor checks it and carries it out.

A planner is a pure function that pairs the leaves of a checkpoint with those of a target. It yields
an item for each: a move, or a leaf that is missing, left over, or does not fit. The error is
written once, from the finished plan.
"""

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import (
    CheckpointError,
    ConvertedWarning,
    LeftOverWarning,
    Place,
    place_of,
    warn,
)
from optax_bridge.checkpoints.trees import (
    SAME_MAKE,
    dtype_of,
    is_array,
    is_floating,
    is_key,
    kind,
    listed_leaves,
)
from optax_bridge.checkpoints.values import fault_in
from optax_bridge.correspondence.values import Range
from optax_bridge.metadata.axis_metadata import leaves_with_path, unboxed
from optax_bridge.metadata.kept_axes import owners_of
from optax_bridge.metadata.paths import Names, key_names, leaf_name
from optax_bridge.metadata.trees import Leaf, OptState, Params

_NAMED = 8  # leaves of another shape that a message names before it counts the rest

_NOT_FINITE = (
    "The training had diverged: take an earlier checkpoint, or keep the value with allow_nan=True "
    "(convert --allow-nan)."
)
_NEGATIVE = "A mean of squares is damaged, or of another optimizer: take an earlier checkpoint."
# Fault of a number -> the expectation and the remedy.
_FAULTS = {
    **dict.fromkeys(("NaN", "infinity"), ("finite numbers", _NOT_FINITE)),
    "negative numbers": ("numbers of 0 or more", _NEGATIVE),
}
_KEPT = "These parameters and moments keep the checkpoint's dtypes."
_CAST = (
    "These take the template's dtypes, as every number keeps its value there; a file with other "
    "numbers is refused."
)
_OTHER_STATE = (
    "`optax-bridge convert` may have written the state of the other recipe: convert again with "
    "another --recipe, or with --like."
)


@dataclass(frozen=True)
class Move:
    """A leaf of the source, its place in the target, and its changes on the way."""

    source: Names
    target: Names
    cast: tuple[str, str] | None = None  # the dtype before and after
    negate: bool = False
    layout: Callable[[np.ndarray], np.ndarray] | None = None  # its axes are rearranged
    leaf: Leaf = field(default=None, repr=False, compare=False)
    template: Leaf = field(default=None, repr=False, compare=False)  # the target's leaf
    within: Range | None = None  # of its numbers, which are then finite

    def __str__(self) -> str:
        notes = [str(self.layout)] if self.layout else []
        notes += [" to ".join(self.cast)] if self.cast else []
        notes += ["negated"] if self.negate else []
        note = f" ({', '.join(notes)})" if notes else ""
        return f"{leaf_name(self.source)} -> {leaf_name(self.target)}{note}"

    def facts(self) -> dict[str, object]:
        """The move as JSON has it."""
        cast = list(self.cast) if self.cast else None
        ends = {"from": list(self.source), "to": list(self.target)}
        layout = str(self.layout) if self.layout else None
        return {**ends, "negated": self.negate, "cast": cast, "layout": layout}

    def value(self) -> Leaf:
        """The leaf as the target has it."""
        leaf = self.leaf if self.layout is None else self.layout(self.leaf)
        if self.template is not None and is_key(self.template):
            impl = jax.random.key_impl(self.template)
            return jax.random.wrap_key_data(jnp.asarray(leaf), impl=impl)
        if self.cast:
            with np.errstate(all="ignore"):
                leaf = np.asarray(leaf).astype(dtype_of(self.template))
        if self.negate:
            leaf = -(leaf if isinstance(leaf, jax.Array) else np.asarray(leaf))
        return leaf

    def fault(self) -> str:
        """The fault of its numbers, unless the target has the same fault there; "" if none."""
        if self.within is None:
            return ""
        fault = fault_in(self.leaf, self.within)
        is_shared = fault and is_array(self.template) and fault_in(self.template, self.within)
        return "" if is_shared else fault


@dataclass(frozen=True)
class Misfit:
    """A leaf that does not fit its place: by type and shape, where no text says how."""

    path: Names
    expected: str = ""
    actual: str = ""
    remedy: str = ""
    hint: str = ""  # a remedy if no leaf has a better one
    template: Leaf = field(default=None, repr=False, compare=False)
    leaf: Leaf = field(default=None, repr=False, compare=False)

    @property
    def texts(self) -> tuple[str, str]:
        """The expectation, and the leaf of the checkpoint, in words."""
        return self.expected or kind(self.template), self.actual or kind(self.leaf)


@dataclass(frozen=True)
class Converted:
    """Parameters that have another type in the checkpoint, and keep it."""

    path: Names
    before: str
    after: str


class Side(enum.Enum):
    """Where a leaf without a partner is."""

    MISSING = "in the target"
    SURPLUS = "in the checkpoint, within a state"
    UNUSED = "in the checkpoint, outside of states (not an error)"


@dataclass(frozen=True)
class Unpaired:
    """A leaf without a partner."""

    path: Names
    side: Side
    remedy: str = ""


Item = Move | Misfit | Converted | Unpaired


def keeps(missing: str) -> bool:
    """True of "keep", False of "error"."""
    if missing not in ("error", "keep"):
        raise ValueError(f'missing: expected "error" or "keep", found {missing!r}')
    return missing == "keep"


@dataclass(frozen=True)
class Plan:
    """Where each leaf goes, and all that does not fit."""

    place: Place
    items: tuple[Item, ...]
    remedy: str = SAME_MAKE
    requirement: str = "the leaves of the template, and no others"
    if_missing: str = "optax_bridge.checkpoints restores a part of it with missing='keep'."
    source: str = ""  # the checkpoint's state in words, if it is of another optimizer

    @cached_property
    def moves(self) -> tuple[Move, ...]:
        """The leaves that have a place."""
        return tuple(item for item in self.items if isinstance(item, Move))

    def paths_on(self, side: Side) -> list[Names]:
        """The leaves without a partner on a side."""
        unpaired = (item for item in self.items if isinstance(item, Unpaired))
        return [item.path for item in unpaired if item.side is side]

    def check(self, *, keep: bool = False, allow_nan: bool = False) -> None:
        """Raises or warns about misfits; with `keep`, missing leaves stay as they are."""
        misfits = [item for item in self.items if isinstance(item, Misfit)]
        faults = ((move, move.fault()) for move in (() if allow_nan else self.moves))
        for move, fault in faults:
            if fault:
                expected, remedy = _FAULTS[fault]
                misfits.append(Misfit(move.source, expected, fault, remedy))
        surplus, unused = self.paths_on(Side.SURPLUS), self.paths_on(Side.UNUSED)
        if misfits or (not keep and (surplus or self.paths_on(Side.MISSING))):
            raise self._error(misfits, keep)
        kept = [
            f"{leaf_name(item.path)}: {item.before} to {item.after}"
            for item in self.items
            if isinstance(item, Converted)
        ]
        cast = [
            f"{leaf_name(move.source)}: {' to '.join(move.cast)}"
            for move in self.moves
            if move.cast and is_array(move.leaf) and is_floating(dtype_of(move.leaf))
        ]
        texts = [f"{listing(of)}. {text}" for of, text in ((kept, _KEPT), (cast, _CAST)) if of]
        if texts:
            warn(ConvertedWarning(f"{self.place}: {' '.join(texts)}"))
        if left_over := [*surplus, *unused]:
            text = (
                f"{self.place}: {listed_leaves(left_over)} left over: the template has no field of "
                "that name. Add a field for each that the program needs."
            )
            warn(LeftOverWarning(text, left_over))

    def apply(self, put: Callable[[Leaf], Leaf] = lambda leaf: leaf) -> dict[Names, Leaf]:
        """The leaves by their places in the target."""
        return {move.target: put(move.value()) for move in self.moves}

    def _error(self, misfits: list[Misfit], keep: bool) -> CheckpointError:
        missing, surplus = (
            [] if keep else self.paths_on(side) for side in (Side.MISSING, Side.SURPLUS)
        )
        remedy = self._remedy(misfits, bool(missing or surplus))
        if len(misfits) == 1 and not missing and not surplus:
            (misfit,) = misfits
            place = place_of(self.place, misfit.path)
            return CheckpointError(place, *misfit.texts, remedy)
        if self.source and (missing or surplus):
            return CheckpointError(self.place, self.requirement, self.source, remedy)
        instead = self._instead(missing, misfits)
        but = f" but {listed_leaves(instead)} there" if instead else ""
        problems = [f"no {listed_leaves(missing)}{but}"] if missing else []
        problems += [
            "{0}: {2} for {1}".format(leaf_name(misfit.path), *misfit.texts)
            for misfit in misfits[:_NAMED]
        ]
        problems += [f"{len(misfits) - _NAMED} more such"] if len(misfits) > _NAMED else []
        problems += [f"{listed_leaves(surplus)} in addition"] if surplus else []
        if remedy == SAME_MAKE and any("opt_state" in path for path in missing):
            remedy = f"{remedy} {_OTHER_STATE}"
        if missing and self.if_missing:
            remedy = f"{remedy} {self.if_missing}"
        return CheckpointError(self.place, self.requirement, "; ".join(problems), remedy)

    def _instead(self, missing: list[Names], misfits: list[Misfit]) -> set[Names]:
        """The names that the checkpoint alone has on a level where it lacks others."""
        unused = self.paths_on(Side.UNUSED)
        paired = _beginnings(move.source for move in self.moves)
        paired |= _beginnings(misfit.path for misfit in misfits)
        begun = paired | _beginnings(unused)
        levels = {
            max((p[:n] for n in range(len(p)) if p[:n] in begun), default=()) for p in missing
        }
        paired |= _beginnings(missing)
        ends = ((path, end) for path in unused for end in range(len(path)))
        names = {path[: end + 1] for path, end in ends if path[:end] in levels}
        return names - paired

    def _remedy(self, misfits: list[Misfit], unpaired: bool) -> str:
        """The remedy of the last item that has one, of structure before numbers."""
        structural = [item for item in self.items if isinstance(item, Unpaired | Misfit)]
        remedies = [item.remedy for item in [*misfits, *structural] if item.remedy]
        if remedies:
            return remedies[-1]
        hints = {misfit.hint for misfit in misfits}
        hint = hints.pop() if len(hints) == 1 and not unpaired else ""
        return hint if hint and self.remedy == SAME_MAKE else self.remedy


def _beginnings(paths: Iterable[Names]) -> set[Names]:
    """The levels on the way to paths, and the paths."""
    return {path[:end] for path in paths for end in range(len(path) + 1)}


def moved_to(home: Names, moves: Iterable[Move]) -> list[Move]:
    """The moves of a state that goes to a place of its own."""
    return [replace(move, target=(*home, *move.target)) for move in moves]


def leaves_of_training(params: Params, opt_state: OptState) -> dict[Names, Leaf]:
    """Parameters and the optimizer's state without boxes, by path."""
    tree = unboxed({"params": params, "opt_state": opt_state})
    return {key_names(path): leaf for path, leaf in leaves_with_path(tree)}


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


def rename_items(
    source: Mapping[Names, Leaf],
    target: Mapping[Names, Leaf],
    names: Mapping[Names, Names],
    *,
    has_dtypes: bool = True,
) -> Iterator[Item]:
    """Yields the moves of each leaf of the source to its new name."""

    def described(leaf: Leaf) -> str:
        shape = list(np.shape(leaf))
        return f"{dtype_of(leaf)}{shape}" if has_dtypes else f"shape {shape}"

    targets = set(names.values())
    yield from (Unpaired(path, Side.MISSING) for path in target if path not in targets)
    for path, new in names.items():
        if new not in target:
            yield Unpaired(new, Side.SURPLUS)
        elif (expected := described(target[new])) != (actual := described(source[path])):
            yield Misfit(new, expected, actual)
        else:
            yield Move(path, new, leaf=source[path], template=target[new])
