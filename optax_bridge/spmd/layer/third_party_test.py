import copy
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import config_for_class, config_for_function
from optax_bridge.spmd.layer import (
    RepeatedTransformerLayer,
    StackedTransformerLayer,
    ThirdPartyLayer,
)
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.trees import TensorSpec

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 8, 8))


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x, train, deterministic):
        init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
        x = nn.BatchNorm(use_running_average=not train)(
            nn.Dense(8, use_bias=False, kernel_init=init)(x)
        )
        self.sow("intermediates", "mean", x.mean())
        return nn.Dropout(0.5, deterministic=deterministic)(x)


class Nnx(nnx.Module):
    def __init__(self, dim, *, rngs):
        init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("in", "out"))
        self.dense = nnx.Linear(dim, dim, use_bias=False, kernel_init=init, rngs=rngs)
        self.norm = nnx.BatchNorm(dim, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = self.norm(self.dense(x))
        self.sow(nnx.Intermediate, "mean", x.mean())
        return self.dropout(x)


MODULES = {
    "linen": (config_for_class(Linen), ("params", "Dense_0", "kernel")),
    "nnx": (config_for_class(Nnx).set(dim=8), ("params", "dense", "kernel")),
}


def made(name: str, **values: Any) -> Any:
    cfg = ThirdPartyLayer.default_config().set(module=MODULES[name][0], input_dim=8, **values)
    return cfg.set(name="layer").instantiate(parent=None)


@pytest.mark.parametrize("name", MODULES)
def test_an_axis_without_a_rule(name):
    with refused(ValueError, r"\['out'\] of params/.*kernel"):
        made(name, axis_rules=[("in", None)]).create_parameter_specs_recursively()


@pytest.mark.parametrize("name", MODULES)
def test_names_that_are_not_the_meshs(name):
    layer = made(name, axis_rules=[("in", None), ("out", "model")])
    with jax.set_mesh(Mesh(np.array(jax.devices()), ("model",))):
        params = jax.eval_shape(layer.initialize_parameters_recursively, KEY)
        y, _ = jax.eval_shape(lambda p: functional(layer, KEY, p, (X,), is_training=True), params)
    assert y.shape == X.shape


@pytest.mark.parametrize("name", MODULES)
def test_copied_and_prebuilt(name):
    layer = copy.deepcopy(made(name))
    params = jax.eval_shape(layer.initialize_parameters_recursively, KEY)
    prebuilt = jax.tree.map(lambda _: None, params)
    prebuilt["params"] = jax.tree.map(lambda _: 1, params["params"])
    rest = jax.eval_shape(lambda: layer.initialize_parameters_recursively(KEY, prebuilt=prebuilt))
    assert not jax.tree.leaves(rest["params"])
    assert jax.tree.structure(rest["batch_stats"]) == jax.tree.structure(params["batch_stats"])


@pytest.mark.parametrize("name", MODULES)
def test_another_dtype_than_the_modules_is_said(name, caplog):
    made(name).create_parameter_specs_recursively()
    assert not caplog.text
    layer = made(name, dtype=jnp.bfloat16)
    for _ in range(2):
        layer.create_parameter_specs_recursively()
    assert caplog.text.count("parameters are float32, as the module makes them, and dtype bfl") == 1


class Twice:
    def __init__(self, factor=2):
        self.factor = factor

    def __call__(self, x):
        return self.factor * x


class Silent:
    pass


def dense(features: int) -> nn.Module:
    return nn.Dense(features)


def test_in_a_stack():
    layers = [config_for_class(Twice), config_for_function(dense).set(features=8)]
    cfg = StackedTransformerLayer.default_config().set(num_layers=2, layer=layers, input_dim=8)
    stack = cfg.set(name="stack").instantiate(parent=None)
    params = stack.initialize_parameters_recursively(KEY)
    y, _ = functional(stack, None, params, (X,), is_training=False)
    expected = nn.Dense(8).apply(params["layer1"], 2 * X)
    np.testing.assert_array_equal(y, expected)


def test_repeated_with_state():
    cfg = RepeatedTransformerLayer.default_config().set(num_layers=3, input_dim=8)
    repeated = cfg.set(layer=MODULES["linen"][0], name="r").instantiate(parent=None)
    params = jax.eval_shape(repeated.initialize_parameters_recursively, KEY)
    _, outputs = jax.eval_shape(
        lambda p: functional(repeated, KEY, p, (X,), is_training=True), params
    )
    updates, stats = outputs.state_updates["layer"]["batch_stats"], params["layer"]["batch_stats"]
    assert jax.tree.map(jnp.shape, updates) == jax.tree.map(jnp.shape, stats)
    assert set(outputs.state_updates) == {"layer"}


@pytest.mark.parametrize(
    ("module", "values", "error", "message"),
    [
        (config_for_class(Linen), {}, ValueError, "example_inputs"),
        (config_for_class(Silent), {}, TypeError, "expected a module"),
    ],
)
def test_what_cannot_be_a_layer(module, values, error, message):
    with refused(error, message):
        ThirdPartyLayer.default_config().set(module=module, name="x").instantiate(parent=None)


def test_examples_of_inputs():
    module = config_for_class(nn.Embed).set(num_embeddings=3, features=2)
    cfg = ThirdPartyLayer.default_config().set(
        module=module, example_inputs=[TensorSpec((1,), jnp.int32)], name="x"
    )
    specs = cfg.instantiate(parent=None).create_parameter_specs_recursively()
    assert specs["params"]["embedding"].shape == (3, 2)
