"""Parameters before they exist: their specs, and the initializers of their first values."""

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Optional, Self, Union

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from optax_bridge.metadata.trees import Params
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    Configurable,
    InstantiableConfig,
    Required,
    config_class,
)
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
      weight_decay_scale: a factor of weight decay, in place of the optimizer's.
    """

    initializer: "ConfigOr[Initializer] | None" = None
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

    def stack(self, num: int) -> Self:
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


PARAM_REGEXP_WEIGHT = ".*weight$"
PARAM_REGEXP_BIAS = ".*bias$"
PARAM_REGEXP_SCALE = ".*scale$"


Shape = Sequence[int]


class _Wanted(NamedTuple):
    """The arguments of `Initializer.initialize`, without the name."""

    prng_key: jax.Array
    shape: Shape
    dtype: DTypeLike
    axes: FanAxes | None


class Initializer(Configurable):
    """Makes the first value of a parameter. Two of one config are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._config == other._config  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(type(self))  # configs can change, and have no hash

    def initialize(
        self,
        name: str,
        *,
        prng_key: jax.Array,
        shape: Shape,
        dtype: DTypeLike,
        axes: FanAxes | None = None,
    ) -> jax.Array:
        """The first value of a parameter.

        Args:
          name: the parameter's name.
          prng_key: a random key.
          shape: its shape.
          dtype: its dtype.
          axes: which of its axes are inputs and outputs.

        Raises:
          NotImplementedError: the axes are not known but needed, or no rule is for this name.
          ValueError: the distribution is unknown, or the last axis cannot be cut into the groups.
        """
        return self._initialize(name, _Wanted(prng_key, shape, dtype, axes))

    def _initialize(self, name: str, wanted: _Wanted) -> jax.Array:
        raise NotImplementedError(f"{type(self).__name__} does not say what it initializes with.")

    def debug_string(
        self, name: str | None = None, shape: Shape | None = None, axes: FanAxes | None = None
    ) -> str:
        """Returns a description in one line."""
        del name, shape, axes
        shown = (f"{key}={value}" for key, value in self._config.items() if key != "klass")
        return f"{type(self).__name__}({', '.join(shown)})"


class ConstantInitializer(Initializer):
    """Every element has one value."""

    @config_class
    class Config(Initializer.Config):
        """Config of ConstantInitializer."""

        value: Required[ArrayLike] = REQUIRED

    def _initialize(self, name: str, wanted: _Wanted) -> jax.Array:
        del name
        return jnp.full(wanted.shape, self._config.value, wanted.dtype)


def constant_initializer(value: ArrayLike) -> ConstantInitializer:
    """An initializer with one value for every element."""
    return ConstantInitializer.default_config().set(value=value).instantiate()


class GaussianInitializer(Initializer):
    """Normally distributed values."""

    @config_class
    class Config(Initializer.Config):
        """Config of GaussianInitializer."""

        std: float = 1.0
        mean: float = 0.0

    def _initialize(self, name: str, wanted: _Wanted) -> jax.Array:
        del name
        cfg = self._config
        numbers = jax.random.normal(wanted.prng_key, wanted.shape, wanted.dtype)
        return cfg.mean + cfg.std * numbers


class WeightInitializer(Initializer):
    """Values whose variance follows from the number of inputs and outputs."""

    @config_class
    class Config(Initializer.Config):
        """Config of WeightInitializer."""

        scale: float = 1.0
        fan: Optional[str] = "fan_avg"  # noqa: UP045
        distribution: str = "uniform"

    def _initialize(self, name: str, wanted: _Wanted) -> jax.Array:
        cfg, (prng_key, shape, dtype, axes) = self._config, wanted
        if cfg.fan is None:
            return self._of_scale(prng_key, tuple(shape), dtype)
        if axes is None:
            raise NotImplementedError(
                f"{name!r} of shape {tuple(shape)}: its fan axes are not known, which {cfg.fan} "
                "needs. Set `fan_axes` of its ParameterSpec."
            )
        init = jax.nn.initializers.variance_scaling(
            cfg.scale, mode=cfg.fan, distribution=cfg.distribution, **axes._asdict()
        )
        return init(prng_key, tuple(shape), dtype)

    def _of_scale(self, key: jax.Array, shape: tuple[int, ...], dtype: DTypeLike) -> jax.Array:
        scale = self._config.scale
        match self._config.distribution:
            case "uniform":
                return jax.random.uniform(key, shape, dtype, minval=-scale, maxval=scale)
            case "normal":
                return jax.nn.initializers.normal(scale)(key, shape, dtype)
            case "truncated_normal":
                return jax.nn.initializers.truncated_normal(scale)(key, shape, dtype)
            case other:
                raise ValueError(
                    f"unknown distribution {other!r}: there are uniform, normal, truncated_normal."
                )


class DefaultInitializer(Initializer):
    """One initializer or another by the parameter's name."""

    @config_class
    class Config(Initializer.Config):
        """Config of DefaultInitializer."""

        init_by_param_name: dict[str, InstantiableConfig] = {}  # noqa: RUF012 (stored as a copy)

    def __init__(self, cfg: Config) -> None:
        rules = dict(cfg.init_by_param_name)
        rules.setdefault(PARAM_REGEXP_BIAS, ConstantInitializer.default_config().set(value=0.0))
        rules.setdefault(PARAM_REGEXP_SCALE, ConstantInitializer.default_config().set(value=1.0))
        rules.setdefault(PARAM_REGEXP_WEIGHT, WeightInitializer.default_config())
        super().__init__(cfg.clone(init_by_param_name=rules))
        self._initializers = {regex: config.instantiate() for regex, config in rules.items()}

    def _for(self, name: str) -> Initializer:
        for regex, initializer in self._initializers.items():
            if re.fullmatch(regex, name):
                return initializer
        raise NotImplementedError(
            f"Unsupported parameter name: {name!r} matches none of {list(self._initializers)}. Add "
            "it to init_by_param_name, or set `initializer` of its ParameterSpec."
        )

    def _initialize(self, name: str, wanted: _Wanted) -> jax.Array:
        return self._for(name).initialize(name, **wanted._asdict())

    def debug_string(
        self, name: str | None = None, shape: Shape | None = None, axes: FanAxes | None = None
    ) -> str:
        """Returns a description of the initializer of a name, or of all."""
        if name is not None:
            return self._for(name).debug_string(name, shape, axes)
        shown = (f"{regex}: {i.debug_string()}" for regex, i in self._initializers.items())
        return f"{type(self).__name__}({', '.join(shown)})"


class PerGroupInitializer(Initializer):
    """Initializes groups along the last axis separately, such as several projections in one."""

    @config_class
    class Config(Initializer.Config):
        """Config of PerGroupInitializer."""

        initializer: Required[InstantiableConfig] = REQUIRED
        num_groups: int = 1

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._initializer = self._config.initializer.instantiate()

    def _initialize(self, name: str, wanted: _Wanted) -> jax.Array:
        groups, shape = self._config.num_groups, wanted.shape
        if shape[-1] % groups:
            raise ValueError(f"{name!r}: its last axis, {shape[-1]}, is not divisible by {groups}.")
        key = wanted.prng_key
        part = wanted._replace(shape=(*shape[:-1], shape[-1] // groups))
        parts = [
            self._initializer.initialize(name, **part._replace(prng_key=part_key)._asdict())
            for part_key in ([key] if groups == 1 else jax.random.split(key, groups))
        ]
        return jnp.concatenate(parts, axis=-1)
