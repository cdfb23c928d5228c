# pyright: strict
"""The layouts of the transformer on eight devices."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

DEVICES = 8


@dataclass(frozen=True)
class Layout:
    """A layout of a training on the mesh.

    Attributes:
      mesh: names and sizes of the mesh's axes.
      rule: path and array of a parameter -> its specification.
      batch: specification of the batch.
      state_rule: the same as `rule` for the optimizer's state, if that lies in another way.
    """

    mesh: dict[str, int]
    rule: Callable[[str, Any], PartitionSpec]
    batch: PartitionSpec = field(default_factory=PartitionSpec)
    state_rule: Callable[[str, Any], PartitionSpec] | None = None


def _whole(path: str, value: Any) -> PartitionSpec:
    del path, value
    return PartitionSpec()


def _first_axis(path: str, value: Any) -> PartitionSpec:
    """The first axis that can be divided over the data axis, as FSDP shards."""
    del path
    for index, size in enumerate(value.shape):
        if size % DEVICES == 0:
            return PartitionSpec(*[None] * index, "data")
    return PartitionSpec()


def _hidden(path: str, value: Any) -> PartitionSpec:
    """The hidden units of the block's two dense layers."""
    del value
    return {
        "/Dense_2/kernel": PartitionSpec(None, "model"),
        "/Dense_2/bias": PartitionSpec("model"),
        "/Dense_1/kernel": PartitionSpec("model", None),
    }.get(path, PartitionSpec())


def _hidden_and_heads(path: str, value: Any) -> PartitionSpec:
    """The heads of the attention as well."""
    of_heads = {
        **{f"{name}/kernel": PartitionSpec(None, "model") for name in ("query", "key", "value")},
        **{f"{name}/bias": PartitionSpec("model") for name in ("query", "key", "value")},
        "out/kernel": PartitionSpec("model"),
    }
    _, _, within = path.partition("Attention_0/")
    return of_heads.get(within, _hidden(path, value))


_DATA = {"data": DEVICES}
LAYOUTS = {
    "replicated": Layout(_DATA, _whole),
    "optimizer state": Layout(_DATA, _whole, state_rule=_first_axis),
    "data": Layout(_DATA, _whole, PartitionSpec("data")),
    "FSDP": Layout(_DATA, _first_axis, PartitionSpec("data")),
    "tensor": Layout({"model": DEVICES}, _hidden),
    "data and tensor": Layout({"data": 4, "model": 2}, _hidden_and_heads, PartitionSpec("data")),
}
