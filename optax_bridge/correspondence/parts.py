"""What an entry says of a legacy optimizer that holds others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any, Protocol

import legacy_optim
from optax_bridge.metadata.trees import OptState, Params

# Path in the parameters, parameter, and the fields of its state by name, None for none.
Row = tuple[tuple[str, ...], Any, Mapping[str, Any] | None]


def tree() -> Any:
    """`jax.tree`: JAX is slow to import, and no recipe needs it."""
    import jax

    return jax.tree


class Parts(Protocol):
    """How a legacy optimizer holds others: what each of them moves, and where its state is.

    `own` are the fields of its own that the entry's state map names: legacy name -> a tree like the
    parameters. Legacy parameter states are trees like the parameters, with one state for each.
    """

    example: str  # a constructor call, for messages
    state_type: str  # name of the type that this project's transformation has for a state

    def definitions(
        self, definition: legacy_optim.OptimizerDef
    ) -> Sequence[legacy_optim.OptimizerDef]:
        """The optimizers within."""
        ...

    def params(
        self, definition: legacy_optim.OptimizerDef, params: Params, own: Mapping[str, Any]
    ) -> Sequence[Params]:
        """What each of them moves."""
        ...

    def param_states(
        self, definition: legacy_optim.OptimizerDef, params: Params, param_states: Any
    ) -> Sequence[Any]:
        """The legacy parameter states of each, trees like what it moves."""
        ...

    def joined(
        self,
        definition: legacy_optim.OptimizerDef,
        params: Params,
        own: Mapping[str, Any],
        inner: Sequence[Any],
    ) -> Any:
        """The legacy parameter states of the whole, from those of each."""
        ...

    def states(self, opt_state: OptState) -> Sequence[OptState]:
        """The states of the transformations within a transformation's state."""
        ...

    def with_states(self, opt_state: OptState, states: Sequence[OptState]) -> OptState:
        """The state with others in it."""
        ...

    def recognised(self, kinds: Set[frozenset[str]], fields: frozenset[str]) -> bool:
        """Whether a checkpoint may be of this optimizer.

        Args:
          kinds: the different sets of fields that its parameters' states have.
          fields: those of this optimizer's own state.
        """
        ...

    def rows_within(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """What a checkpoint has for each of the optimizers within, or for those that differ."""
        ...

    def around(self, inner: legacy_optim.OptimizerDef) -> legacy_optim.OptimizerDef | None:
        """The optimizer that holds this one, None where a checkpoint does not say enough."""
        ...
