# pyright: strict
"""Descriptions of parameters before they exist."""

import dataclasses
import enum
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Optional, Self, Union

import jax
from jax.sharding import PartitionSpec

from optax_bridge.metadata.trees import Params
from optax_bridge.spmd.config import ConfigOr, Configurable
from optax_bridge.spmd.trees import TensorSpec

Axes = Union[int, tuple[int, ...]]  # noqa: UP007


class FanAxes(NamedTuple):
    """The axes of a weight that are inputs, outputs, and stacked; equal if they say the same.

    Attributes:
      in_axis: axes that a product with the weight sums over.
      out_axis: axes of the product's result.
      batch_axis: axes along which weights are stacked.
    """

    in_axis: Axes
    out_axis: Axes
    batch_axis: Axes = ()

    class AxisType(enum.Enum):
        """The kinds of axes."""

        IN_AXIS = "in_axis"
        OUT_AXIS = "out_axis"
        BATCH_AXIS = "batch_axis"
        NONE = "none"

    def canonicalize(self) -> "FanAxes":
        """The same with sorted tuples."""
        return FanAxes(*(tuple(sorted(_tuple(axes))) for axes in self))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FanAxes):
            return NotImplemented
        return tuple(self.canonicalize()) == tuple(other.canonicalize())

    def __ne__(self, other: object) -> bool:  # else tuple's
        return not self == other

    def __hash__(self) -> int:
        return hash(tuple(self.canonicalize()))

    def prepend_axis(self, *, axis_type: "FanAxes.AxisType") -> "FanAxes":
        """Those of a weight with one more axis in front."""
        return self._with_axis(0, axis_type, lambda axis: axis + 1 if axis >= 0 else axis)

    def append_axis(self, *, axis_type: "FanAxes.AxisType") -> "FanAxes":
        """Those of a weight with one more axis at the end."""
        return self._with_axis(-1, axis_type, lambda axis: axis - 1 if axis < 0 else axis)

    def _with_axis(
        self, new: int, axis_type: "FanAxes.AxisType", moved: Callable[[int], int]
    ) -> "FanAxes":
        axes = {name: tuple(map(moved, _tuple(of))) for name, of in self._asdict().items()}
        if axis_type != FanAxes.AxisType.NONE:
            axes[axis_type.value] = (new, *axes[axis_type.value])
        return FanAxes(**axes).canonicalize()


def _tuple(axes: Axes) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)


def maybe_prepend_axis(fan_axes: FanAxes | None, *, axis_type: FanAxes.AxisType) -> FanAxes | None:
    """`FanAxes.prepend_axis`, or None for None."""
    return None if fan_axes is None else fan_axes.prepend_axis(axis_type=axis_type)


@dataclasses.dataclass
class FactorizationSpec:
    """The axes of a parameter that Adafactor's statistics are means over.

    Attributes:
      axes: for each axis of the parameter "row", "col" or None.
    """

    axes: Sequence[str | None]

    def __post_init__(self) -> None:
        for axis in self.axes:
            if axis not in (None, "row", "col"):
                raise ValueError(
                    f"a FactorizationSpec has 'row', 'col' or None for an axis, not {axis!r}: "
                    f"{self.axes!r}."
                )


@dataclasses.dataclass
class ParameterSpec(TensorSpec):
    """Describes a parameter that does not exist yet; a leaf of trees.

    Attributes:
      initializer: makes its first value; the layer's `param_init` if None.
      factorization: how Adafactor factors its second moment; not at all if None.
      fan_axes: its inputs and outputs, which its first value is scaled by.
      weight_decay_scale: what weight decay is multiplied by, in place of what the optimizer says.
    """

    initializer: Any = None
    factorization: Optional[FactorizationSpec] = None  # noqa: UP045
    fan_axes: Optional[FanAxes] = None  # noqa: UP045
    weight_decay_scale: Optional[float] = None  # noqa: UP045

    def fans(self) -> dict[str, float]:
        """The numbers of inputs and of outputs, and their mean: fan_in, fan_out, fan_avg.

        Raises:
          ValueError: the fan axes are not known.
        """
        if self.fan_axes is None:
            raise ValueError(f"the fan_axes of {self} are not set, so it has no fans.")
        lengths = {
            name: math.prod(self.shape[axis] for axis in _tuple(axes))
            for name, axes in self.fan_axes._asdict().items()
        }
        size = math.prod(self.shape) / lengths["batch_axis"]
        fan_in, fan_out = size / lengths["out_axis"], size / lengths["in_axis"]
        return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}

    def stacked(self, num: int) -> Self:
        """The spec of `num` such parameters stacked along axis 0."""
        factorization, axes = self.factorization, self.mesh_axes
        return dataclasses.replace(
            self,
            shape=(num, *self.shape),
            mesh_axes=None if axes is None else PartitionSpec(None, *axes),
            factorization=factorization and FactorizationSpec((None, *factorization.axes)),
            fan_axes=maybe_prepend_axis(self.fan_axes, axis_type=FanAxes.AxisType.BATCH_AXIS),
        )


@dataclasses.dataclass
class RematSpec:
    """Arguments of `jax.checkpoint` for a layer.

    Attributes:
      prevent_cse: as there; not needed within a scan.
      policy: as there, or the config of a function that makes one.
    """

    prevent_cse: bool = True
    policy: Optional[ConfigOr[Callable[..., bool]]] = None  # noqa: UP045


class ParameterNoise(Configurable):
    """Noise on parameters."""

    def apply(self, prng_key: jax.Array, params: Params) -> Params:
        """The parameters with noise."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its noise is.")
