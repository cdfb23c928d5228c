"""What a converted checkpoint remembers of the one that held its optimizer, for the way back.

A TrainState has one step. A legacy checkpoint such as `{'optimizer', 'batch_stats', 'step'}` has it
twice, and has a name for the optimizer; neither has a place among the fields of a TrainState.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, Place, leaf_name, shown
from optax_bridge.checkpoints.fit import LAYOUT
from optax_bridge.checkpoints.recognise import Names, is_array, is_train_state
from optax_bridge.metadata.trees import PyTree

_STEPS = ("step", "global_step")
_FIELDS = "step|params|opt_state"  # a TrainState's own
_TAKEN = re.compile(rf"(?:legacy_)*(?:{_FIELDS})|(?:legacy_)+layout")
_KIND = re.compile(r"number|(?:array|scalar) (?:u?int(?:8|16|32|64)|float(?:16|32|64))")


@dataclass(frozen=True)
class Layout:
    """Where a legacy checkpoint had its optimizer, and the step once more.

    Attributes:
      part: the path of the optimizer, `("models", "generator")`; empty if it was the whole.
      steps: by name, the steps that stood beside it and were the same: `number` for Python's,
        `array int32` and `scalar int64` for NumPy's.
    """

    part: Names = ()
    steps: Mapping[str, str] = field(default_factory=dict)

    def tree(self) -> dict[str, Any]:
        """Nested dicts of text, which any format can hold."""
        part = {str(index): name for index, name in enumerate(self.part)}
        return {"part": part, "steps": dict(self.steps)}

    def steps_at(self, step: Any) -> dict[str, Any]:
        """The steps that stood beside the optimizer, as they are at another step."""
        return {name: _made(kind, int(np.asarray(step))) for name, kind in self.steps.items()}


def layout_of(part: Names, others: Mapping[str, PyTree], step: int) -> Layout:
    """The layout of a checkpoint.

    Args:
      part: where it has its optimizer.
      others: what else it has.
      step: the optimizer's.
    """
    kinds = {name: _kind(others.get(name), step) for name in _STEPS}
    return Layout(part, {name: kind for name, kind in kinds.items() if kind})


def read_layout(found: Any, place: Place) -> Layout:
    """The layout that a checkpoint remembers.

    Raises:
      CheckpointError: it is none.
    """
    part, steps = (found.get(k) for k in ("part", "steps")) if is_layout(found) else (None, None)
    numbers = [str(index) for index in range(len(part))] if isinstance(part, Mapping) else None
    texts = isinstance(part, Mapping) and all(isinstance(name, str) for name in part.values())
    kinds = isinstance(steps, Mapping) and all(
        isinstance(kind, str) and _KIND.fullmatch(kind) for kind in steps.values()
    )
    if numbers is None or sorted(part or ()) != sorted(numbers) or not texts or not kinds:
        raise CheckpointError(
            f"{place}, {leaf_name((LAYOUT,))}", "where the optimizer stood, and the steps beside "
            "it", shown(found), "It is damaged: convert the legacy checkpoint again.",
        )  # fmt: skip
    assert part is not None and steps is not None
    return Layout(tuple(part[number] for number in numbers), dict(steps))


def is_layout(found: Any) -> bool:
    """Whether this is what a layout is written as, or the ruins of it."""
    return isinstance(found, Mapping) and set(found) == {"part", "steps"}


def _kind(value: Any, step: int) -> str | None:
    if type(value) is int and value == step:
        return "number"
    if not is_array(value) or np.shape(value) != ():
        return None
    array = np.asarray(value)
    kind = f"{'scalar' if isinstance(value, np.generic) else 'array'} {array.dtype}"
    return kind if _KIND.fullmatch(kind) and array == step else None


def _made(kind: str, step: int) -> Any:
    if kind == "number":
        return step
    form, dtype = kind.split()
    array = np.asarray(step, dtype)
    return array[()] if form == "scalar" else array


def renamed(name: str) -> str:
    """The name among a TrainState's fields of what stood beside an optimizer."""
    return f"legacy_{name}" if _TAKEN.fullmatch(name) else name


def renamed_back(name: str) -> str:
    """The inverse of `renamed`."""
    is_renamed = name.startswith("legacy_") and _TAKEN.fullmatch(name)
    return name.removeprefix("legacy_") if is_renamed else name


def placed_among(others: PyTree, path: Names, tree: PyTree, place: Place) -> PyTree:
    """What else there is, with the optimizer at a path.

    Raises:
      CheckpointError: something else stands there.
    """
    name, *rest = path
    if not isinstance(others, Mapping) or (name in others and not rest):
        raise CheckpointError(
            f"{place}, {leaf_name((name,))}", "a place for the optimizer", "something else there",
            "Name another one: --part NAME.",
        )  # fmt: skip
    inner = placed_among(others.get(name, {}), tuple(rest), tree, place) if rest else tree
    return {**others, name: inner}


def with_lists(tree: PyTree) -> PyTree:
    """The tree with a list where names are 0, 1, 2: what was a list or a tuple when it was saved.

    Msgpack does not tell them from dicts, Orbax does; TrainStates have lists of their own already.
    """
    if not isinstance(tree, dict) or is_train_state(tree):
        return tree
    new = {name: with_lists(value) for name, value in tree.items()}
    numbers = [str(index) for index in range(len(new))]
    return [new[number] for number in numbers] if new and sorted(new) == sorted(numbers) else new


def place_in(others: Mapping[str, PyTree]) -> Names:
    """Where the optimizer stood, if nothing says so: the gap in a tuple, or `optimizer`."""
    numbers = {str(index) for index in range(len(others) + 1)}
    gap = numbers - set(others)
    return (gap.pop(),) if others and len(gap) == 1 else ("optimizer",)
