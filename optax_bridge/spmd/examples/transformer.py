"""The attention layer of AXLearn's concepts document, made of the basic layers."""

from collections.abc import Callable
from typing import Optional

import jax

from optax_bridge.spmd.config import (
    REQUIRED,
    InstantiableConfig,
    Required,
    config_class,
    maybe_set_config,
)
from optax_bridge.spmd.layer import BaseLayer, Dropout, LayerNorm, Linear, StochasticDepth
from optax_bridge.spmd.module import Module


class MultiheadAttention(BaseLayer):
    """Scaled dot-product attention with several heads (arXiv:1706.03762)."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of MultiheadAttention."""

        query_dim: Required[int] = REQUIRED
        source_dim: Required[int] = REQUIRED
        num_heads: Required[int] = REQUIRED
        causal: bool = False
        proj: Linear.Config = Linear.default_config()

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg, kv_heads = self._config, self._num_kv_heads()
        if cfg.query_dim % cfg.num_heads or cfg.num_heads % kv_heads:
            raise ValueError(
                f"{self!r}: query_dim {cfg.query_dim} must be a multiple of num_heads "
                f"{cfg.num_heads}, and that one of num_kv_heads {kv_heads}."
            )
        kv_dim = cfg.query_dim // cfg.num_heads * kv_heads
        for name, input_dim, output_dim in (
            ("q_proj", cfg.query_dim, cfg.query_dim),
            ("k_proj", cfg.source_dim, kv_dim),
            ("v_proj", cfg.source_dim, kv_dim),
            ("o_proj", cfg.query_dim, cfg.query_dim),
        ):
            self._add_child(name, cfg.proj.clone(input_dim=input_dim, output_dim=output_dim))

    def _num_kv_heads(self) -> int:
        return self._config.num_heads

    def forward(
        self, query: jax.Array, source: jax.Array, *, bias: jax.Array | None = None
    ) -> jax.Array:
        """Attends."""
        cfg = self._config
        per_head = cfg.query_dim // cfg.num_heads
        q, k, v = (
            x.reshape(*x.shape[:2], -1, per_head)
            for x in (self.q_proj(query), self.k_proj(source), self.v_proj(source))
        )
        context = jax.nn.dot_product_attention(q, k, v, bias, is_causal=cfg.causal)
        return self.o_proj(context.reshape(query.shape))


class GroupedQueryAttention(MultiheadAttention):
    """Attention whose keys and values have fewer heads than its queries (arXiv:2305.13245)."""

    @config_class
    class Config(MultiheadAttention.Config):
        """Config of GroupedQueryAttention."""

        num_kv_heads: Optional[int] = None  # noqa: UP045

    def _num_kv_heads(self) -> int:
        return self._config.num_kv_heads or self._config.num_heads


class TransformerAttentionLayer(BaseLayer):
    """Attention with normalization and a skip connection, over itself or another sequence."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of TransformerAttentionLayer."""

        target_dim: Required[int] = REQUIRED
        source_dim: Required[int] = REQUIRED
        norm: InstantiableConfig = LayerNorm.default_config()
        attention: InstantiableConfig = MultiheadAttention.default_config()
        dropout: InstantiableConfig = Dropout.default_config()
        stochastic_depth: InstantiableConfig = StochasticDepth.default_config()
        structure: str = "prenorm"

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        norms = {"prenorm": ["norm"], "postnorm": ["norm"], "hybridnorm": ["prenorm", "postnorm"]}
        if cfg.structure not in norms:
            raise ValueError(
                f"{self!r}: structure is one of {', '.join(norms)}, not {cfg.structure!r}."
            )
        for name in norms[cfg.structure]:
            self._add_child(name, maybe_set_config(cfg.norm.clone(), input_dim=cfg.target_dim))
        attention = maybe_set_config(
            cfg.attention.clone(), query_dim=cfg.target_dim, source_dim=cfg.source_dim
        )
        self._add_child("attention", attention)
        self._add_child("dropout", cfg.dropout)
        self._add_child("stochastic_depth", cfg.stochastic_depth)

    def forward(
        self,
        target: jax.Array,
        source: jax.Array | None = None,
        *,
        attention_logit_biases: jax.Array | None = None,
    ) -> jax.Array:
        """Attends."""

        def attend(x: jax.Array, then: Callable[[jax.Array], jax.Array]) -> jax.Array:
            over = x if source is None else source
            y = self.dropout(self.attention(x, over, bias=attention_logit_biases))
            return self.stochastic_depth(then(y))

        match self._config.structure:
            case "prenorm":
                return target + attend(self.norm(target), lambda y: y)
            case "postnorm":
                return self.norm(target + attend(target, lambda y: y))
            case _:
                return target + attend(self.prenorm(target), self.postnorm)
