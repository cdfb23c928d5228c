"""Transformations made of transformations."""

from collections.abc import Callable

from optax_bridge.metadata.trees import OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    instantiate_transformation,
)
from optax_bridge.spmd.optimizers.from_optax import ExactPartitionedTransformation

TransformUpdate = Callable[..., tuple[Updates, OptState]]


def chain(
    *args: ConfigOr[PartitionedGradientTransformation],
) -> PartitionedGradientTransformation:
    """Applies transformations one after another.

    Args:
      *args: transformations, or configs of them.

    Returns:
      The transformation; its state is the tuple of theirs. It takes exact steps if the last one
      does, as when gradients are clipped before an optimizer of `optax_bridge`.

    Raises:
      ValueError: an argument is something else.
    """
    parts = [
        instantiate_transformation(arg, f"chain: argument {index}")
        for index, arg in enumerate(args)
    ]

    def run(
        last: TransformUpdate | None, updates: Updates, state: OptState, params: Params
    ) -> tuple[Updates, OptState]:
        new_state = []
        for part, part_state in zip(parts, state, strict=True):
            apply = last if last and part is parts[-1] else part.update
            updates, part_state = apply(updates, part_state, params)
            new_state.append(part_state)
        return updates, tuple(new_state)

    def init(params: Params) -> OptState:
        return tuple(part.init(params) for part in parts)

    def partition(specs: PyTree) -> PyTree:
        return tuple(part.partition(specs) for part in parts)

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        return run(None, updates, state, params)

    if not parts or not isinstance(parts[-1], ExactPartitionedTransformation):
        return PartitionedGradientTransformation(init, update, partition)
    exact = parts[-1].step

    def step(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        return run(exact, updates, state, params)

    return ExactPartitionedTransformation(init, update, partition, step)


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
    parts = {
        name: instantiate_transformation(arg, f"named_chain: {name}")
        for name, arg in kwargs.items()
    }

    def update(updates: Updates, state: OptState, params: Params) -> tuple[Updates, OptState]:
        new_state = {}
        for name, part in parts.items():
            updates, new_state[name] = part.update(updates, state[name], params)
        return updates, new_state

    return PartitionedGradientTransformation(
        lambda params: {name: part.init(params) for name, part in parts.items()},
        update,
        lambda specs: {name: part.partition(specs) for name, part in parts.items()},
    )
