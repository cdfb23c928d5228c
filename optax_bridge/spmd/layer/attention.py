"""Attention with many heads, and with fewer heads for keys and values than for queries."""

import math
from typing import Optional

import jax
import jax.numpy as jnp

from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.basic import Dropout
from optax_bridge.spmd.layer.parameters import FactorizationSpec, FanAxes, ParameterSpec
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.trees import NestedParameterSpec


class HeadsLinear(BaseLayer):
    """A linear layer from a model's features to those of heads, or back."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of HeadsLinear.

        Attributes:
          model_dim: number of features of the model.
          num_heads: number of heads.
          per_head_dim: number of features of a head.
          bias: whether there is a bias.
          to_heads: the direction.
        """

        model_dim: Required[int] = REQUIRED
        num_heads: Required[int] = REQUIRED
        per_head_dim: Required[int] = REQUIRED
        bias: bool = True
        to_heads: bool = True
        param_partition_spec: NestedParameterSpec = (None, None, None)

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        cfg = self._config
        axes = cfg.param_partition_spec or (None, None, None)
        params = {
            "weight": ParameterSpec(
                shape=(cfg.model_dim, cfg.num_heads, cfg.per_head_dim),
                mesh_axes=axes,
                factorization=FactorizationSpec(axes=("row", None, "col")),
                fan_axes=FanAxes(0, (1, 2)) if cfg.to_heads else FanAxes((1, 2), 0),
            )
        }
        if cfg.bias and cfg.to_heads:
            shape = (cfg.num_heads, cfg.per_head_dim)
            params["bias"] = ParameterSpec(shape=shape, mesh_axes=tuple(axes[1:]))
        elif cfg.bias:
            params["bias"] = ParameterSpec(shape=(cfg.model_dim,), mesh_axes=(axes[0],))
        return params

    def forward(self, x: jax.Array) -> jax.Array:
        """Maps (batch, time, model_dim) to (batch, time, heads, per_head_dim), or back."""
        sums = "btd,dnh->btnh" if self._config.to_heads else "btnh,dnh->btd"
        y = jnp.einsum(sums, x, self.parameters["weight"])
        return y + self.parameters["bias"] if self._config.bias else y


class MultiheadAttention(BaseLayer):
    """Scaled dot-product attention with several heads (arXiv:1706.03762)."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of MultiheadAttention.

        Attributes:
          query_dim: number of features of queries.
          key_dim: number of features of keys.
          value_dim: number of features of values.
          output_dim: number of features of the result; query_dim if None.
          hidden_dim: number of features of all heads together; query_dim if None.
          num_heads: number of heads.
          causal: whether a position sees only itself and those before.
          dropout: config of the dropout on the weights of attention.
          proj: config of the projections.
        """

        query_dim: Required[int] = REQUIRED
        key_dim: Required[int] = REQUIRED
        value_dim: Required[int] = REQUIRED
        output_dim: Optional[int] = None  # noqa: UP045
        hidden_dim: Optional[int] = None  # noqa: UP045
        num_heads: Required[int] = REQUIRED
        causal: bool = False
        dropout: Dropout.Config = Dropout.default_config()
        proj: HeadsLinear.Config = HeadsLinear.default_config()

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        hidden_dim = cfg.hidden_dim or cfg.query_dim
        if hidden_dim % cfg.num_heads:
            raise ValueError(
                f"{self!r}: hidden_dim {hidden_dim} is not divisible by num_heads {cfg.num_heads}."
            )
        proj = cfg.proj.clone(per_head_dim=hidden_dim // cfg.num_heads)
        kv_heads = self._num_kv_heads()
        for name, dim, heads in (
            ("q_proj", cfg.query_dim, cfg.num_heads),
            ("k_proj", cfg.key_dim, kv_heads),
            ("v_proj", cfg.value_dim, kv_heads),
        ):
            self._add_child(name, proj.clone(model_dim=dim, num_heads=heads, to_heads=True))
        output = proj.clone(
            model_dim=cfg.output_dim or cfg.query_dim, num_heads=cfg.num_heads, to_heads=False
        )
        self._add_child("o_proj", output)
        self._add_child("dropout", cfg.dropout)

    def _num_kv_heads(self) -> int:
        return self._config.num_heads

    def forward(
        self,
        query: jax.Array,
        *,
        key: jax.Array | None = None,
        value: jax.Array | None = None,
        attention_logit_biases: jax.Array | None = None,
    ) -> jax.Array:
        """Attends.

        Args:
          query: of shape (batch, target, query_dim).
          key: of shape (batch, source, key_dim); the query if None.
          value: of shape (batch, source, value_dim); the key if None.
          attention_logit_biases: added to the logits: broadcasts to (batch, heads, target, source),
            or of shape (batch, target, source) for all heads.

        Returns:
          An array of shape (batch, target, output_dim).
        """
        key = query if key is None else key
        value = key if value is None else value
        q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
        heads, kv_heads = q.shape[2], k.shape[2]
        # Heads of queries in groups that share a head of keys.
        q = q.reshape(*q.shape[:2], kv_heads, heads // kv_heads, q.shape[3]) / math.sqrt(q.shape[3])
        logits = jnp.einsum("btkgh,bskh->bkgts", q, k).astype(jnp.float32)
        biases = attention_logit_biases
        if biases is not None:
            biases = biases[:, None] if biases.ndim == 3 else biases
            full = (*biases.shape[:-3], heads, *biases.shape[-2:])
            biases = jnp.broadcast_to(biases, full)
            logits += biases.reshape(*full[:-3], kv_heads, heads // kv_heads, *full[-2:])
        if self._config.causal:
            seen = jnp.tril(jnp.ones(logits.shape[-2:], bool))
            logits = jnp.where(seen, logits, jnp.finfo(jnp.float32).min)
        probs = self.dropout(jax.nn.softmax(logits, axis=-1).astype(v.dtype))
        context = jnp.einsum("bkgts,bskh->btkgh", probs, v)
        return self.o_proj(context.reshape(*context.shape[:2], heads, context.shape[-1]))


class GroupedQueryAttention(MultiheadAttention):
    """Attention whose keys and values have fewer heads than its queries (arXiv:2305.13245)."""

    @config_class
    class Config(MultiheadAttention.Config):
        """Config of GroupedQueryAttention.

        Attributes:
          num_kv_heads: number of heads of keys and values; that of queries if None.
        """

        num_kv_heads: Optional[int] = None  # noqa: UP045

    def _num_kv_heads(self) -> int:
        cfg = self._config
        heads = cfg.num_kv_heads or cfg.num_heads
        if cfg.num_heads % heads:
            raise ValueError(
                f"{self!r}: num_heads {cfg.num_heads} is not divisible by num_kv_heads {heads}."
            )
        return heads
