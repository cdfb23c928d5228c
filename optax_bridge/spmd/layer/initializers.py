"""Initializers: the first values of parameters."""

import re
from collections.abc import Sequence
from typing import Optional

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike, DTypeLike

from optax_bridge.spmd.config import (
    REQUIRED,
    Configurable,
    InstantiableConfig,
    Required,
    config_class,
)
from optax_bridge.spmd.layer.specs import FanAxes

PARAM_REGEXP_WEIGHT = ".*weight$"
PARAM_REGEXP_BIAS = ".*bias$"
PARAM_REGEXP_SCALE = ".*scale$"


Shape = Sequence[int]
Axes = FanAxes | None


class Initializer(Configurable):
    """Makes the first value of a parameter. Two of one config are equal."""

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._config == other._config  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(type(self))  # configs can change, and have no hash

    def initialize(
        self, name: str, *, prng_key: jax.Array, shape: Shape, dtype: DTypeLike, axes: Axes = None
    ) -> jax.Array:
        """The first value of a parameter.

        Args:
          name: the parameter's name.
          prng_key: a random key.
          shape: its shape.
          dtype: its dtype.
          axes: which of its axes are inputs and outputs.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it initializes with.")

    def debug_string(
        self, name: str | None = None, shape: Shape | None = None, axes: Axes = None
    ) -> str:
        """Returns a description in one line."""
        del name, shape, axes
        shown = (f"{key}={value}" for key, value in self._config.items() if key != "klass")
        return f"{type(self).__name__}({', '.join(shown)})"


class ConstantInitializer(Initializer):
    """Every element has one value."""

    @config_class
    class Config(Initializer.Config):
        """Config of ConstantInitializer.

        Attributes:
          value: the value.
        """

        value: Required[ArrayLike] = REQUIRED

    def initialize(
        self, name: str, *, prng_key: jax.Array, shape: Shape, dtype: DTypeLike, axes: Axes = None
    ) -> jax.Array:
        """An array full of the value."""
        del name, prng_key, axes
        return jnp.full(shape, self._config.value, dtype)


def constant_initializer(value: ArrayLike) -> ConstantInitializer:
    """An initializer with one value for every element."""
    return ConstantInitializer.default_config().set(value=value).instantiate()


class GaussianInitializer(Initializer):
    """Normally distributed values."""

    @config_class
    class Config(Initializer.Config):
        """Config of GaussianInitializer.

        Attributes:
          std: the standard deviation.
          mean: the mean.
        """

        std: float = 1.0
        mean: float = 0.0

    def initialize(
        self, name: str, *, prng_key: jax.Array, shape: Shape, dtype: DTypeLike, axes: Axes = None
    ) -> jax.Array:
        """An array of independent values."""
        del name, axes
        cfg = self._config
        return cfg.mean + cfg.std * jax.random.normal(prng_key, shape, dtype)


class WeightInitializer(Initializer):
    """Values whose variance follows from the number of inputs and outputs."""

    @config_class
    class Config(Initializer.Config):
        """Config of WeightInitializer.

        Attributes:
          scale: the variance is `scale / fan`; if fan is None, half the range or the deviation.
          fan: "fan_in", "fan_out" or "fan_avg"; None not to look at the axes.
          distribution: "uniform", "normal" or "truncated_normal".
        """

        scale: float = 1.0
        fan: Optional[str] = "fan_avg"  # noqa: UP045
        distribution: str = "uniform"

    def initialize(
        self, name: str, *, prng_key: jax.Array, shape: Shape, dtype: DTypeLike, axes: Axes = None
    ) -> jax.Array:
        """An array of independent values.

        Raises:
          NotImplementedError: the axes are not known but needed.
          ValueError: for an unknown distribution.
        """
        cfg = self._config
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
        """Config of DefaultInitializer.

        Attributes:
          init_by_param_name: configs of initializers by regular expressions for names. The first
            that matches the whole name wins. Biases, scales and weights are added where they are
            missing.
        """

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

    def initialize(
        self, name: str, *, prng_key: jax.Array, shape: Shape, dtype: DTypeLike, axes: Axes = None
    ) -> jax.Array:
        """The first value of a parameter of this name.

        Raises:
          NotImplementedError: no initializer is for this name.
        """
        return self._for(name).initialize(
            name, prng_key=prng_key, shape=shape, dtype=dtype, axes=axes
        )

    def debug_string(
        self, name: str | None = None, shape: Shape | None = None, axes: Axes = None
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
        """Config of PerGroupInitializer.

        Attributes:
          initializer: the config of each group's initializer.
          num_groups: how many there are.
        """

        initializer: Required[InstantiableConfig] = REQUIRED
        num_groups: int = 1

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        self._initializer = self._config.initializer.instantiate()

    def initialize(
        self, name: str, *, prng_key: jax.Array, shape: Shape, dtype: DTypeLike, axes: Axes = None
    ) -> jax.Array:
        """The groups' values, side by side.

        Raises:
          ValueError: the last axis cannot be cut into the groups.
        """
        groups = self._config.num_groups
        if shape[-1] % groups:
            raise ValueError(f"{name!r}: its last axis, {shape[-1]}, is not divisible by {groups}.")
        keys = [prng_key] if groups == 1 else jax.random.split(prng_key, groups)
        part = (*shape[:-1], shape[-1] // groups)
        parts = [
            self._initializer.initialize(name, prng_key=key, shape=part, dtype=dtype, axes=axes)
            for key in keys
        ]
        return jnp.concatenate(parts, axis=-1)
