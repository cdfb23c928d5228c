"""MultiOptimizer: groups of leaves, each with an optimizer of its own; the rest stays as it is."""

from typing import Any

import legacy_optim
from optax_bridge.correspondence.entry import RATE, Case, Entry, HyperParam
from optax_bridge.correspondence.recipe import Name, call


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

ENTRY = Entry(
    legacy=legacy_optim.MultiOptimizer,
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
)
