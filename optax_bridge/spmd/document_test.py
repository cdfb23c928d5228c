"""The examples of AXLearn's concepts document, as they are written there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.spmd.config import (
    REQUIRED,
    Required,
    config_class,
    config_for_class,
    config_for_function,
)
from optax_bridge.spmd.examples.transformer import GroupedQueryAttention, TransformerAttentionLayer
from optax_bridge.spmd.layer import (
    BaseLayer,
    FactorizationSpec,
    ParameterSpec,
    RMSNorm,
    StackedTransformerLayer,
)
from optax_bridge.spmd.module import Module, OutputCollection
from optax_bridge.spmd.module import functional as F

KEY = jax.random.key(0)


class PretrainedConfig:
    def __init__(self, scale=1.0):
        self.scale = scale

    @classmethod
    def from_pretrained(cls, name):
        return cls()

    def to_dict(self):
        return vars(self)


class ThirdPartyTransformerLayer:
    def __init__(self, config: PretrainedConfig):
        self.config = config

    @classmethod
    def from_pretrained(cls, config: PretrainedConfig):
        return cls(config)

    def __call__(self, x):
        return x * self.config.scale


def layer_from_pretrained(config: PretrainedConfig):
    return ThirdPartyTransformerLayer.from_pretrained(config)


def build_layer_config(i: int):
    cfg = TransformerAttentionLayer.default_config().set(target_dim=4, source_dim=4)
    cfg.attention = GroupedQueryAttention.default_config()
    cfg.attention.set(num_heads=4, num_kv_heads=2 ** (i % 2))
    return cfg


def test_gqa_and_rms_norm():
    layer_cfg = TransformerAttentionLayer.default_config().set(
        attention=GroupedQueryAttention.default_config(),
        norm=RMSNorm.default_config(),
    )
    layer_cfg.attention.set(num_heads=4, num_kv_heads=2)
    layer = layer_cfg.set(name="layer", target_dim=8, source_dim=8).instantiate(parent=None)
    params = layer.initialize_parameters_recursively(KEY)
    assert set(params["norm"]) == {"scale"}
    assert params["attention"]["k_proj"]["weight"].shape == (8, 4)


def test_stack_of_layers():
    stack_cfg = StackedTransformerLayer.default_config().set(num_layers=12)

    layer_cfgs = []
    for i in range(stack_cfg.num_layers):
        layer_cfgs.append(build_layer_config(i))

    stack_cfg.set(layer=layer_cfgs)
    stack: StackedTransformerLayer = stack_cfg.set(name="stack").instantiate(parent=None)
    specs = stack.create_parameter_specs_recursively()
    assert specs["layer11"]["attention"]["k_proj"]["weight"].shape == (4, 2)


@pytest.mark.parametrize(
    "custom_layer_cfg",
    [config_for_class(ThirdPartyTransformerLayer), config_for_function(layer_from_pretrained)],
)
def test_third_party_layers(custom_layer_cfg):
    custom_layer_cfg.set(config=PretrainedConfig(scale=3.0))
    stack_cfg = StackedTransformerLayer.default_config().set(
        layer=custom_layer_cfg,
    )
    stack = stack_cfg.set(num_layers=2, name="stack").instantiate(parent=None)
    outputs, _ = F(stack, None, {}, {"data": jnp.ones(2)}, is_training=False)
    np.testing.assert_array_equal(outputs, [9, 9])


class BarModule(Module):
    def forward(self, x):
        self.add_summary("x", x)
        return x * self.state["scale"]

    def my_method(self, x):
        return x + self.state["scale"]


class FooModule(Module):
    @config_class
    class Config(Module.Config):
        bar: BarModule.Config = BarModule.default_config()

    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        bar_cfg: BarModule.Config = self.config.bar
        self._add_child("bar1", bar_cfg)
        self._add_child("bar2", bar_cfg)

    def forward(self, x):
        y = self.bar1(x)
        z = self.bar2.my_method(y)
        return z


def test_modules_and_functional():
    cfg: FooModule.Config = FooModule.default_config().set(name="foo", vlog=1)
    foo_module: FooModule = cfg.instantiate(parent=None)
    outputs, output_collection = F(
        foo_module,
        prng_key=KEY,
        state={"bar1": {"scale": 2.0}, "bar2": {"scale": 5.0}},
        inputs={"x": jnp.ones(())},
        is_training=True,
    )
    assert outputs == 7
    assert isinstance(output_collection, OutputCollection)
    assert output_collection.summaries["bar1"] == {"x": 1}


class DocumentsLinear(BaseLayer):
    @config_class
    class Config(BaseLayer.Config):
        input_dim: Required[int] = REQUIRED
        output_dim: Required[int] = REQUIRED
        bias: bool = True

    def _create_layer_parameter_specs(self) -> dict[str, ParameterSpec]:
        cfg = self.config
        params = dict(
            weight=ParameterSpec(
                shape=(cfg.input_dim, cfg.output_dim),
                mesh_axes=cfg.param_partition_spec,
                factorization=FactorizationSpec(axes=("row", "col")),
            )
        )
        if cfg.bias:
            params["bias"] = ParameterSpec(
                shape=[cfg.output_dim], mesh_axes=(cfg.param_partition_spec[-1],)
            )
        return params


def test_parameters_of_a_layer():
    cfg = DocumentsLinear.default_config().set(name="linear", input_dim=3, output_dim=2)
    layer = cfg.set(param_partition_spec=(None, "model")).instantiate(parent=None)
    specs = layer.create_parameter_specs_recursively()
    assert tuple(specs["weight"].mesh_axes) == (None, "model")
    assert tuple(specs["bias"].mesh_axes) == ("model",)
    params = layer.initialize_parameters_recursively(KEY)
    assert params["weight"].shape == (3, 2) and params["bias"].shape == (2,)


def test_names_of_the_document():
    fields = ["dtype", "param_init", "param_noise", "param_partition_spec", "remat_spec"]
    assert set(fields) | {"klass", "name", "vlog"} <= set(BaseLayer.default_config().keys())
    assert all(BaseLayer.default_config().get_recursively([name]) is None for name in fields)
