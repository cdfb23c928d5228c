"""`BaseLayer`: a module whose state is its parameters; its remat, and statistics of its values."""

import dataclasses
import functools
from typing import Optional, TypeVar

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike, DTypeLike

from optax_bridge.metadata.trees import Params, PyTree
from optax_bridge.spmd.config import InstantiableConfig, config_class, maybe_instantiate
from optax_bridge.spmd.layer.parameters import (
    DefaultInitializer,
    FanAxes,
    Initializer,
    ParameterNoise,
    ParameterSpec,
    RematSpec,
)
from optax_bridge.spmd.metrics import WeightedSummary
from optax_bridge.spmd.module import (
    Module,
    OutputCollection,
    child_context,
    current_context,
    new_output_collection,
)
from optax_bridge.spmd.module.module import Method, is_marked, public_methods
from optax_bridge.spmd.trees import NestedParameterSpec, check_jax_type

F = TypeVar("F", bound=Method)


def no_remat(fn: F) -> F:
    """Marks a method that is not to be computed again in the backward pass."""
    fn._no_remat = True  # type: ignore[attr-defined]
    return fn


def remat_method(method: Method, spec: RematSpec) -> Method:
    """The method, under `jax.checkpoint` while training."""
    checkpointed: Method = functools.partial(
        jax.checkpoint, prevent_cse=spec.prevent_cse, policy=maybe_instantiate(spec.policy)
    )

    @functools.wraps(method)
    def call(self: Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
        context = current_context()
        if context is None or context.module is not self or not context.is_training:
            return method(self, *args, **kwargs)
        check_jax_type(
            args=args,
            msg=f"{self!r} has a remat_spec, under which {method.__name__} takes arrays only; pass "
            "others by keyword, or mark the method by `@no_remat`.",
        )
        traced = {name: value for name, value in kwargs.items() if _is_traced(value)}
        others = {name: value for name, value in kwargs.items() if name not in traced}

        def inside(
            state: PyTree, prng_key: jax.Array | None, args: PyTree, traced: PyTree
        ) -> tuple[PyTree, OutputCollection]:
            # The key is that of the context outside: remat leaves random numbers as they are.
            with child_context(
                "remat",
                module=self,
                state=state,
                prng_key=prng_key,
                output_collection=new_output_collection(),
            ) as remat:
                outputs = method(self, *args, **traced, **others)
                return outputs, remat.output_collection

        outputs, collection = checkpointed(inside)(context.state, context.prng_key, args, traced)
        context.output_collection.update(collection)
        return outputs

    return call


def _is_traced(value: PyTree) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)


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
        """Config of CompositeTensorStats."""

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


class BaseLayer(Module):
    """A module with parameters, which are its state and those of the layers below it.

    A subclass says in `_create_layer_parameter_specs` which parameters it has, and reads them as
    `self.parameters` in its methods.
    """

    @config_class
    class Config(Module.Config):
        """Config of a layer."""

        dtype: Optional[jnp.dtype] = None  # noqa: UP045
        param_init: Optional[DefaultInitializer.Config] = None  # noqa: UP045
        param_partition_spec: NestedParameterSpec = None
        remat_spec: Optional[RematSpec] = None  # noqa: UP045
        param_noise: Optional[ParameterNoise.Config] = None  # noqa: UP045
        tensor_stats: Optional[InstantiableConfig] = None  # noqa: UP045

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        cfg = self._config
        param_init = cfg.param_init
        if param_init is None and not isinstance(parent, BaseLayer):
            param_init = DefaultInitializer.default_config()
        self._param_init: Initializer | None = (
            None if param_init is None else param_init.instantiate()
        )
        self._param_noise = None if cfg.param_noise is None else cfg.param_noise.instantiate()
        if cfg.tensor_stats is not None:
            self._add_child("tensor_stats", cfg.tensor_stats)

    def _methods_to_wrap_for_auto_child_context(self) -> dict[str, Method]:
        return public_methods(type(self), base=BaseLayer)

    def _wrap_methods_with_auto_child_context(
        self, methods: dict[str, Method]
    ) -> dict[str, Method]:
        spec = self._config.remat_spec
        if spec is not None:
            methods = {
                name: method
                if is_marked(type(self), name, "_no_remat")
                else remat_method(method, spec)
                for name, method in methods.items()
            }
        return super()._wrap_methods_with_auto_child_context(methods)

    # Inherited settings.

    def dtype(self) -> DTypeLike:
        """The dtype of parameters that say nothing else: of the config, the parent, or float32."""
        if self._config.dtype is not None:
            return self._config.dtype
        return self.parent.dtype() if isinstance(self.parent, BaseLayer) else jnp.float32

    def param_init(self) -> Initializer:
        """Returns the initializer of parameters that name none: the config's, or the parent's."""
        if self._param_init is not None:
            return self._param_init
        assert isinstance(self.parent, BaseLayer)
        return self.parent.param_init()

    @property
    def parameters(self) -> Params:
        """The parameters in this call: the state."""
        return self.state

    # Parameters.

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        """The layer's own parameters, without those of layers below it."""
        return {}

    def _compute_fan_axes(self, name: str, parameter_spec: ParameterSpec) -> FanAxes | None:
        """The fan axes of a parameter whose spec does not say them."""
        if not name.endswith("weight"):
            return None
        if len(parameter_spec.shape) != 2:
            raise NotImplementedError(
                f"{self!r}: _compute_fan_axes requires weight parameters to have exactly 2 axes, "
                f"and {name!r} has shape {tuple(parameter_spec.shape)}. Override it, or set "
                f"`fan_axes`."
            )
        return FanAxes(in_axis=-2, out_axis=-1)

    def _own_parameter_specs(self) -> dict[str, ParameterSpec]:
        return {
            name: self._complete(name, spec)
            for name, spec in self._create_layer_parameter_specs().items()
        }

    def _complete(self, name: str, spec: ParameterSpec) -> ParameterSpec:
        """A copy of the spec with its open fields filled in."""
        axes = spec.mesh_axes
        if axes is None:
            axes = (None,) * len(spec.shape)
        if len(axes) != len(spec.shape):
            raise ValueError(
                f"parameter {name!r} of {self!r}: mesh_axes {axes} are {len(axes)}, but its shape "
                f"{tuple(spec.shape)} has {len(spec.shape)} axes."
            )
        fan_axes = spec.fan_axes
        return dataclasses.replace(
            spec,
            dtype=self.dtype() if spec.dtype is None else spec.dtype,
            mesh_axes=axes if isinstance(axes, PartitionSpec) else PartitionSpec(*axes),
            fan_axes=self._compute_fan_axes(name, spec) if fan_axes is None else fan_axes,
        )

    def _layers_below(self) -> "dict[str, BaseLayer]":
        return {name: m for name, m in self.children.items() if isinstance(m, BaseLayer)}

    def create_parameter_specs_recursively(self) -> dict[str, PyTree]:
        """The specs of the layer's parameters and of those below it, nested by name.

        Raises:
          ValueError: a spec has another number of mesh axes than the parameter has axes.
        """
        specs: dict[str, PyTree] = dict(self._own_parameter_specs())
        for name, layer in self._layers_below().items():
            specs[name] = layer.create_parameter_specs_recursively()
        return specs

    def initialize_parameters_recursively(
        self, prng_key: jax.Array, *, prebuilt: PyTree = None
    ) -> dict[str, PyTree]:
        """The first values of the layer's parameters and of those below it, nested by name.

        Args:
          prng_key: a random key; each parameter and layer gets its own.
          prebuilt: a tree of the same structure, with something other than None for parameters that
            exist already. They are None in the result; the others are as without it.
        """
        params: dict[str, PyTree] = {}
        for name, spec in self._own_parameter_specs().items():
            prng_key, child_key = jax.random.split(prng_key)
            if _at(prebuilt, name) is not None:
                params[name] = None
                continue
            params[name] = self._initialize_parameter(name, prng_key=child_key, parameter_spec=spec)
        for name, layer in self._layers_below().items():
            prng_key, child_key = jax.random.split(prng_key)
            params[name] = layer.initialize_parameters_recursively(
                child_key, prebuilt=_at(prebuilt, name)
            )
        return params

    def _initialize_parameter(
        self, name: str, *, prng_key: jax.Array, parameter_spec: ParameterSpec
    ) -> jax.Array:
        """The first value of one of the layer's own parameters."""
        initializer = maybe_instantiate(parameter_spec.initializer)
        if initializer is None:
            initializer = self.param_init()
        return initializer.initialize(
            name,
            prng_key=prng_key,
            shape=parameter_spec.shape,
            dtype=parameter_spec.dtype or self.dtype(),
            axes=parameter_spec.fan_axes,
        )

    def apply_parameter_noise_recursively(self, prng_key: jax.Array, params: Params) -> Params:
        """A copy of the parameters with the noise of the layers below, then with this layer's.

        Nothing calls it but the trainer.
        """
        params = type(params)(params)
        for name, layer in self._layers_below().items():
            prng_key, child_key = jax.random.split(prng_key)
            if name in params:
                params[name] = layer.apply_parameter_noise_recursively(child_key, params[name])
        if self._param_noise is not None:
            params = self._param_noise.apply(prng_key, params)
        return params

    # For use in methods.

    def _remat_name(self, x: jax.Array, name: str) -> jax.Array:
        """Names a value for checkpoint policies: `<class>.<name>`."""
        return jax.ad_checkpoint.checkpoint_name(x, f"{type(self).__name__}.{name}")

    def _add_tensor_stats(self, name: str, value: jax.Array) -> None:
        """Adds statistics of a value, `tensor_stats/<name>`, if the config says which."""
        if self._config.tensor_stats is None:
            return
        ours = self.get_invocation_context().output_collection
        # One context for all names.
        collection = OutputCollection(*(outputs.setdefault("tensor_stats", {}) for outputs in ours))
        with (
            child_context("tensor_stats", output_collection=collection),
            child_context(name, module=self.tensor_stats),
        ):
            self.tensor_stats.add_stats(name, value)

    def _add_activation_summary(
        self,
        *,
        name: str,
        activations: jax.Array,
        activation_paddings: jax.Array | None = None,
    ) -> None:
        """Adds mean and norm of activations, `activations/<name>_mean` and `_norm`."""
        x = activations.astype(jnp.float32)
        if activation_paddings is None:
            weight: ArrayLike = x.shape[0]
            mean = jnp.mean(x)
            norm = jnp.mean(jnp.sqrt(jnp.mean(jnp.square(x), axis=tuple(range(1, x.ndim)))))
        else:
            mask = 1 - activation_paddings.astype(jnp.float32)
            weight = jnp.sum(mask)
            features = tuple(range(2, x.ndim))
            frames = jnp.maximum(weight, 1)
            mean = jnp.sum(jnp.mean(x, axis=features) * mask) / frames
            norm = jnp.sum(jnp.sqrt(jnp.mean(jnp.square(x), axis=features)) * mask) / frames
        self.add_summary(f"activations/{name}_mean", WeightedSummary(mean, weight))
        self.add_summary(f"activations/{name}_norm", WeightedSummary(norm, weight))


def _at(prebuilt: PyTree, name: str) -> PyTree:
    return prebuilt.get(name) if isinstance(prebuilt, dict) else prebuilt


class BaseModel(BaseLayer):
    """A layer that can be trained: its `forward` gives the loss."""

    def forward(self, input_batch: dict[str, PyTree]) -> tuple[jax.Array, dict[str, PyTree]]:
        """The loss of a batch.

        Returns:
          The loss, a scalar, and anything else as a dict.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what its loss is.")

    def predict(self, input_batch: dict[str, PyTree]) -> dict[str, PyTree]:
        """Returns the model's predictions for a batch."""
        raise NotImplementedError(f"{type(self).__name__} does not say what it predicts.")
