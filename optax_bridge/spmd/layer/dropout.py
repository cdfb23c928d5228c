# pyright: strict
"""Layers that drop something at random while training."""

from typing import Optional

import jax
import jax.numpy as jnp

from optax_bridge.spmd.config import config_class
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.module import Module


class Dropout(BaseLayer):
    """Sets elements to zero at random and scales the others up, while training."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of Dropout.

        Attributes:
          rate: the probability of an element to be dropped; None or 0 for none.
        """

        rate: Optional[float] = None  # noqa: UP045

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        _check_rate(self, self._config.rate)

    def forward(self, x: jax.Array) -> jax.Array:
        """The input, with elements dropped."""
        return _drop(x, x.shape, self._config.rate, self)


class StochasticDepth(BaseLayer):
    """Sets the output of a whole layer to zero at random, while training (arXiv:1603.09382)."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of StochasticDepth.

        Attributes:
          rate: the probability of dropping; None or 0 for none.
          mode: "row": each example by itself; "batch": all or none.
        """

        rate: Optional[float] = None  # noqa: UP045
        mode: str = "row"

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        _check_rate(self, self._config.rate)
        if self._config.mode not in ("row", "batch"):
            raise ValueError(f"{self!r}: mode is 'row' or 'batch', not {self._config.mode!r}.")

    def forward(self, x: jax.Array) -> jax.Array:
        """The input (batch, ...), or zero."""
        first = x.shape[0] if self._config.mode == "row" else 1
        return _drop(x, (first, *(1,) * (x.ndim - 1)), self._config.rate, self)


def _check_rate(layer: BaseLayer, rate: float | None) -> None:
    if rate is not None and not 0 <= rate < 1:
        raise ValueError(f"{layer!r}: rate must be in [0, 1), not {rate}.")


def _drop(
    x: jax.Array, mask_shape: tuple[int, ...], rate: float | None, layer: BaseLayer
) -> jax.Array:
    if not rate or not layer.is_training:
        return x
    if layer.prng_key is None:
        raise ValueError(f"{layer!r} needs a random key while training: prng_key is None.")
    keep = jax.random.bernoulli(layer.prng_key, 1 - rate, mask_shape)
    return jnp.where(keep, x / (1 - rate), 0).astype(x.dtype)
