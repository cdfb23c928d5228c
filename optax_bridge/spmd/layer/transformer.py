"""The layers of a transformer, each with norm, skip and dropout, and stacks of them."""

from collections.abc import Callable, Sequence
from typing import Optional, Union, cast

import jax

from optax_bridge.metadata.trees import Params, PyTree
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
from optax_bridge.spmd.layer.parameters import ParameterSpec
from optax_bridge.spmd.layer.third_party import as_layer_config
from optax_bridge.spmd.module import Module, scan_in_context
from optax_bridge.spmd.trees import VDict, prune_empty

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

    def _add_residual(self, inner: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
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

        return self._add_residual(attend, target)


def activation_fn(name: str) -> Callable[[jax.Array], jax.Array]:
    """An activation by name: "nn.relu" for `jax.nn.relu`, or "linear".

    Raises:
      ValueError: no activation has that name.
    """
    if name == "linear":
        return lambda x: x
    fn = getattr(jax.nn, name.removeprefix("nn."), None)
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

        return self._add_residual(feed, x)


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


class StackedTransformerLayer(BaseLayer):
    """Layers one after another, `layer0`, `layer1` and so on."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of StackedTransformerLayer.

        Attributes:
          input_dim: number of features of input and output; the layers' own if it is not set.
          num_layers: how many there are.
          layer: config of each layer, or a list of configs, one for each. What a config makes may
            also be a module of flax.linen or flax.nnx.
        """

        input_dim: Union[int, None] = None  # noqa: UP007
        num_layers: Required[int] = REQUIRED
        layer: Union[InstantiableConfig, Sequence[InstantiableConfig]] = (  # noqa: UP007
            TransformerLayer.default_config()
        )

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        layer, num_layers = cfg.layer, cfg.num_layers
        layers = [layer] * num_layers if isinstance(layer, InstantiableConfig) else list(layer)
        if len(layers) != num_layers:
            raise ValueError(
                f"{self!r}: num_layers is {num_layers}, but `layer` has {len(layers)} configs."
            )
        for i, layer in enumerate(layers):
            self._add_child(f"layer{i}", _of_dim(layer, cfg.input_dim))

    def forward(self, data: jax.Array, **layer_kwargs: PyTree) -> jax.Array:
        """Applies the layers; all get the keyword arguments."""
        for layer in self.children.values():
            if isinstance(layer, BaseLayer):
                data = layer(data, **layer_kwargs)
        return data


def _of_dim(layer: InstantiableConfig, dim: int | None) -> InstantiableConfig:
    config = as_layer_config(layer)
    return config if dim is None else maybe_set_config(config, input_dim=dim)


class RepeatedTransformerLayer(BaseLayer):
    """One layer, applied again and again with other parameters: compiled once for all.

    The parameters are those of `layer`, stacked along axis 0 in a `VDict`.
    """

    @config_class
    class Config(BaseLayer.Config):
        """Config of RepeatedTransformerLayer.

        Attributes:
          input_dim: number of features of input and output; the layer's own if it is not set.
          num_layers: how often the layer is applied.
          layer: config of the layer.
          unroll: how many iterations are compiled as one, as in `jax.lax.scan`.
        """

        input_dim: Union[int, None] = None  # noqa: UP007
        num_layers: Required[int] = REQUIRED
        layer: InstantiableConfig = TransformerLayer.default_config()
        unroll: int = 1

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        self._add_child("layer", _of_dim(cfg.layer, cfg.input_dim))

    def create_parameter_specs_recursively(self) -> dict[str, PyTree]:
        """The layer's specs, stacked."""
        specs = self.layer.create_parameter_specs_recursively()
        stacked = jax.tree.map(
            lambda spec: spec.stack(self._config.num_layers),
            specs,
            is_leaf=lambda x: isinstance(x, ParameterSpec),
        )
        return {"layer": VDict(stacked)}

    def initialize_parameters_recursively(
        self, prng_key: jax.Array, *, prebuilt: PyTree = None
    ) -> dict[str, PyTree]:
        """The layer's parameters, made from a key for each repetition, stacked."""
        _, child_key = jax.random.split(prng_key)
        below = prebuilt.get("layer") if isinstance(prebuilt, dict) else prebuilt
        keys = jax.random.split(child_key, self._config.num_layers)

        def initialize(key: jax.Array) -> VDict:
            return VDict(self.layer.initialize_parameters_recursively(key, prebuilt=below))

        return {"layer": jax.vmap(initialize)(keys)}

    def apply_parameter_noise_recursively(self, prng_key: jax.Array, params: Params) -> Params:
        """Noise on each repetition's parameters, with a key of its own, then this layer's."""
        prng_key, child_key = jax.random.split(prng_key)
        keys = jax.random.split(child_key, self._config.num_layers)
        noisy = jax.vmap(self.layer.apply_parameter_noise_recursively)(keys, params["layer"])
        params = {**params, "layer": noisy}
        return params if self._param_noise is None else self._param_noise.apply(prng_key, params)

    def forward(self, data: jax.Array, **layer_kwargs: PyTree) -> jax.Array:
        """Applies the layer num_layers times; each time with the keyword arguments."""
        n = self._config.num_layers
        context = self.get_invocation_context()
        # An iteration's parameters are those of one layer, no longer stacked.
        state = {**context.state, "layer": dict(context.state["layer"])}
        xs: dict[str, PyTree] = {"xs": None, "state": state}
        if context.prng_key is not None:
            xs["prng_key"] = jax.random.split(context.prng_key, n)
        data, _ = scan_in_context(
            lambda x, _: (self.layer(x, **layer_kwargs), None),
            carry=data,
            xs=xs,
            child_name_prefix="layer",
            unroll=self._config.unroll,
        )
        # The scan leaves the updates of the iterations, which are of this layer; ours are theirs.
        updates = context.output_collection.state_updates
        inner = prune_empty(updates.pop("layer"))
        if inner:
            updates["layer"] = VDict(inner["layer"])
        return data
