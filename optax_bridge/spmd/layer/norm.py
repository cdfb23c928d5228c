# pyright: strict
"""Layers that normalize: by mean and deviation, or by the root of the mean of squares."""

import jax
import jax.numpy as jnp

from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.specs import ParameterSpec


class RMSNorm(BaseLayer):
    """Divides by the root of the mean of squares over the last axis (arXiv:1910.07467)."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of RMSNorm.

        Attributes:
          input_dim: length of the last axis.
          eps: what is added to the mean of squares.
        """

        input_dim: Required[int] = REQUIRED
        eps: float = 1e-8

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        return {"scale": ParameterSpec(shape=(self._config.input_dim,), mesh_axes=(None,))}

    def forward(self, x: jax.Array) -> jax.Array:
        """Normalizes (..., input_dim), in float32; the result has the input's dtype."""
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self._config.eps)
        return (y * self.parameters["scale"]).astype(x.dtype)


class LayerNorm(BaseLayer):
    """Subtracts the mean and divides by the deviation over the last axis (arXiv:1607.06450)."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of LayerNorm.

        Attributes:
          input_dim: length of the last axis.
          eps: what is added to the variance.
        """

        input_dim: Required[int] = REQUIRED
        eps: float = 1e-8

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        spec = ParameterSpec(shape=(self._config.input_dim,), mesh_axes=(None,))
        return {"scale": spec, "bias": spec}

    def forward(self, x: jax.Array) -> jax.Array:
        """Normalizes (..., input_dim), in float32; the result has the input's dtype."""
        y = x.astype(jnp.float32)
        y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self._config.eps)
        return (y * self.parameters["scale"] + self.parameters["bias"]).astype(x.dtype)
