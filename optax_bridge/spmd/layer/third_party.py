"""Layers from elsewhere: modules of flax.linen and flax.nnx, and callables without parameters."""

import functools
import logging
from collections.abc import Sequence
from typing import Any, Optional

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec

from optax_bridge.metadata.axis_metadata import is_box, names_of, value_of
from optax_bridge.metadata.paths import key_names
from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    InstantiableConfig,
    Required,
    RequiredFieldValue,
    config_class,
)
from optax_bridge.spmd.layer.base import BaseLayer
from optax_bridge.spmd.layer.flax_modules import LinenModule, NnxModule
from optax_bridge.spmd.layer.parameters import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.module import Module
from optax_bridge.spmd.module.module import Method
from optax_bridge.spmd.trees import TensorSpec

_log = logging.getLogger(__name__)


class ThirdPartyLayer(BaseLayer):
    """A layer around anything that a config makes.

    The variables of a module of flax.linen or flax.nnx are the layer's parameters: `params` and the
    other collections by name. A call leaves the new values of these as state updates, and what the
    module sowed as module outputs. Names of axes become mesh axes. The module is told whether it is
    trained by `train`, `training`, `is_training`, `deterministic` or `use_running_average`, if its
    method has such an argument. Anything else that can be called is a layer without parameters.
    """

    @config_class
    class Config(BaseLayer.Config):
        """Config of ThirdPartyLayer."""

        module: Required[InstantiableConfig | nn.Module] = REQUIRED
        method: str = "__call__"
        input_dim: Optional[int] = None  # noqa: UP045
        example_inputs: Optional[Sequence[TensorSpec | Sequence[int]]] = None  # noqa: UP045
        axis_rules: Optional[Sequence[tuple[str, Optional[str]]]] = None  # noqa: UP045

    def __init__(self, cfg: Config, *, parent: Module | None) -> None:
        super().__init__(cfg, parent=parent)
        self._module = self._make_module()
        self._has_warned = False

    def _make_module(self) -> LinenModule | NnxModule | Method:
        cfg = self._config
        maker = functools.partial(_make, cfg.module)
        if isinstance(getattr(cfg.module, "klass", None), type) and issubclass(
            cfg.module.klass, nnx.Module
        ):
            return NnxModule(maker, cfg.method)
        module = maker(jax.random.key(0))
        if isinstance(module, nnx.Module):
            return NnxModule(maker, cfg.method)
        if isinstance(module, nn.Module):
            return LinenModule(module, self._examples(), cfg.method, self._mesh_axes())
        if not callable(getattr(module, cfg.method, None)):
            raise TypeError(
                f"{self!r}: expected a module of flax.linen or flax.nnx, or one with a method "
                f"{cfg.method!r}; its config makes a {type(module).__name__}: {module!r}"
            )
        return getattr(module, cfg.method)

    def _mesh_axes(self) -> dict[str, str | None] | None:
        """The mesh's axis by the name of an axis: that of the first rule."""
        rules = self._config.axis_rules
        return None if rules is None else dict(reversed([tuple(rule) for rule in rules]))

    def _examples(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        cfg = self._config
        inputs = cfg.example_inputs
        if inputs is None and cfg.input_dim is None:
            raise ValueError(
                f"{self!r}: a module of flax.linen has its parameters from its inputs. Set "
                "example_inputs, their shapes, or input_dim."
            )
        if inputs is None:
            inputs = [(1, 1, cfg.input_dim)]
        specs = [x if isinstance(x, TensorSpec) else TensorSpec(x) for x in inputs]
        return tuple(jax.ShapeDtypeStruct(tuple(s.shape), s.dtype or jnp.float32) for s in specs)

    def create_parameter_specs_recursively(self) -> dict[str, PyTree]:
        """The specs of the module's variables, by collection."""
        if not isinstance(self._module, LinenModule | NnxModule):
            return {}
        specs = jax.tree_util.tree_map_with_path(
            self._spec, self._module.abstract(), is_leaf=is_box
        )
        self._warn_of_dtype(specs.get("params", {}))
        return specs

    def _warn_of_dtype(self, specs: PyTree) -> None:
        """Logs a warning, once, if parameters are of another dtype than the config says."""
        wanted = jnp.dtype(self.dtype())
        dtypes = {jnp.dtype(spec.dtype) for spec in jax.tree.leaves(specs)}
        others = [d.name for d in dtypes if jnp.issubdtype(d, jnp.floating) and d != wanted]
        if others and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "%r: parameters are %s, as the module makes them, and dtype %s, of the config or "
                "of the layer above, does not change that. Set the module's own param_dtype, or "
                "this layer's dtype to theirs",
                self,
                ", ".join(sorted(others)),
                wanted.name,
            )

    def _spec(self, path: tuple[object, ...], leaf: Leaf) -> ParameterSpec:
        where = "/".join(key_names(path))
        array, box_names = value_of(leaf), names_of(leaf, where) if is_box(leaf) else None
        names: Any = (None,) * len(array.shape) if box_names is None else box_names
        mesh_axes = self._mesh_axes()
        if mesh_axes is not None:
            unknown = set(names) - {None, *mesh_axes}
            if unknown:
                raise ValueError(
                    f"{self!r}: axes {sorted(unknown)} of {where} are in no rule of axis_rules "
                    f"{list(self._config.axis_rules)}."
                )
            names = [mesh_axes.get(name) for name in names]
        roles = getattr(leaf, "roles", None)
        # There a row statistic keeps the axis of that role, here it is the mean over it.
        axes = [{"row": "col", "column": "row"}.get(str(role)) for role in roles or ()]
        is_param = where.startswith("params/")
        return ParameterSpec(
            shape=array.shape,
            dtype=array.dtype,
            mesh_axes=PartitionSpec(*names),
            factorization=FactorizationSpec(axes) if is_param and any(axes) else None,
            weight_decay_scale=None if is_param else 0.0,
        )

    def initialize_parameters_recursively(
        self, prng_key: jax.Array, *, prebuilt: PyTree = None
    ) -> dict[str, PyTree]:
        """First values of the module's variables, as the module makes them, by collection."""
        if not isinstance(self._module, LinenModule | NnxModule):
            return {}
        values = self._module.init(_as_typed_key(prng_key))
        if prebuilt is None:
            return values
        return jax.tree.map(
            lambda value, built: value if built is None else None,
            values,
            prebuilt,
            is_leaf=lambda x: x is None,
        )

    def forward(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        """Calls the module."""
        if not isinstance(self._module, LinenModule | NnxModule):
            return self._module(*args, **kwargs)
        key = None if self.prng_key is None else _as_typed_key(self.prng_key)
        outputs, changed, sown = self._module.call(
            self.parameters or {}, key, self.is_training, args, kwargs
        )
        for name, value in changed.items():
            self.add_state_update(name, value)
        for name, value in sown.items():
            self.add_module_output(name, value)
        return outputs


def _make(cfg: InstantiableConfig | nn.Module, key: jax.Array) -> Any:
    """Makes a module from its config, with random keys if it asks for them."""
    if isinstance(cfg, nn.Module):
        return cfg
    if not isinstance(cfg, InstantiableConfig):
        raise TypeError(
            "module: expected a config, or a module of flax.linen, found "
            f"{type(cfg).__name__}. config_for_class(...).set(...) makes a config."
        )
    if isinstance(getattr(cfg, "rngs", None), RequiredFieldValue):
        return cfg.instantiate(rngs=nnx.Rngs(key))
    return cfg.instantiate()


def _as_typed_key(key: jax.Array) -> jax.Array:
    """A key as an array of keys; older code has them as integers."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key)


def as_layer_config(cfg: InstantiableConfig) -> InstantiableConfig:
    """The config of a layer: a copy, or one of a `ThirdPartyLayer` around another object."""
    if isinstance(cfg, Module.Config):
        return cfg.clone()
    return ThirdPartyLayer.default_config().set(module=cfg)
