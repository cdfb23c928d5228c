"""States in memory: a legacy state dict to a `TrainState`, and back."""

from typing import Any

import optax
from flax import serialization

import legacy_optim
from optax_bridge.checkpoints.to_legacy import legacy_tree
from optax_bridge.checkpoints.to_train_state import convert_tree, train_state
from optax_bridge.checkpoints.trees import plain
from optax_bridge.checks import check_optimizer_def
from optax_bridge.metadata.trees import PyTree
from optax_bridge.training.train_state import TrainState


def convert_state(
    state: PyTree,
    optimizer_def: legacy_optim.OptimizerDef | optax.GradientTransformation | None = None,
    *,
    exact: bool = True,
    part: str | None = None,
    allow_nan: bool = False,
) -> TrainState | PyTree:
    """Converts in memory: a legacy state dict to a TrainState, a TrainState to a state dict.

        >>> definition = legacy_optim.Momentum(0.1)
        >>> optimizer = definition.create({"kernel": jnp.ones(3)})
        >>> state = convert_state(optimizer.apply_gradient(optimizer.target))
        >>> int(state.step), state.params["kernel"].tolist() == [jnp.float32(0.9)] * 3
        (1, True)
        >>> sorted(convert_state(state, definition))
        ['state', 'target']

    Args:
      state: a TrainState; or a legacy `Optimizer`, a dataclass, dict or tuple that holds one, or
        the nested dicts that `flax.serialization.to_state_dict` makes of either.
      optimizer_def: the legacy definition. May be None for an `Optimizer`, which has its own, or if
        the state's fields fit only one optimizer. For a legacy state it may also be a
        transformation, such as `optax_bridge.adafactor` by axis.
      exact: see `optax_bridge.from_legacy`.
      part: the '/'-joined path of the optimizer, if the tree has several.
      allow_nan: let NaN and infinities in parameters and moments through.

    Returns:
      A `TrainState`, whose arrays stay on their devices; for a TrainState the state dict
      `{'target', 'state': {'step', 'param_states'}}`.

    Raises:
      CheckpointError: the state belongs to another optimizer.
      TypeError: a TrainState without `optimizer_def`.
    """
    if isinstance(state, TrainState):
        if optimizer_def is None:
            raise TypeError("convert_state(train_state) needs optimizer_def=, a definition")
        definition: Any = optimizer_def  # which `legacy_tree` checks
        return legacy_tree(state.params, state.opt_state, state.step, definition)[0]
    if optimizer_def is None and isinstance(state, legacy_optim.Optimizer):
        optimizer_def = state.optimizer_def
    check_optimizer_def(optimizer_def)
    tree = plain(serialization.to_state_dict(state))
    converted = convert_tree(tree, optimizer_def, exact=exact, part=part, allow_nan=allow_nan)
    return train_state(TrainState, converted)
