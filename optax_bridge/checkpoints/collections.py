"""What stands beside a legacy optimizer in its checkpoint, and which fields of a state it fills.

Programs called the same things by different names: batch statistics stood in `model_state` as
`{"batch_stats": ...}`, in `batch_stats`, or flat in either.
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from optax_bridge.checkpoints.fit import is_key, numbered
from optax_bridge.checkpoints.recognise import Names, is_array, leaves
from optax_bridge.metadata.trees import Params, PyTree

_STEPS = ("step", "global_step")
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


def beside(tree: PyTree, path: Names) -> dict[Names, PyTree]:
    """What stands beside the optimizer, and beside each level on the way to it, by path."""
    found: dict[Names, Any] = {}
    for length, name in enumerate(path):
        tree = numbered(tree)
        if not isinstance(tree, Mapping):
            break
        found |= {(*path[:length], key): value for key, value in tree.items() if key != name}
        tree = tree.get(name)
    return found


def fields_filled(
    names: Collection[str], entries: Mapping[Names, PyTree], params: Params, step: int
) -> tuple[dict[str, Any], list[Names]]:
    """The fields that a checkpoint fills, and what is left over of it.

    Args:
      names: the fields that the state has besides step, parameters and optimizer state.
      entries: what `beside` found.
      params: the parameters, nested dicts; an average has their paths and shapes.
      step: the optimizer's; the same number under another name is not left over.

    Returns:
      Field -> value, and the paths of the leaves that fill none.
    """
    filled: dict[str, Any] = {}
    left: list[Names] = []
    for path in sorted(entries, key=lambda path: (-len(path), path)):  # the nearest come first
        name, value = path[-1], entries[path]
        if name in _STEPS and _is_number(value, step):
            continue
        for field, found, rest in _candidates(name, value, names):
            if field not in filled and _fits(field, found, params):
                filled[field] = found
                left += [(*path, *at) for at, leaf in leaves(rest) if leaf is not None]
                break
        else:
            left += [(*path, *at) for at, leaf in leaves(value) if leaf is not None]
    return filled, left


def _candidates(name: str, value: Any, names: Collection[str]) -> list[tuple[str, Any, Any]]:
    """Fields that something may fill: the field, the value for it, and what is left then."""
    if name in names and name != "rngs":
        return [(name, _within(name, value), None)]
    found: list[tuple[str, Any, Any]] = []
    if isinstance(value, Mapping):  # a dict of collections
        for field in names:
            if field in value:
                rest = {key: item for key, item in value.items() if key != field}
                found.append((field, value[field], rest))
    if "rngs" in names and (name == "rngs" or name.endswith(("rng", "key"))):
        keys = value if isinstance(value, Mapping) else {name.removesuffix("_rng"): value}
        found.append(("rngs", keys, None))
    for field in names:
        if name in _NAMES.get(field, ()) and field != "rngs":
            whole = {_STATISTICS: value} if name == _STATISTICS else _within(field, value)
            found.append((field, whole, None))
    return found


def _within(field: str, value: Any) -> PyTree:
    """The collection itself, where it stands in a dict of collections under its own name."""
    name = {"batch_stats": "batch_stats", "ema_params": "params"}.get(field)
    is_alone = isinstance(value, Mapping) and set(value) == {name}
    return value[name] if is_alone else value


def _fits(field: str, value: Any, params: Params) -> bool:
    """Whether a value is of the kind that the field holds."""
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


def _is_number(value: Any, step: int) -> bool:
    return np.shape(value) == () and bool(np.asarray(value) == step)
