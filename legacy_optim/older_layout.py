"""States as flax.optim laid them out in releases before the last: read, or refused by name."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from flax import serialization

from legacy_optim.typing import Params, PyTree, StateDict

OLDER_WEIGHT_NORM = (
    "Up to 0.3.6 WeightNorm kept a `mult` in place of direction and scale, and took other steps: "
    "no later release continues from it. Restore the parameters alone, and start with a fresh "
    "state, create(parameters)."
)


def has_older_weight_norm(state: PyTree) -> bool:
    """True if an optimizer's state dict has WeightNorm states in the layout of flax 0.3.6."""
    if not isinstance(state, Mapping):
        return False
    if {"mult", "direction_state", "scale_state"} <= set(state) and "direction" not in state:
        return True
    return any(has_older_weight_norm(value) for value in state.values())


def grouped_states(state: PyTree) -> list[StateDict] | None:
    """MultiOptimizer's states of up to flax 0.3.2, one for each group; None if this is no such."""
    if not isinstance(state, Mapping) or not state:
        return None
    if set(state) != {str(number) for number in range(len(state))}:
        return None
    states = [state[str(number)] for number in range(len(state))]
    fits = all(isinstance(s, Mapping) and {"step", "param_states"} <= set(s) for s in states)
    return states if fits else None


def refuse_older_weight_norm(state: PyTree) -> None:
    """Raises a ValueError where a state dict has WeightNorm's states of up to flax 0.3.6."""
    if has_older_weight_norm(state):
        raise ValueError(f"state: {OLDER_WEIGHT_NORM}")


def merge_groups(
    states: Sequence[StateDict], groups: Sequence[Sequence[int]], target: Params
) -> StateDict:
    """The state dict of the last release, from the states of groups."""
    sizes = [len(group["param_states"]) for group in states]
    if sizes != [len(group) for group in groups]:
        raise ValueError(
            "state: MultiOptimizer, in the layout of up to flax 0.3.2: expected groups of "
            f"{[len(group) for group in groups]} leaves, found {sizes}. Restore into the "
            "MultiOptimizer that was saved, with its traversals."
        )
    steps = [np.asarray(group["step"]) for group in states]
    if any(not np.array_equal(step, steps[0]) for step in steps):
        raise ValueError(
            "state: MultiOptimizer, in the layout of up to flax 0.3.2: expected one step for all "
            f"groups, found {[step.tolist() for step in steps]}. They were not trained together."
        )
    leaves, treedef = jax.tree.flatten(target)
    rows: list[PyTree] = [None] * len(leaves)
    for group, indices in zip(states, groups, strict=True):
        for position, index in enumerate(indices):
            rows[index] = group["param_states"][str(position)]
    param_states = serialization.to_state_dict(treedef.unflatten(rows))
    return {"step": states[0]["step"], "param_states": param_states}
