"""Groups of leaves with a transformation each; leaves of no group stay fixed, without state."""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from optax_bridge._text import describe
from optax_bridge.checks import check_transformation
from optax_bridge.correspondence.entry import RATE, Case, Entry, LegacyClass, Row
from optax_bridge.correspondence.recipe import Name, Node, call
from optax_bridge.exact.arguments import accepted_arguments, unused_arguments
from optax_bridge.exact.boxed import boxes_handled
from optax_bridge.exact.calls import check_flag
from optax_bridge.exact.transformation import (
    ExactTransformation,
    Parts,
    take_step,
    update_with_arguments,
)
from optax_bridge.metadata.axis_metadata import boxed_as, boxed_like, is_box, value_of
from optax_bridge.metadata.trees import Extra, HyperParams, Leaf, OptState, Params, PyTree, Updates
from optax_bridge.optimizers.groups import Group, groups_of
from optax_bridge.optimizers.selectors import ParamLeaves, Selector, say_nothing_selected, select

# `take_step`, or Optax's `update` in its place.
Take = Callable[..., tuple[PyTree, OptState]]


class MultiOptimizerState(NamedTuple):
    """State of `multi_optimizer`.

    Attributes:
      count: steps taken, int32 scalar.
      inner: the state of each group, over a nested dict of the group's own leaves.
    """

    count: jax.Array
    inner: tuple[OptState, ...]


def multi_optimizer(
    *groups: tuple[Selector, optax.GradientTransformation],
    strict: bool = False,
) -> ExactTransformation:
    """Gives each group of leaves its own transformation, as `flax.optim.MultiOptimizer`.

        >>> tx = multi_optimizer(("*/kernel", optax_bridge.adam(1e-3)))
        >>> params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
        >>> tx.init(params).inner[0].mu
        {'kernel': Array([[0., 0.],
               [0., 0.]], dtype=float32)}

    `optax.tree.map_params` maps its state, but not together with another tree like the parameters,
    since each group has only its own leaves; for shardings use `opt_state_shardings`.

    Args:
      *groups: pairs of a selector and a transformation. A selector is a glob on '/'-joined paths
        (`"*/kernel"`), a traversal, a tree of booleans like the parameters, or a function from
        parameters to such a tree.
      strict: a group that holds no parameter is an error, not a warning.

    Returns:
      The transformation. Unmatched leaves keep their value and have no state. Per call, an argument
      goes to every group that takes it, and `hyper_params=[{...}, ...]` gives each group its own.
      Each transformation sees only its group's leaves, as a nested dict, so the cost grows with the
      leaves, not with the groups.

    Raises:
      TypeError: a group is not a pair, or has no transformation. `init` raises ValueError if two
        groups hold the same leaf, and a step TypeError for an argument in `hyper_params` that its
        group does not take.

    Warns:
      NothingSelectedWarning: by `init`, where a group holds no parameter.
    """
    check_flag(strict, "strict")
    for index, group in enumerate(groups):
        is_one = hasattr(group, "init") and hasattr(group, "update")
        if is_one or not isinstance(group, tuple | list) or len(group) != 2:
            actual = "a transformation alone" if is_one else type(group).__name__
            raise TypeError(
                f"groups[{index}]: expected a pair of a selector and a transformation, found "
                f"{actual}: multi_optimizer((selector, tx), (selector, tx))"
            )
        check_transformation(group[1], f"groups[{index}][1]")
    selectors = tuple(selector for selector, _ in groups)
    split = _Groups(selectors, tuple(tx for _, tx in groups), strict)
    return ExactTransformation(
        split.init, split.update, split.step, {"hyper_params": None}, split.inner, split.parts
    )


@dataclass(frozen=True, eq=False)
class _Groups:
    selectors: tuple[Selector, ...]
    inner: tuple[optax.GradientTransformation, ...]
    strict: bool
    cache: dict[Hashable, list[Group]] = field(default_factory=dict, repr=False)

    def groups(self, params: Params) -> list[Group]:
        leaves, treedef = jax.tree.flatten(params)
        key = treedef, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)
        if key not in self.cache:
            groups = groups_of(self.selectors, params)
            for index, group in enumerate(groups):
                if not group.indices:
                    say_nothing_selected(f"multi_optimizer, group {index}", params, self.strict)
            self.cache[key] = groups
        return self.cache[key]

    def parts(self, state: MultiOptimizerState, params: Params) -> Parts:
        leaves = jax.tree.leaves(params, is_leaf=is_box)
        trees = [group.tree(leaves) for group in self.groups(params)]
        return list(zip(self.inner, state.inner, trees, strict=True))

    def init(self, params: Params) -> MultiOptimizerState:
        leaves = jax.tree.leaves(params, is_leaf=is_box)
        if leaves or isinstance(params, Mapping | list | tuple | None):
            trees = [group.tree(leaves) for group in self.groups(params)]
        else:  # the placeholder of optax.tree.map_params for all parameters: for a group's, too
            trees = [params] * len(self.inner)
        pairs = zip(self.inner, trees, strict=True)
        states = tuple(boxes_handled(tx).init(group) for tx, group in pairs)
        return MultiOptimizerState(jnp.zeros([], jnp.int32), states)

    def step(
        self, grads: Updates, state: MultiOptimizerState, params: Params, **extra: Extra
    ) -> tuple[Params, MultiOptimizerState]:
        return self._run(take_step, lambda param: param, grads, state, params, extra)

    def update(
        self,
        grads: Updates,
        state: MultiOptimizerState,
        params: Params | None = None,
        **extra: Extra,
    ) -> tuple[Updates, MultiOptimizerState]:
        if params is None:
            raise ValueError(
                "multi_optimizer's update needs the parameters: update(grads, state, params)"
            )
        return self._run(_update, jnp.zeros_like, grads, state, params, extra)

    def _run(
        self,
        take: Take,
        untouched: Callable[[Leaf], Leaf],
        grads: Updates,
        state: OptState,
        params: Params,
        extra: Mapping[str, Extra],
    ) -> tuple[PyTree, MultiOptimizerState]:
        leaves, treedef = jax.tree.flatten(params, is_leaf=is_box)
        grad_leaves = treedef.flatten_up_to(grads)
        outputs = [boxed_like(leaf, untouched(value_of(leaf))) for leaf in leaves]
        new_states = []
        overrides = _per_group(extra.get("hyper_params"), len(self.inner))
        shared_arguments = {name: value for name, value in extra.items() if name != "hyper_params"}
        parts: list[tuple[optax.GradientTransformation, Updates, OptState, Params]] = []
        for group, tx, old in zip(self.groups(params), self.inner, state.inner, strict=True):
            group_params = group.tree(leaves)
            group_grads = boxed_as(group_params, group.tree(grad_leaves))
            parts.append((boxes_handled(tx), group_grads, old, group_params))
        for index, (part, override) in enumerate(zip(parts, overrides, strict=True)):
            if unused := unused_arguments(*part, override):
                accepted = accepted_arguments(part[0])
                taken = "not known" if accepted is None else ", ".join(sorted(accepted)) or "none"
                raise TypeError(
                    f"hyper_params[{index}]: group {index} takes no {', '.join(unused)} per call; "
                    f"its arguments: {taken}"
                )
        for group, part, override in zip(self.groups(params), parts, overrides, strict=True):
            result, new = take(*part, **{**override, **shared_arguments})
            new_states.append(new)
            for index, leaf in zip(group.indices, group.treedef.flatten_up_to(result), strict=True):
                outputs[index] = leaf
        return treedef.unflatten(outputs), MultiOptimizerState(state.count + 1, tuple(new_states))


def frozen(
    selector: Selector, tx: optax.GradientTransformation, *, strict: bool = False
) -> ExactTransformation:
    """Freezes leaves: they never move, have no state, and are left out of every norm in `tx`.

        >>> tx = frozen({"a": True, "b": False}, optax_bridge.sgd(0.5))
        >>> params = {"a": 1.0, "b": 1.0}
        >>> new, _ = tx.step(params, tx.init(params), params)
        >>> new
        {'a': 1.0, 'b': 0.5}

    Inside `optax.masked(tx, mask)` a global norm counts no frozen leaf either, but raw gradients
    pass through where the mask is False; clipping outside of it counts frozen leaves.

    Args:
      selector: the leaves to freeze.
      tx: the transformation of all other leaves, clipping included.
      strict: a selector that holds no parameter is an error, not a warning.

    Returns:
      The transformation.

    Warns:
      NothingSelectedWarning: by `init`, where the selector holds no parameter.
    """

    def others(params: Params) -> PyTree:
        leaves = ParamLeaves(params)
        chosen = select(selector, leaves)
        if not any(chosen):
            say_nothing_selected("frozen", params, strict)
        return leaves.like([not is_chosen for is_chosen in chosen])

    return multi_optimizer((others, tx), strict=strict)


def _update(
    tx: optax.GradientTransformation,
    grads: Updates,
    state: OptState,
    params: Params,
    **extra: Extra,
) -> tuple[Updates, OptState]:
    return update_with_arguments(tx)(grads, state, params, **extra)


def _per_group(overrides: Extra, count: int) -> Sequence[HyperParams]:
    if overrides is None:
        return [{}] * count
    is_list = isinstance(overrides, list | tuple)
    if not is_list or not all(isinstance(override, Mapping) for override in overrides):
        raise TypeError(
            "hyper_params: expected a list with one mapping for each group, found "
            f"{describe(overrides)}"
        )
    if len(overrides) != count:
        raise ValueError(
            f"hyper_params has {len(overrides)} entries for {count} groups; give one mapping for "
            "each group, {} for a group that keeps its own"
        )
    return overrides


def is_matrix(path: str, value: Leaf) -> bool:
    """Selects the leaves of rank 2 or more, for the suite's cases."""
    del path
    return len(value.shape) >= 2


def is_vector(path: str, value: Leaf) -> bool:
    """Selects the leaves of rank 1, for the suite's cases."""
    del path
    return len(value.shape) == 1


_MATRICES = call("legacy_optim.ModelParamTraversal", Name(f"{__name__}.is_matrix"))
_VECTORS = call("legacy_optim.ModelParamTraversal", Name(f"{__name__}.is_vector"))


class _Parts:
    """Each optimizer has the states of its group of leaves."""

    example = 'MultiOptimizer(("*/kernel", Adam(1e-3)), ("*/bias", Momentum(0.1)))'

    def matches(self, kinds: Set[frozenset[str]], fields: frozenset[str]) -> bool:
        del fields
        return len(kinds) > 1

    def rows_within(self, rows: Sequence[Row]) -> list[list[Row]]:
        groups: dict[frozenset[str], list[Row]] = {}
        for row in rows:
            if row[2] is not None:
                groups.setdefault(frozenset(row[2]), []).append(row)
        return list(groups.values())

    def wrap(self, inner: Any) -> None:
        return None  # which leaves are in a group, no file says


def _pairs(definition: Any) -> tuple[Node, ...]:
    return tuple(zip(definition.traversals, definition.sub_optimizers, strict=True))


_NO_DICT = "the traversals of flax.optim go over nested dicts of parameters"

# MultiOptimizer: groups of leaves, each with an optimizer of its own; the rest keeps its value.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.MultiOptimizer"),
    port="optax_bridge.multi_optimizer",
    renamed={"traversals_and_optimizers": "groups"},
    getters={"traversals_and_optimizers": _pairs},
    state=(),
    optax=(),
    cases=(
        Case(
            {
                "traversals_and_optimizers": (
                    (_MATRICES, call("legacy_optim.Momentum", learning_rate=RATE)),
                    (_VECTORS, call("legacy_optim.Adam", learning_rate=RATE, weight_decay=0.01)),
                )
            }
        ),
        Case(
            {
                "traversals_and_optimizers": (
                    (_MATRICES, call("legacy_optim.LAMB", learning_rate=RATE)),
                )
            }
        ),
    ),
    notes=(
        "Leaves that no traversal matches keep their value and have no state. `optax.masked` is "
        "another thing: it hands the raw gradient of an unmatched leaf through, and "
        "`apply_updates` adds it. `optax.partition` with `optax.set_to_zero` for the rest does "
        "the same as this."
    ),
    sources=("flax.optim.base",),
    parts=_Parts(),
    excluded={
        "per-group": "it wraps the other optimizers to give them groups",
        "list": _NO_DICT,
        "namedtuple": _NO_DICT,
        "nnx": _NO_DICT,
        "scalars": "no parameter is a matrix, and a group that holds nothing warns",
        "boxed": "the traversals of flax.optim see the box, not the parameter",
    },
)
