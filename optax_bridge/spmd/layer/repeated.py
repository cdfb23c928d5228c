"""Layers one after another: each with its own parameters, or compiled once for all."""

from collections.abc import Sequence
from typing import Union

import jax

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    InstantiableConfig,
    Required,
    config_class,
    maybe_set_config,
)
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.parameters import ParameterSpec
from optax_bridge.spmd.layer.third_party import as_layer_config
from optax_bridge.spmd.module import Module, scan_in_context
from optax_bridge.spmd.trees import VDict, prune_empty


class StackedTransformerLayer(BaseLayer):
    """Layers one after another, `layer0`, `layer1` and so on."""

    @config_class
    class Config(BaseLayer.Config):
        """Config of StackedTransformerLayer."""

        input_dim: Union[int, None] = None  # noqa: UP007
        num_layers: Required[int] = REQUIRED
        layer: Required[Union[InstantiableConfig, Sequence[InstantiableConfig]]] = (  # noqa: UP007
            REQUIRED
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
        """Applies the layers, each with the keyword arguments."""
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
        """Config of RepeatedTransformerLayer."""

        input_dim: Union[int, None] = None  # noqa: UP007
        num_layers: Required[int] = REQUIRED
        layer: Required[InstantiableConfig] = REQUIRED
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
        """Adds noise to each repetition's parameters, with its own key, then to this layer's."""
        prng_key, child_key = jax.random.split(prng_key)
        keys = jax.random.split(child_key, self._config.num_layers)
        noisy = jax.vmap(self.layer.apply_parameter_noise_recursively)(keys, params["layer"])
        params = {**params, "layer": noisy}
        return params if self._param_noise is None else self._param_noise.apply(prng_key, params)

    def forward(self, data: jax.Array, **layer_kwargs: PyTree) -> jax.Array:
        """Applies the layer num_layers times, each time with the keyword arguments."""
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
