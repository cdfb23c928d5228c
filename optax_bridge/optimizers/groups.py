"""The leaves that selectors choose for each group, and how many they are."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from optax_bridge.metadata.axis_metadata import nested_dict
from optax_bridge.metadata.paths import keystr
from optax_bridge.metadata.trees import Leaf, Params, PyTree
from optax_bridge.optimizers.selectors import ParamLeaves, Selector, select


class Group(NamedTuple):
    """The leaves of a group."""

    indices: tuple[int, ...]
    treedef: Any

    def tree(self, leaves: Sequence[Leaf]) -> PyTree:
        """The group's part of a list of as many leaves as there are parameters."""
        return self.treedef.unflatten([leaves[index] for index in self.indices])


class GroupCount(NamedTuple):
    """The size of a group."""

    group: int | None
    leaves: int
    parameters: int


def group_counts(
    params: Params, *groups: tuple[Selector, optax.GradientTransformation] | Selector
) -> list[GroupCount]:
    """Counts the arrays and elements of each group, to print before a long run.

        >>> params = {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}
        >>> for count in group_counts(params, {"kernel": True, "bias": False}):
        ...     print(count)
        GroupCount(group=0, leaves=1, parameters=6)
        GroupCount(group=None, leaves=1, parameters=3)

    Args:
      params: the parameters, or their shapes.
      *groups: the arguments of `multi_optimizer`, or selectors alone.

    Returns:
      One count for each group, and a last one for the leaves that none holds.

    Raises:
      ValueError: two groups hold the same leaf.
    """
    selectors = [_selector(group) for group in groups]
    sizes = [int(np.prod(jnp.shape(leaf))) for leaf in jax.tree.leaves(params)]
    chosen = groups_of(selectors, params)
    counts = [
        GroupCount(index, len(group.indices), sum(sizes[i] for i in group.indices))
        for index, group in enumerate(chosen)
    ]
    unselected = set(range(len(sizes))).difference(*(group.indices for group in chosen))
    return [*counts, GroupCount(None, len(unselected), sum(sizes[i] for i in unselected))]


def groups_of(selectors: Sequence[Selector], params: Params) -> list[Group]:
    """The groups that selectors make of parameters."""
    leaves = ParamLeaves(params)
    members: list[list[int]] = []
    groups_at: list[list[int]] = [[] for _ in leaves.paths]
    for group, selector in enumerate(selectors):
        members.append([i for i, chosen in enumerate(select(selector, leaves)) if chosen])
        for index in members[-1]:
            groups_at[index].append(group)
    clashes = [
        f"params{keystr(path)} in groups {holders}"
        for path, holders in zip(leaves.paths, groups_at, strict=True)
        if len(holders) > 1
    ]
    if clashes:
        raise ValueError(
            f"multi_optimizer: groups overlap: {'; '.join(clashes)}. A leaf can be in one group at "
            "most: narrow one of the selectors."
        )
    groups: list[Group] = []
    for indices in members:
        by_path, treedef = jax.tree.flatten(nested_dict([(leaves.paths[i], i) for i in indices]))
        groups.append(Group(tuple(by_path), treedef))
    return groups


def _selector(group: PyTree) -> Selector:
    """The selector of a pair, or the selector itself."""
    is_tuple = isinstance(group, tuple) and not hasattr(group, "update")
    is_pair = is_tuple and len(group) == 2 and hasattr(group[1], "update")
    return group[0] if is_pair else group
