"""MultiOptimizer: groups of leaves, each with an optimizer of its own; the rest stays as it is."""

from collections.abc import Sequence, Set
from typing import Any

from optax_bridge.correspondence.entry import RATE, Case, Entry, HyperParam, LegacyClass
from optax_bridge.correspondence.parts import Row, tree
from optax_bridge.correspondence.recipe import Name, call
from optax_bridge.metadata.trees import OptState, Params


def is_matrix(path: str, value: Any) -> bool:
    """Selects the leaves of rank 2 or more, for the suite's cases."""
    del path
    return len(value.shape) >= 2


def is_vector(path: str, value: Any) -> bool:
    """Selects the leaves of rank 1, for the suite's cases."""
    del path
    return len(value.shape) == 1


_MATRICES = call("legacy_optim.ModelParamTraversal", Name(f"{__name__}.is_matrix"))
_VECTORS = call("legacy_optim.ModelParamTraversal", Name(f"{__name__}.is_vector"))


class _Groups:
    """Each optimizer moves its group of leaves and has the states of just those."""

    example = 'MultiOptimizer(("*/kernel", Adam(1e-3)), ("*/bias", Momentum(0.1)))'
    state_type = "MultiOptimizerState"

    def definitions(self, definition: Any) -> Any:
        return definition.sub_optimizers

    def params(self, definition: Any, params: Params, own: Any) -> Any:
        del own
        leaves = tree().leaves(params)
        return [group.tree(leaves) for group in _groups(definition, params)]

    def param_states(self, definition: Any, params: Params, param_states: Any) -> Any:
        rows = tree().structure(params).flatten_up_to(param_states)
        return [group.tree(rows) for group in _groups(definition, params)]

    def joined(self, definition: Any, params: Params, own: Any, inner: Any) -> Any:
        del own
        treedef = tree().structure(params)
        rows: list[Any] = [None] * treedef.num_leaves
        for group, states in zip(_groups(definition, params), inner, strict=True):
            for index, row in zip(group.indices, group.treedef.flatten_up_to(states), strict=True):
                rows[index] = row
        return treedef.unflatten(rows)

    def states(self, opt_state: OptState) -> Any:
        return opt_state.inner

    def with_states(self, opt_state: OptState, states: Any) -> Any:
        return opt_state._replace(inner=tuple(states))

    def recognised(self, kinds: Set[frozenset[str]], fields: frozenset[str]) -> bool:
        del fields
        return len(kinds) > 1

    def rows_within(self, rows: Sequence[Row]) -> list[list[Row]]:
        groups: dict[frozenset[str], list[Row]] = {}
        for row in rows:
            if row[2] is not None:
                groups.setdefault(frozenset(row[2]), []).append(row)
        return list(groups.values())

    def around(self, inner: Any) -> None:
        return None  # which leaves are in a group, no file says


def _groups(definition: Any, params: Params) -> list[Any]:
    from optax_bridge.optimizers.groups import groups_of  # and Optax, which `migrate` needs not

    return groups_of(definition.traversals, params)


_NO_DICT = "the traversals of flax.optim go over nested dicts of parameters"

ENTRY = Entry(
    legacy=LegacyClass("MultiOptimizer"),
    port="optax_bridge.multi_optimizer",
    hyper_params=(
        HyperParam(
            "traversals_and_optimizers",
            "groups",
            getter=lambda definition: tuple(
                zip(definition.traversals, definition.sub_optimizers, strict=True)
            ),
            variadic=True,
        ),
    ),
    state=(),
    stock=(),
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
    parts=_Groups(),
    excluded={
        "per-group": "it is what the others are wrapped in to have groups",
        "list": _NO_DICT,
        "namedtuple": _NO_DICT,
        "nnx": _NO_DICT,
        "scalars": "no parameter is a matrix, and a group that holds nothing warns",
        "boxed": "the traversals of flax.optim see the box, not the parameter",
    },
)
