"""An optimizer's state in the memory of the host, where the devices have no room for it."""

import re
from collections.abc import Callable

import jax

from optax_bridge.metadata.trees import OptState, Params, PyTree, Updates
from optax_bridge.spmd.config import ConfigOr
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation,
    copy_partition,
    instantiate_transformation,
)
from optax_bridge.spmd.optimizers.from_optax import ExactPartitionedTransformation
from optax_bridge.spmd.trees import tree_paths

_SPACES = {"device": jax.memory.Space.Device, "pinned_host": jax.memory.Space.Host}


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

    def through(run: Callable[..., tuple[PyTree, OptState]]) -> Callable[..., tuple]:
        def run_here(updates: Updates, state: OptState, params: Params) -> tuple[PyTree, OptState]:
            new, state = run(updates, move(state, offload_src), params)
            return new, move(state, offload_dst)

        return run_here

    def partition(specs: PyTree) -> PyTree:
        return copy_partition(tx.partition(specs), pattern=pattern, memory_kind=offload_dst)

    if isinstance(tx, ExactPartitionedTransformation):
        return ExactPartitionedTransformation(
            tx.init, through(tx.update), partition, through(tx.step)
        )
    return PartitionedGradientTransformation(tx.init, through(tx.update), partition)


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
