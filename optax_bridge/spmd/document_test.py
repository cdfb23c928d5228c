"""The examples of AXLearn's concepts document, as they are written there."""

import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.spmd.config import config_for_class, config_for_function
from optax_bridge.spmd.examples.transformer import GroupedQueryAttention, TransformerAttentionLayer
from optax_bridge.spmd.layer import BaseLayer, RMSNorm, StackedTransformerLayer
from optax_bridge.spmd.module import functional as F


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
    cfg.set(attention=GroupedQueryAttention.default_config(), norm=RMSNorm.default_config())
    cfg.attention.set(num_heads=4, num_kv_heads=2 ** (i % 2))
    return cfg


def test_stack_of_layers():
    stack_cfg = StackedTransformerLayer.default_config().set(num_layers=12)

    layer_cfgs = []
    for i in range(stack_cfg.num_layers):
        layer_cfgs.append(build_layer_config(i))

    stack_cfg.set(layer=layer_cfgs)
    stack: StackedTransformerLayer = stack_cfg.set(name="stack").instantiate(parent=None)
    specs = stack.create_parameter_specs_recursively()
    assert specs["layer11"]["attention"]["k_proj"]["weight"].shape == (4, 2)
    assert set(specs["layer11"]["norm"]) == {"scale"}


@pytest.mark.parametrize(
    "custom_layer_cfg",
    [config_for_class(ThirdPartyTransformerLayer), config_for_function(layer_from_pretrained)],
)
def test_third_party_layers(custom_layer_cfg):
    custom_layer_cfg.set(config=PretrainedConfig(scale=3.0))
    stack_cfg = StackedTransformerLayer.default_config().set(layer=custom_layer_cfg)
    stack = stack_cfg.set(num_layers=2, name="stack").instantiate(parent=None)
    outputs, _ = F(stack, None, {}, {"data": jnp.ones(2)}, is_training=False)
    np.testing.assert_array_equal(outputs, [9, 9])


def test_names_of_the_document():
    fields = ["dtype", "param_init", "param_noise", "param_partition_spec", "remat_spec"]
    assert set(fields) | {"klass", "name", "vlog"} <= set(BaseLayer.default_config().keys())
    assert all(BaseLayer.default_config().get_recursively([name]) is None for name in fields)
