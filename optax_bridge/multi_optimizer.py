"""Groups of leaves with a transformation each; what no group holds never moves and has no state."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_bridge.masks import Selector, selected
from optax_bridge.transformation import ExactTransformation, step


class MultiOptimizerState(NamedTuple):
    """State of `multi_optimizer`.

    Attributes:
      count: steps taken, int32 scalar.
      inner: the state of each group, over a tree like the parameters in which the leaves of other
        groups are `optax.MaskedNode()`.
    """

    count: jax.Array
    inner: tuple[Any, ...]


def multi_optimizer(
    *groups: tuple[Selector, optax.GradientTransformation],
) -> ExactTransformation:
    """Gives each group of leaves its own transformation, as `flax.optim.MultiOptimizer`.

    Args:
      *groups: pairs of a selector (a traversal, a tree of booleans like the parameters, or a
        function from parameters to such a tree) and a transformation.

    Returns:
      The transformation. Unmatched leaves keep their value and have no state. Per call, every
      argument goes to every group that takes it, and `hyper_params=[{...}, ...]` gives each group
      its own. `init` raises ValueError where two groups hold the same leaf.
    """
    selectors = [selector for selector, _ in groups]
    inner = [tx for _, tx in groups]

    def masks(params: Any) -> list[list[bool]]:
        chosen = [selected(selector, params) for selector in selectors]
        _check_overlap(params, chosen)
        return chosen

    def init(params: Any) -> MultiOptimizerState:
        states = [
            tx.init(_masked(jax.tree.leaves(params), jax.tree.structure(params), mask))
            for tx, mask in zip(inner, masks(params), strict=True)
        ]
        return MultiOptimizerState(jnp.zeros([], jnp.int32), tuple(states))

    def run(
        grads: Any, state: MultiOptimizerState, params: Any, take: Any, untouched: Any, extra: Any
    ) -> tuple[Any, MultiOptimizerState]:
        treedef = jax.tree.structure(params)
        param_leaves, grad_leaves = jax.tree.leaves(params), treedef.flatten_up_to(grads)
        outputs = [untouched(leaf) for leaf in param_leaves]
        new_states = []
        given = _per_group(extra, len(inner))
        for tx, mask, old, own in zip(inner, masks(params), state.inner, given, strict=True):
            result, new = take(
                tx,
                _masked(grad_leaves, treedef, mask),
                old,
                _masked(param_leaves, treedef, mask),
                **own,
            )
            new_states.append(new)
            for index, leaf in enumerate(treedef.flatten_up_to(result)):
                if mask[index]:
                    outputs[index] = leaf
        return treedef.unflatten(outputs), MultiOptimizerState(state.count + 1, tuple(new_states))

    def exact(grads: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        return run(grads, state, params, step, lambda leaf: leaf, extra)

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "multi_optimizer's update needs the parameters: update(grads, state, params)"
            )
        return run(grads, state, params, _update, jnp.zeros_like, extra)

    return ExactTransformation(init, update, exact, {"hyper_params": None}, inner=inner)


def _update(
    tx: optax.GradientTransformation, grads: Any, state: Any, params: Any, **extra: Any
) -> tuple[Any, Any]:
    return optax.with_extra_args_support(tx).update(grads, state, params, **extra)


def _masked(leaves: Sequence[Any], treedef: Any, mask: Sequence[bool]) -> Any:
    pairs = zip(leaves, mask, strict=True)
    return treedef.unflatten([leaf if chosen else optax.MaskedNode() for leaf, chosen in pairs])


def _per_group(extra: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    rest = {name: value for name, value in extra.items() if name != "hyper_params"}
    own = extra.get("hyper_params")
    if own is None:
        return [rest] * count
    if len(own) != count:
        raise ValueError(
            f"hyper_params has {len(own)} entries for {count} groups; give one mapping for each "
            f"group, {{}} for a group that keeps its own"
        )
    return [{**group, **rest} for group in own]


def _check_overlap(params: Any, chosen: Sequence[Sequence[bool]]) -> None:
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    clashes = []
    for index, path in enumerate(paths):
        holders = [group for group, mask in enumerate(chosen) if mask[index]]
        if len(holders) > 1:
            clashes.append(f"params{jax.tree_util.keystr(path)} in groups {holders}")
    if clashes:
        raise ValueError(
            f"multi_optimizer: groups overlap: {'; '.join(clashes)}. A leaf can be in one group at "
            "most: narrow one of the selectors."
        )
