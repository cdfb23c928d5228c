"""The layout of a legacy checkpoint, which a converted one keeps for the way back.

A TrainState has one step. A legacy checkpoint such as `{'optimizer', 'batch_stats', 'step'}` has it
twice, and has a name for the optimizer; neither has a place among the fields of a TrainState.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from optax_bridge.checkpoints.errors import CheckpointError, Place, brief
from optax_bridge.checkpoints.locate import Part, is_train_state
from optax_bridge.checkpoints.trees import is_array, is_key, paths_of
from optax_bridge.checkpoints.values import one_copy
from optax_bridge.metadata.paths import Names, by_index, leaf_name, leaves, with_indices
from optax_bridge.metadata.trees import Leaf, Params, PyTree

LAYOUT = "legacy_layout"  # what `optax-bridge convert` remembers for the way back; no leaf
_STEPS = ("step", "global_step")
_FIELDS = "step|params|opt_state"  # a TrainState's own
_TAKEN = re.compile(rf"(?:legacy_)*(?:{_FIELDS})|(?:legacy_)+layout")
_KIND = re.compile(r"number|(?:array|scalar) (?:u?int(?:8|16|32|64)|float(?:16|32|64))")


@dataclass(frozen=True)
class Layout:
    """The path of the optimizer in a legacy checkpoint, and the further copies of its step."""

    part: Names = ()
    steps: Mapping[str, str] = field(default_factory=dict)

    def tree(self) -> dict[str, PyTree]:
        """Nested dicts of text, which any format can hold."""
        part = {str(index): name for index, name in enumerate(self.part)}
        return {"part": part, "steps": dict(self.steps)}

    def steps_at(self, step: Leaf) -> dict[str, Leaf]:
        """The other copies of the optimizer's step, with the value for this step."""
        return {
            name: _step_of_kind(kind, int(np.asarray(step))) for name, kind in self.steps.items()
        }


def rest_of(tree: PyTree, part: Part) -> tuple[dict[str, PyTree], Layout]:
    """Returns the rest of a checkpoint, without an optimizer, each leaf once, and the layout."""
    rest = without(tree, part.path) if part.path else {}
    others = {name: without_copies(value, part.copies) for name, value in rest.items()}
    return others, layout_of(part.path, others, part.step)


def without_copies(tree: PyTree, copies: int | None) -> PyTree:
    """The first of each leaf's copies, if all leaves have so many and all of them are the same."""
    arrays = [leaf for _, leaf in leaves(tree) if is_array(leaf)]
    if not arrays or not all(leaf.shape[:1] == (copies,) for leaf in arrays):
        return tree
    if any(one_copy(leaf) is None for leaf in arrays):
        return tree  # each device has its own: random keys, batch statistics
    return jax.tree.map(lambda leaf: one_copy(leaf) if is_array(leaf) else leaf, tree)


def without(tree: PyTree, path: tuple[str, ...]) -> PyTree:
    """A `plain` tree without what stands at the path."""
    rest = {name: value for name, value in tree.items() if name != path[0]}
    below = without(tree[path[0]], path[1:]) if path[1:] else None
    return rest | ({path[0]: below} if below else {})


def layout_of(part: Names, others: Mapping[str, PyTree], step: int) -> Layout:
    """The layout of a checkpoint."""
    kinds = {name: _kind(others.get(name), step) for name in _STEPS}
    return Layout(part, {name: kind for name, kind in kinds.items() if kind})


def read_layout(saved: PyTree, place: Place) -> Layout:
    """The layout that a checkpoint remembers."""
    part, steps = (saved.get(k) for k in ("part", "steps")) if is_layout(saved) else (None, None)
    names = by_index(part) if isinstance(part, Mapping) else None
    kinds = isinstance(steps, Mapping) and all(
        isinstance(kind, str) and _KIND.fullmatch(kind) for kind in steps.values()
    )
    if names is None or not all(isinstance(name, str) for name in names) or not kinds:
        raise CheckpointError(
            f"{place}, {leaf_name((LAYOUT,))}", "where the optimizer stood, and the steps beside "
            "it", brief(saved), "It is damaged: convert the legacy checkpoint again.",
        )  # fmt: skip
    assert steps is not None
    return Layout(tuple(names), dict(steps))


def is_layout(tree: PyTree) -> bool:
    """True if this has the keys of a written layout, which may be damaged."""
    return isinstance(tree, Mapping) and set(tree) == {"part", "steps"}


def _kind(value: Leaf, step: int) -> str | None:
    if type(value) is int and value == step:
        return "number"
    if not is_array(value) or np.shape(value) != ():
        return None
    array = np.asarray(value)
    kind = f"{'scalar' if isinstance(value, np.generic) else 'array'} {array.dtype}"
    return kind if _KIND.fullmatch(kind) and array == step else None


def _step_of_kind(kind: str, step: int) -> Leaf:
    if kind == "number":
        return step
    form, dtype = kind.split()
    array = np.asarray(step, dtype)
    return array[()] if form == "scalar" else array


def legacy_name(name: str) -> str:
    """The name in a TrainState's checkpoint of an entry that was next to the optimizer."""
    return f"legacy_{name}" if _TAKEN.fullmatch(name) else name


def original_name(name: str) -> str:
    """The inverse of `legacy_name`."""
    is_renamed = name.startswith("legacy_") and _TAKEN.fullmatch(name)
    return name.removeprefix("legacy_") if is_renamed else name


def add_optimizer(others: PyTree, path: Names, tree: PyTree, place: Place) -> PyTree:
    """The other entries with the optimizer added at a path."""
    name, *rest = path
    if not isinstance(others, Mapping) or (name in others and not rest):
        raise CheckpointError(
            f"{place}, {leaf_name((name,))}", "a place for the optimizer", "something else there",
            "Name another one: --part NAME.",
        )  # fmt: skip
    inner = add_optimizer(others.get(name, {}), tuple(rest), tree, place) if rest else tree
    return {**others, name: inner}


def with_lists(tree: PyTree) -> PyTree:
    """The tree with a list where names are 0, 1, 2."""
    if not isinstance(tree, dict) or is_train_state(tree):
        return tree
    new = {name: with_lists(value) for name, value in tree.items()}
    return by_index(new) or new


def likely_path(others: Mapping[str, PyTree]) -> Names:
    """The likely path of the optimizer: the gap in a tuple's indices, or `optimizer`."""
    numbers = {str(index) for index in range(len(others) + 1)}
    gap = numbers - set(others)
    return (gap.pop(),) if others and len(gap) == 1 else ("optimizer",)


# The entries next to an optimizer, and the fields of a state they fill. Programs called the same
# things by different names: batch statistics stood in `model_state` as `{"batch_stats": ...}`, in
# `batch_stats`, or flat in either.
# Field of a state -> what programs called the same.
_NAMES = {
    "batch_stats": ("model_state", "state", "bn_state", "mutable_state", "variables"),
    "model_state": ("batch_stats", "state", "mutable_state", "variables"),
    "ema_params": ("ema", "params_ema", "ema_target", "average", "avg_params", "params_avg"),
    "dynamic_scale": ("loss_scale", "loss_scaling"),
    "rngs": ("rng", "key", "prng_key", "rng_key"),
    "rng": ("rngs", "key", "prng_key", "rng_key"),
}
_STATISTICS = "batch_stats"


def entries_around(tree: PyTree, path: Names) -> dict[Names, PyTree]:
    """The entries next to the optimizer, and next to each level on the way to it, by path."""
    entries: dict[Names, PyTree] = {}
    for length, name in enumerate(path):
        tree = with_indices(tree)
        if not isinstance(tree, Mapping):
            break
        entries |= {(*path[:length], key): value for key, value in tree.items() if key != name}
        tree = tree.get(name)
    return entries


def match_fields(
    names: Collection[str], entries: Mapping[Names, PyTree], params: Params, step: int
) -> tuple[dict[str, PyTree], list[Names]]:
    """The fields that a checkpoint fills, and what is left over of it."""
    filled: dict[str, PyTree] = {}
    unused: list[Names] = []
    for path in sorted(entries, key=lambda path: (-len(path), path)):  # the nearest come first
        name, value = path[-1], entries[path]
        if name in _STEPS and _is_number(value, step):
            continue
        for name_of_field, candidate, rest in _candidates(name, value, names):
            if name_of_field not in filled and _fits(name_of_field, candidate, params):
                filled[name_of_field] = candidate
                unused += paths_of(rest, path)
                break
        else:
            unused += paths_of(value, path)
    return filled, unused


def _candidates(
    name: str, value: PyTree, names: Collection[str]
) -> list[tuple[str, PyTree, PyTree]]:
    """Fields that something may fill: the field, the value for it, and what is left then."""
    if name in names and name != "rngs":
        return [(name, _within(name, value), None)]
    candidates: list[tuple[str, PyTree, PyTree]] = []
    if isinstance(value, Mapping):  # a dict of collections
        for field in names:
            if field in value:
                rest = {key: item for key, item in value.items() if key != field}
                candidates.append((field, value[field], rest))
    if "rngs" in names and (name == "rngs" or name.endswith(("rng", "key"))):
        keys = value if isinstance(value, Mapping) else {name.removesuffix("_rng"): value}
        candidates.append(("rngs", keys, None))
    for field in names:
        if name in _NAMES.get(field, ()) and field != "rngs":
            collection = {_STATISTICS: value} if name == _STATISTICS else _within(field, value)
            candidates.append((field, collection, None))
    return candidates


def _within(field: str, value: PyTree) -> PyTree:
    """The collection itself, where it is alone in a dict of collections."""
    name = {"batch_stats": "batch_stats", "ema_params": "params"}.get(field)
    is_alone = isinstance(value, Mapping) and set(value) == {name}
    return value[name] if is_alone else value


def _fits(field: str, value: PyTree, params: Params) -> bool:
    """True if a value is of the kind that the field holds."""
    if value is None or not any(True for _ in leaves(value)):
        return True
    if field == "ema_params":
        return _shapes(value) == _shapes(params)
    if field == "dynamic_scale":
        return isinstance(value, Mapping) and set(value) == {"fin_steps", "scale"}
    if field in ("rngs", "rng"):
        return all(is_key(v) or (is_array(v) and v.dtype == np.uint32) for _, v in leaves(value))
    if field == _STATISTICS:
        return isinstance(value, Mapping)
    return True


def _shapes(tree: PyTree) -> dict[Names, tuple[int, ...]]:
    return {path: np.shape(leaf) for path, leaf in leaves(tree)}


def _is_number(value: Leaf, step: int) -> bool:
    return np.shape(value) == () and bool(np.asarray(value) == step)
