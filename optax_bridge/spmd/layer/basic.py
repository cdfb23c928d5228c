# pyright: strict
"""Layers that most models have: linear, embedding, norms, dropout."""

from typing import Optional

import jax
import jax.numpy as jnp

from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.parameters import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.trees import NestedParameterSpec


class Linear(BaseLayer):
    """`x @ weight + bias`."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of Linear."""

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
        """Config of Embedding."""

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


class RMSNorm(BaseLayer):
    """Divides by the root of the mean of squares over the last axis (arXiv:1910.07467)."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of RMSNorm."""

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
        """Config of LayerNorm."""

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


class Dropout(BaseLayer):
    """Sets elements to zero at random and scales the others up, while training."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of Dropout."""

        rate: Optional[float] = None  # noqa: UP045

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        rate = self._config.rate
        if rate is not None and not 0 <= rate < 1:
            raise ValueError(f"{self!r}: rate must be in [0, 1), not {rate}.")

    def forward(self, x: jax.Array) -> jax.Array:
        """The input, with elements dropped."""
        return self._drop(x, x.shape)

    def _drop(self, x: jax.Array, mask_shape: tuple[int, ...]) -> jax.Array:
        rate = self._config.rate
        if not rate or not self.is_training:
            return x
        if self.prng_key is None:
            raise ValueError(f"{self!r} needs a random key while training: prng_key is None.")
        keep = jax.random.bernoulli(self.prng_key, 1 - rate, mask_shape)
        return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)


class StochasticDepth(Dropout):
    """Sets the output of a whole layer to zero at random, while training (arXiv:1603.09382)."""

    @config_class
    class Config(Dropout.Config):
        """Config of StochasticDepth."""

        mode: str = "row"

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        if self._config.mode not in ("row", "batch"):
            raise ValueError(f"{self!r}: mode is 'row' or 'batch', not {self._config.mode!r}.")

    def forward(self, x: jax.Array) -> jax.Array:
        """The input (batch, ...), or zero."""
        first = x.shape[0] if self._config.mode == "row" else 1
        return self._drop(x, (first, *(1,) * (x.ndim - 1)))
