"""Transformations made of transformations: several in a row, or one whose state lies elsewhere."""

import re

import jax

from optax_bridge.metadata.trees import OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    copy_partition,
    instantiate_transformation,
)
from optax_bridge.spmd.optimizers.from_optax import Run, around
from optax_bridge.spmd.trees import tree_paths

_SPACES = {"device": jax.memory.Space.Device, "pinned_host": jax.memory.Space.Host}


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

    def through(run_last: Run, gives_values: bool) -> Run:
        del gives_values

        def run(updates: Updates, state: OptState, params: Params) -> tuple[PyTree, OptState]:
            new_state = []
            for apply, part_state in zip(
                [*(part.update for part in parts[:-1]), run_last], state, strict=True
            ):
                updates, part_state = apply(updates, part_state, params)
                new_state.append(part_state)
            return updates, tuple(new_state)

        return run

    def init(params: Params) -> OptState:
        return tuple(part.init(params) for part in parts)

    def partition(specs: PyTree) -> PyTree:
        return tuple(part.partition(specs) for part in parts)

    if not parts:
        return PartitionedGradientTransformation(init, lambda u, state, _: (u, state), partition)
    return around(parts[-1], init, partition, through)


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


def offload_optimizer(
    optimizer: ConfigOr[PartitionedGradientTransformation],
    *,
    pattern: str | re.Pattern[str] = ".*",
    offload_src: str = "device",
    offload_dst: str = "pinned_host",
) -> PartitionedGradientTransformation:
    """An optimizer whose state lies in another memory between the steps.

    A step fetches the state, and sends it back. A trainer's state lies there from the first step
    on, and a checkpoint is restored to there.

    Args:
      optimizer: the optimizer.
      pattern: a regular expression for whole paths of the state: what lies there.
      offload_src: the memory in which steps are computed.
      offload_dst: the memory between them.

    Raises:
      ValueError: an argument is None or no memory, or the devices have no such memory.
    """
    where = "offload_optimizer"
    if optimizer is None or pattern is None:
        raise ValueError(f"{where}: optimizer={optimizer!r}, pattern={pattern!r}: both are needed")
    for name, kind in (("offload_src", offload_src), ("offload_dst", offload_dst)):
        _check_memory(f"{where}: {name}", kind)
    tx = instantiate_transformation(optimizer, f"{where}: optimizer")

    def move(state: OptState, kind: str) -> OptState:
        def put(path: str, leaf: jax.Array) -> jax.Array:
            return jax.device_put(leaf, _SPACES[kind]) if re.fullmatch(pattern, path) else leaf

        return jax.tree.map(put, tree_paths(state), state)

    def through(run: Run, gives_values: bool) -> Run:
        del gives_values

        def run_here(updates: Updates, state: OptState, params: Params) -> tuple[PyTree, OptState]:
            new, state = run(updates, move(state, offload_src), params)
            return new, move(state, offload_dst)

        return run_here

    def partition(specs: PyTree) -> PyTree:
        return copy_partition(tx.partition(specs), pattern=pattern, memory_kind=offload_dst)

    return around(tx, tx.init, partition, through)


def _check_memory(where: str, kind: str | None) -> None:
    """Raises ValueError unless this process's devices have such a memory."""
    if kind not in _SPACES:
        raise ValueError(f"{where}: expected one of {list(_SPACES)}, found {kind!r}")
    device = jax.local_devices()[0]
    kinds = sorted(memory.kind for memory in device.addressable_memories())
    if kind not in kinds:
        raise ValueError(
            f"{where}: {device.platform} devices ({device.device_kind}) have no memory {kind!r}, "
            f"only {kinds}. Leave offload_optimizer out here."
        )
