"""A recording of PyTorch with the names and the layout of Flax, and any optimizer's state."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from equivalence_tests.recordings.format import Recording, Step, nest
from optax_bridge._text import listing
from optax_bridge.checkpoints.errors import CheckpointError
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import torch_checkpoint
from optax_bridge.torch.checkpoints.moves import as_legacy
from optax_bridge.torch.checkpoints.names import NamesFile, Rule

_OF_PARAMS = ("params", "half_params", "raw_grads", "grads", "new_params")


def in_flax(recording: Recording, file: NamesFile) -> Recording:
    """Returns a recording with the names and the layout of a names file."""
    tensors = list(recording.steps[0].tensors)
    entries = {name: entry for name, entry in file.entries.items() if name in tensors}
    if not entries:
        raise CheckpointError(
            file.path, "a line for each recorded tensor", f"none of {listing(tensors)}",
            "Draft it: optax-bridge replay RECORDING --draft-names new.py:make_state.",
        )  # fmt: skip
    rules = dataclasses.replace(file, model=None, optimizer=None, entries=entries).rules(tensors)
    to = {rule.name: [path[1:] for path in rule.paths] for rule in rules}
    groups = [
        {**group, "params": [path for (name,) in group["params"] for path in to.get(name, ())]}
        for group in recording.index.get("groups", [])
    ]
    steps = [_step_in_flax(step, rules) for step in recording.steps]
    return dataclasses.replace(recording, index={**recording.index, "groups": groups}, steps=steps)


def _step_in_flax(step: Step, rules: Sequence[Rule]) -> Step:
    by_name = {rule.name: rule for rule in rules}
    trees = dict(step.trees)
    for tree in trees.keys() & {*_OF_PARAMS, "model_state"}:
        trees[tree] = {}
        for name, leaf in step.trees[tree].items():
            if rule := by_name.get("/".join(map(str, name))):
                for path, array in rule.to_flax(leaf).items():
                    path = path[1:] if tree in _OF_PARAMS else path
                    trees[tree][path] = np.ascontiguousarray(array)
    missing = frozenset(
        (tree, path[1:])
        for tree, name in step.missing
        if (rule := by_name.get("/".join(map(str, name))))
        for path in rule.paths
    )
    return dataclasses.replace(step, trees=trees, missing=missing)


def recorded_state(source: Recording, names: NamesFile | None) -> PyTree:
    """The optimizer's state before the first step, in the layout of flax.optim or Optax's own."""
    first, state = source.steps[0], source.steps[0].trees.get("state")
    if state is None:
        return None
    tree = nest({tuple(map(str, path)): leaf for path, leaf in state.items()})
    if "param_groups" not in tree:
        is_legacy = "param_states" in tree
        return {"state": tree} if is_legacy else {"step": source.first, "opt_state": tree}
    order = [str(name) for group in source.index.get("groups", []) for (name,) in group["params"]]
    entries = {str(name): f"params/{name}" for (name,) in first.trees["params"]}
    drop = [str(name) for (name,) in first.trees.get("model_state", {})]
    if names is not None:
        entries, drop = names.entries, names.drop
    file = NamesFile(source.place, "model", "optimizer", drop, order, entries)
    saved = {"model": first.tensors, "optimizer": nest(state)}
    checkpoint = torch_checkpoint(saved, source.place, "model", "optimizer")
    return as_legacy(checkpoint, file, step=source.first)[0]["optimizer"]
