"""The basic layers, and stacks of layers."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.layer import (
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    ParameterSpec,
    RepeatedTransformerLayer,
    RMSNorm,
    StackedTransformerLayer,
    StochasticDepth,
)
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.trees import VDict

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 8))


def made(cfg: Any, **values: Any) -> tuple[Any, Any]:
    """A layer, and parameters of the right shapes."""
    layer = cfg.set(name="layer", **values).instantiate(parent=None)
    numbers = np.random.default_rng(0)

    def value(spec: ParameterSpec) -> np.ndarray:
        return numbers.normal(0.5, 0.5, spec.shape).astype(spec.dtype)

    return layer, jax.tree.map(value, layer.create_parameter_specs_recursively(), is_leaf=_is_spec)


def run(layer: Any, params: Any, *args: Any, is_training: bool = False, **kwargs: Any) -> Any:
    call = functools.partial(functional, layer, KEY, is_training=is_training)
    return jax.jit(lambda params, inputs: call(params, inputs)[0])(params, kwargs or args)


def _is_spec(x: Any) -> bool:
    return isinstance(x, ParameterSpec)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda x: (tuple(x.shape), jnp.dtype(x.dtype)), tree, is_leaf=_is_spec)


class Shifted(Linear):
    def forward(self, x, *, shift=0.0):
        return super().forward(x) + shift


LAYERS = {
    "linear": Linear.default_config().set(input_dim=8, output_dim=3),
    "norm": LayerNorm.default_config().set(input_dim=8),
    "stacked": StackedTransformerLayer.default_config().set(
        num_layers=2, layer=Shifted.default_config().set(input_dim=8, output_dim=8)
    ),
    "repeated": RepeatedTransformerLayer.default_config().set(
        num_layers=2, layer=Shifted.default_config().set(input_dim=8, output_dim=8)
    ),
}


def test_embedding():
    layer, params = made(Embedding.default_config(), num_embeddings=4, dim=8)
    ids = jnp.array([[1, 3]])
    np.testing.assert_array_equal(run(layer, params, ids), params["weight"][ids])


@pytest.mark.parametrize(
    ("cfg", "flax"),
    [(LayerNorm.default_config(), nn.LayerNorm), (RMSNorm.default_config(), nn.RMSNorm)],
    ids=["layer", "rms"],
)
def test_norms_are_those_of_flax(cfg, flax):
    layer, params = made(cfg, input_dim=8, eps=1e-6)
    y = jax.jit(flax(epsilon=1e-6).apply)({"params": params}, X)
    np.testing.assert_allclose(run(layer, params, X), y, rtol=2e-5, atol=1e-6)
    half = run(layer, params, X.astype(jnp.bfloat16))  # computed in float32
    whole = run(layer, params, X.astype(jnp.bfloat16).astype(jnp.float32))
    assert half.dtype == jnp.bfloat16 and (half == whole.astype(jnp.bfloat16)).all()


@pytest.mark.parametrize("cfg", [Dropout.default_config(), StochasticDepth.default_config()])
def test_dropping(cfg):
    ones = jnp.ones((400, 2))
    layer, params = made(cfg, rate=0.25)
    assert run(layer, params, ones) is not None and (run(layer, params, ones) == 1).all()
    y = run(layer, params, ones, is_training=True)
    assert set(np.unique(y)) == {0, np.float32(1 / 0.75)}
    np.testing.assert_allclose(y.mean(), 1, atol=0.1)
    if isinstance(layer, StochasticDepth):
        np.testing.assert_array_equal(y[:, 0], y[:, 1])
        of_batch = made(cfg.clone(), rate=0.25, mode="batch")
        assert len(np.unique(run(*of_batch, ones, is_training=True))) == 1
    with refused(ValueError, "prng_key is None"):
        functional(layer, None, {}, (ones,), is_training=True)
    with refused(ValueError, "rate"):
        made(cfg.clone(), rate=1.0)


def test_repeated_layer_is_the_stacked_one():
    repeated, params = made(LAYERS["repeated"].clone())
    specs = repeated.create_parameter_specs_recursively()
    assert isinstance(params["layer"], VDict) and isinstance(specs["layer"], VDict)
    weight = specs["layer"]["weight"]
    assert weight.fans()["fan_in"] == 8 and weight.factorization.axes == (None, "row", "col")
    stacked, _ = made(LAYERS["stacked"].clone())
    parts = {
        f"layer{i}": jax.tree.map(lambda x, i=i: x[i], dict(params["layer"])) for i in range(2)
    }
    shifted = [run(*each, data=X, shift=2.0) for each in ((repeated, params), (stacked, parts))]
    np.testing.assert_allclose(*shifted, rtol=1e-5, atol=1e-5)


def test_number_of_layers():
    with refused(ValueError, "num_layers is 3"):
        made(LAYERS["stacked"].clone(num_layers=3, layer=[Linear.default_config()]))
