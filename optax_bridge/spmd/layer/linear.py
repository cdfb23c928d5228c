# pyright: strict
"""Layers with a weight: linear, and embedding."""

import jax
import jax.numpy as jnp

from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.specs import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.trees import NestedParameterSpec


class Linear(BaseLayer):
    """`x @ weight + bias`."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of Linear.

        Attributes:
          input_dim: length of the input's last axis.
          output_dim: length of the output's last axis.
          bias: whether there is a bias.
        """

        input_dim: Required[int] = REQUIRED
        output_dim: Required[int] = REQUIRED
        bias: bool = True
        param_partition_spec: NestedParameterSpec = (None, None)

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        cfg = self._config
        params = {
            "weight": ParameterSpec(
                shape=(cfg.input_dim, cfg.output_dim),
                mesh_axes=cfg.param_partition_spec,
                factorization=FactorizationSpec(axes=("row", "col")),
            )
        }
        if cfg.bias:
            axes = cfg.param_partition_spec
            params["bias"] = ParameterSpec(
                shape=(cfg.output_dim,), mesh_axes=None if axes is None else (axes[-1],)
            )
        return params

    def forward(self, x: jax.Array) -> jax.Array:
        """Maps (..., input_dim) to (..., output_dim)."""
        y = x @ self.parameters["weight"]
        return y + self.parameters["bias"] if self._config.bias else y


class Embedding(BaseLayer):
    """A vector for each of a number of ids."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of Embedding.

        Attributes:
          num_embeddings: how many ids there are.
          dim: length of the vectors.
        """

        num_embeddings: Required[int] = REQUIRED
        dim: Required[int] = REQUIRED
        param_partition_spec: NestedParameterSpec = (None, None)

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        cfg = self._config
        return {
            "weight": ParameterSpec(
                shape=(cfg.num_embeddings, cfg.dim),
                mesh_axes=cfg.param_partition_spec,
                factorization=FactorizationSpec(axes=("row", "col")),
            )
        }

    def forward(self, ids: jax.Array) -> jax.Array:
        """The vectors, (..., dim), of integer ids (...)."""
        return jnp.take(self.parameters["weight"], ids, axis=0)

    def attend(self, x: jax.Array) -> jax.Array:
        """The products, (..., num_embeddings), of (..., dim) with all vectors: logits of ids."""
        return x @ self.parameters["weight"].T
