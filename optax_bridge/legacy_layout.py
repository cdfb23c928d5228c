"""States of transformations that no legacy definition describes, in the layout of `flax.optim`.

T5X had an Adafactor by axis and a MultiOptimizer of such; their checkpoints have the legacy layout,
a state for each parameter. Here that goes to and from `adafactor(path_rules=...)` and a
`multi_optimizer` of any optimizers of this project.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import optax

from optax_bridge.correspondence import ENTRIES
from optax_bridge.exact.leaf_rule import LeafRule, described
from optax_bridge.exact.transformation import ExactTransformation, Parts
from optax_bridge.metadata.axis_metadata import key_names
from optax_bridge.metadata.trees import OptState, Params
from optax_bridge.optimizers.axis_roles import Planner


def param_states_of(tx: optax.GradientTransformation, opt_state: OptState, params: Params) -> Any:
    """The legacy layout of a state.

        >>> tx, params = optax_bridge.momentum(0.1), {"w": jnp.ones(2)}
        >>> list(param_states_of(tx, tx.init(params), params)["w"])
        ['momentum']

    Args:
      tx: an optimizer of this project, or a `multi_optimizer` of such.
      opt_state: its state, arrays or shapes.
      params: the parameters, without boxes.

    Returns:
      A tree like the parameters with a dict of fields for each; None where no group holds it.

    Raises:
      ValueError: it is another transformation, or one around another.
    """
    rows: dict[Any, Any] = {}
    for _, state, own_params in _whole(tx, opt_state, params):
        trees = {legacy: getattr(state, own) for legacy, own in _fields(state).items()}
        for path, _ in jax.tree_util.tree_leaves_with_path(own_params):
            rows[key_names(path)] = {}
        for legacy, tree in trees.items():
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                rows[key_names(path)][legacy] = leaf
    return jax.tree_util.tree_map_with_path(lambda path, _: rows.get(key_names(path)), params)


def opt_state_of(
    tx: optax.GradientTransformation,
    template: OptState,
    params: Params,
    param_states: Any,
    step: Any,
) -> OptState:
    """The state for what a checkpoint has in the legacy layout.

    Args:
      tx: as of `param_states_of`.
      template: `tx.init(params)`, or its shapes.
      params: the parameters, without boxes.
      param_states: what `param_states_of` returns, with leaves of the template's shapes.
      step: steps taken.

    Returns:
      The state.

    Raises:
      ValueError: as of `param_states_of`.
    """
    count = np.asarray(step, np.int32)
    if (parts := _parts(tx, template, params)) is not None:
        inner = [opt_state_of(*part, param_states, count) for part in parts]
        return template._replace(count=count, inner=tuple(inner))
    treedef = jax.tree.structure(params)
    paths = [key_names(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    rows = [_at(param_states, path) for path in paths]
    fields = _fields(template).items()
    own = {name: treedef.unflatten([row[legacy] for row in rows]) for legacy, name in fields}
    return type(template)(count=count, **own)


def factored_otherwise_in_t5x(tx: optax.GradientTransformation, params: Params) -> list[str]:
    """The parameters whose statistics a checkpoint of T5X has along other axes than `tx`.

    T5X ignores a rule without a batch axis for parameters of rank 2 and below, and factors them by
    size; `adafactor(as_in_t5x=True)` does as well. Of a square kernel the shapes are the same, so
    that only this tells.

        >>> rules = {"kernel": ("column", "row")}
        >>> params = {"kernel": jnp.ones((128, 128))}
        >>> factored_otherwise_in_t5x(optax_bridge.adafactor(path_rules=rules), params)
        ["params['kernel']"]

    Args:
      tx: the transformation that the checkpoint is to be read into.
      params: the parameters, arrays or shapes.

    Returns:
      Their paths.
    """
    rule = getattr(tx.init, "__self__", None)
    if isinstance(rule, LeafRule) and isinstance(rule.plan, Planner):
        return [leaf.path for leaf in rule.plan.differing_in_t5x(described(params))]
    parts = _parts(tx, jax.eval_shape(tx.init, params), params) or ()
    return [path for part, _, own in parts for path in factored_otherwise_in_t5x(part, own)]


def _parts(tx: Any, opt_state: OptState, params: Params) -> Parts | None:
    """The groups of a `multi_optimizer`."""
    is_groups = isinstance(tx, ExactTransformation) and "hyper_params" in tx.hyper_params
    return tx.parts(opt_state, params) if is_groups and tx.parts is not None else None


def _whole(tx: Any, opt_state: OptState, params: Params) -> Iterator[tuple[Any, Any, Any]]:
    """The optimizers that are no groups of others, groups within groups included."""
    parts = _parts(tx, opt_state, params)
    if parts is None:
        yield tx, opt_state, params
        return
    for part in parts:
        yield from _whole(*part)


def _fields(state: OptState) -> dict[str, str]:
    """The legacy name of each field of a state, with its own."""
    name = type(state).__name__
    if getattr(state, "_fields", None) == ("count",):
        return {}
    for entry in ENTRIES.values():
        pairs = [(field.legacy, *field.exact.split(".")) for field in entry.state]
        if pairs and entry.parts is None and all(owner == name for _, owner, _ in pairs):
            return {legacy: own for legacy, _, own in pairs}
    raise ValueError(
        f"{name}, which has no legacy layout. The optimizers of optax_bridge with one state for "
        "all parameters have one, such as optax_bridge.adafactor(path_rules=...), and "
        "multi_optimizers of such. "
        "Pass the legacy definition instead"
    )


def _at(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        tree = tree[name]
    return tree
