"""Transformations made of transformations."""

from typing import Any

from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.data import PartitionedGradientTransformation, instantiated


def chain(
    *args: ConfigOr[PartitionedGradientTransformation],
) -> PartitionedGradientTransformation:
    """Applies transformations one after another.

    Args:
      *args: transformations, or configs of them.

    Returns:
      The transformation; its state is the tuple of theirs.

    Raises:
      ValueError: an argument is something else.
    """
    parts = [instantiated(arg, f"chain: argument {index}") for index, arg in enumerate(args)]

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        new_state = []
        for part, part_state in zip(parts, state, strict=True):
            updates, part_state = part.update(updates, part_state, params)
            new_state.append(part_state)
        return updates, tuple(new_state)

    return PartitionedGradientTransformation(
        lambda params: tuple(part.init(params) for part in parts),
        update,
        lambda specs: tuple(part.partition(specs) for part in parts),
    )


def named_chain(
    **kwargs: ConfigOr[PartitionedGradientTransformation],
) -> PartitionedGradientTransformation:
    """Applies transformations one after another, each by a name.

    Args:
      **kwargs: name -> transformation, or a config of one.

    Returns:
      The transformation; its state is a dict with theirs.

    Raises:
      ValueError: an argument is something else.
    """
    parts = {name: instantiated(arg, f"named_chain: {name}") for name, arg in kwargs.items()}

    def update(updates: Any, state: Any, params: Any) -> tuple[Any, Any]:
        new_state = {}
        for name, part in parts.items():
            updates, new_state[name] = part.update(updates, state[name], params)
        return updates, new_state

    return PartitionedGradientTransformation(
        lambda params: {name: part.init(params) for name, part in parts.items()},
        update,
        lambda specs: {name: part.partition(specs) for name, part in parts.items()},
    )
