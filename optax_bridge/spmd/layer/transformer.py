"""The layers of a transformer: attention and feed-forward, each with norm, skip and dropout."""

from collections.abc import Callable
from typing import Any, Optional, Union, cast

import jax

from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigBase,
    InstantiableConfig,
    Required,
    config_class,
    maybe_set_config,
    similar_names,
)
from optax_bridge.spmd.layer.attention import MultiheadAttention
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.basic import Dropout, LayerNorm, Linear, StochasticDepth
from optax_bridge.spmd.module import Module

STRUCTURES = ("prenorm", "postnorm", "hybridnorm")


class _Residual(BaseLayer):
    """A skip connection around something, with a norm and stochastic depth."""

    def _add_norms(self, cfg: ConfigBase, dim: int) -> None:
        if cfg.structure not in STRUCTURES:
            raise ValueError(
                f"{self!r}: structure is one of {', '.join(STRUCTURES)}, not {cfg.structure!r}."
            )
        norm = maybe_set_config(cfg.norm.clone(), input_dim=dim)
        for name in ("prenorm", "postnorm") if cfg.structure == "hybridnorm" else ("norm",):
            self._add_child(name, norm)
        self._add_child("stochastic_depth", cfg.stochastic_depth)

    def _around(self, inner: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
        """The input plus what `inner` makes of it, normed where the structure says."""
        match self._config.structure:
            case "prenorm":
                return x + self.stochastic_depth(inner(self.norm(x)))
            case "postnorm":
                return self.norm(x + self.stochastic_depth(inner(x)))
            case _:
                return x + self.stochastic_depth(self.postnorm(inner(self.prenorm(x))))


class TransformerAttentionLayer(_Residual):
    """Attention with normalization and a skip connection, over itself or another sequence."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of TransformerAttentionLayer.

        Attributes:
          target_dim: number of features of the input.
          source_dim: number of features of what is attended to.
          norm: config of the norm.
          attention: config of the attention.
          dropout: config of the dropout on its result.
          stochastic_depth: config of the layer that drops the whole result.
          structure: "prenorm", `x + attention(norm(x))`; "postnorm", `norm(x + attention(x))`; or
            "hybridnorm", `x + postnorm(attention(prenorm(x)))`. See arXiv:2002.04745.
        """

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
        self._add_norms(cfg, cfg.target_dim)
        attention = maybe_set_config(
            cfg.attention.clone(),
            query_dim=cfg.target_dim,
            key_dim=cfg.source_dim,
            value_dim=cfg.source_dim,
            output_dim=cfg.target_dim,
        )
        self._add_child("attention", attention)
        self._add_child("dropout", cfg.dropout)

    def forward(
        self,
        target: jax.Array,
        source: jax.Array | None = None,
        *,
        attention_logit_biases: jax.Array | None = None,
    ) -> jax.Array:
        """Attends.

        Args:
          target: of shape (batch, target, target_dim).
          source: of shape (batch, source, source_dim); the target itself, normed, if None.
          attention_logit_biases: as in `MultiheadAttention`.

        Returns:
          An array of the target's shape.
        """

        def attend(x: jax.Array) -> jax.Array:
            y = self.attention(x, key=source, attention_logit_biases=attention_logit_biases)
            return self.dropout(y)

        return self._around(attend, target)


def activation_fn(name: str) -> Callable[[jax.Array], jax.Array]:
    """An activation by name: "nn.relu" for `jax.nn.relu`, or "linear".

    Raises:
      ValueError: no activation has that name.
    """
    if name == "linear":
        return lambda x: x
    fn: Any = getattr(jax.nn, name.removeprefix("nn."), None)
    if not name.startswith("nn.") or not callable(fn):
        names = ["linear", *(f"nn.{n}" for n in dir(jax.nn) if not n.startswith("_"))]
        meant = similar_names(name, names)
        raise ValueError(
            f"there is no activation {name!r}"
            + (f" (did you mean: {', '.join(meant)}?)." if meant else ", such as 'nn.relu'.")
        )
    return cast(Callable[[jax.Array], jax.Array], fn)


class TransformerFeedForwardLayer(_Residual):
    """Two linear layers with an activation between, normalization and a skip connection."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of TransformerFeedForwardLayer.

        Attributes:
          input_dim: number of features of input and output.
          hidden_dim: number of features between the linear layers; 4 * input_dim if None.
          linear1: config of the first linear layer.
          linear2: config of the second one.
          norm: config of the norm.
          activation: its name, see `activation_fn`; two names for a gated layer, whose two first
            linear layers are multiplied after their activations.
          dropout1: config of the dropout after the activation.
          dropout2: config of the dropout on the result.
          stochastic_depth: config of the layer that drops the whole result.
          structure: as in `TransformerAttentionLayer`.
        """

        input_dim: Required[int] = REQUIRED
        hidden_dim: Optional[int] = None  # noqa: UP045
        linear1: InstantiableConfig = Linear.default_config()
        linear2: InstantiableConfig = Linear.default_config()
        norm: InstantiableConfig = LayerNorm.default_config()
        activation: Union[str, tuple[str, str]] = "nn.relu"  # noqa: UP007
        dropout1: InstantiableConfig = Dropout.default_config()
        dropout2: InstantiableConfig = Dropout.default_config()
        stochastic_depth: InstantiableConfig = StochasticDepth.default_config()
        structure: str = "prenorm"

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        hidden_dim = cfg.hidden_dim or 4 * cfg.input_dim
        self._add_norms(cfg, cfg.input_dim)
        names = (cfg.activation,) if isinstance(cfg.activation, str) else tuple(cfg.activation)
        self._activations = [activation_fn(name) for name in names]
        linear1 = cfg.linear1.clone(input_dim=cfg.input_dim, output_dim=hidden_dim)
        gated = len(names) > 1
        self._firsts = [f"linear1_{i}" for i in range(len(names))] if gated else ["linear1"]
        for name in self._firsts:
            self._add_child(name, linear1)
        linear2 = cfg.linear2.clone(input_dim=hidden_dim, output_dim=cfg.input_dim)
        self._add_child("linear2", linear2)
        self._add_child("dropout1", cfg.dropout1)
        self._add_child("dropout2", cfg.dropout2)

    def forward(self, x: jax.Array) -> jax.Array:
        """Maps (batch, time, input_dim) to the same shape."""

        def feed(x: jax.Array) -> jax.Array:
            hidden = None
            for name, activation in zip(self._firsts, self._activations, strict=True):
                part = activation(self.children[name](x))
                hidden = part if hidden is None else hidden * part
            return self.dropout2(self.linear2(self.dropout1(hidden)))

        return self._around(feed, x)


class TransformerLayer(BaseLayer):
    """Attention over itself, and feed-forward."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of TransformerLayer.

        Attributes:
          input_dim: number of features of input and output.
          self_attention: config of the attention over the input.
          feed_forward: config of the feed-forward layer.
        """

        input_dim: Required[int] = REQUIRED
        self_attention: InstantiableConfig = TransformerAttentionLayer.default_config()
        feed_forward: InstantiableConfig = TransformerFeedForwardLayer.default_config()

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        dim = cfg.input_dim
        attention = cfg.self_attention.clone(target_dim=dim, source_dim=dim)
        self._add_child("self_attention", attention)
        self._add_child("feed_forward", cfg.feed_forward.clone(input_dim=dim))

    def forward(
        self, data: jax.Array, *, attention_logit_biases: jax.Array | None = None
    ) -> jax.Array:
        """Maps (batch, time, input_dim) to the same shape."""
        data = self.self_attention(data, attention_logit_biases=attention_logit_biases)
        return self.feed_forward(data)
