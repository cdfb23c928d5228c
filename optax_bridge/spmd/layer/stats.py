# pyright: strict
"""Statistics of arrays inside a layer, as summaries."""

import jax
import jax.numpy as jnp

from optax_bridge.spmd.config import config_class
from optax_bridge.spmd.module import Module, child_context


class TensorStats(Module):
    """Adds summaries of an array."""

    def add_stats(self, name: str, value: jax.Array) -> None:
        """Adds summaries of the array of this name."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its statistics are.")


class TensorRMSNorm(TensorStats):
    """The root of the mean of squares, `rms_norm`."""

    def add_stats(self, name: str, value: jax.Array) -> None:
        """Adds the summary."""
        del name
        squares = jnp.square(value.astype(jnp.float32))
        self.add_summary("rms_norm", jnp.sqrt(jnp.mean(squares)))


class TensorMaxAbs(TensorStats):
    """The largest absolute value, `max_abs`."""

    def add_stats(self, name: str, value: jax.Array) -> None:
        """Adds the summary."""
        del name
        self.add_summary("max_abs", jnp.abs(value).max().astype(jnp.float32))


class CompositeTensorStats(TensorStats):
    """Several statistics."""

    @config_class
    class Config(TensorStats.Config):
        """Config of CompositeTensorStats.

        Attributes:
          tensor_stats: their configs by name.
          inline_child_summaries: leave their summaries as ours, without their names.
        """

        tensor_stats: dict[str, TensorStats.Config] = {}  # noqa: RUF012 (stored as a copy)
        inline_child_summaries: bool = False

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        for name, config in self._config.tensor_stats.items():
            self._add_child(name, config)

    def add_stats(self, name: str, value: jax.Array) -> None:
        """Adds the summaries of all."""
        for child_name, child in self.children.items():
            if not self._config.inline_child_summaries:
                child.add_stats(name, value)
                continue
            outputs = self.get_invocation_context().output_collection
            with child_context(child_name, module=child, output_collection=outputs):
                child.add_stats(name, value)


class DefaultTensorStats(CompositeTensorStats):
    """Norm and largest absolute value."""

    @config_class
    class Config(CompositeTensorStats.Config):
        """Config of DefaultTensorStats."""

        tensor_stats: dict[str, TensorStats.Config] = {  # noqa: RUF012 (stored as a copy)
            "norm": TensorRMSNorm.default_config(),
            "max": TensorMaxAbs.default_config(),
        }
        inline_child_summaries: bool = True
