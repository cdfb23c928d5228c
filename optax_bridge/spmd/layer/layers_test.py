"""The layers of a transformer."""

import copy
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.spmd.layer import (
    Dropout,
    Embedding,
    GroupedQueryAttention,
    LayerNorm,
    Linear,
    MultiheadAttention,
    ParameterSpec,
    RepeatedTransformerLayer,
    RMSNorm,
    StackedTransformerLayer,
    StochasticDepth,
    TransformerAttentionLayer,
    TransformerFeedForwardLayer,
    TransformerLayer,
    activation_fn,
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


LAYERS = {
    "linear": Linear.default_config().set(input_dim=8, output_dim=3),
    "norm": LayerNorm.default_config().set(input_dim=8),
    "attention": TransformerAttentionLayer.default_config().set(
        target_dim=8,
        source_dim=8,
        attention=GroupedQueryAttention.default_config().set(num_heads=4, num_kv_heads=2),
        structure="hybridnorm",
    ),
    "feed forward": TransformerFeedForwardLayer.default_config().set(
        input_dim=8, activation=("nn.silu", "linear"), structure="postnorm"
    ),
}


def transformer(**values: Any) -> Any:
    cfg = TransformerLayer.default_config().set(input_dim=8, **values)
    cfg.self_attention.attention.num_heads = 2
    return cfg


@pytest.mark.parametrize("name", LAYERS)
def test_specs_describe_the_parameters(name):
    layer, params = made(LAYERS[name].clone())
    initialized = jax.eval_shape(layer.initialize_parameters_recursively, KEY)
    assert _shapes(initialized) == _shapes(layer.create_parameter_specs_recursively())
    y = jax.eval_shape(lambda: run(layer, params, X))
    assert y.shape == (2, 5, 3 if name == "linear" else 8)
    assert copy.deepcopy(layer).config == layer.config


def test_linear_and_embedding():
    layer, params = made(Linear.default_config(), input_dim=8, output_dim=3)
    expected = X @ params["weight"] + params["bias"]
    np.testing.assert_allclose(run(layer, params, X), expected, rtol=1e-5, atol=1e-6)
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
    assert run(layer, params, X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


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
    with pytest.raises(ValueError, match="prng_key is None"):
        functional(layer, None, {}, (ones,), is_training=True)
    with pytest.raises(ValueError, match="rate"):
        made(cfg.clone(), rate=1.0)


def test_attention_is_that_of_jax():
    cfg = GroupedQueryAttention.default_config()
    dims = {"query_dim": 8, "key_dim": 8, "value_dim": 8, "num_heads": 4, "num_kv_heads": 2}
    layer, params = made(cfg, **dims, causal=True)
    bias = jax.random.normal(KEY, (2, 5, 5))

    @jax.jit
    def attend(params):
        def heads(name):
            return jnp.einsum("btd,dnh->btnh", X, params[name]["weight"]) + params[name]["bias"]

        q, k, v = (heads(name) for name in ("q_proj", "k_proj", "v_proj"))
        context = jax.nn.dot_product_attention(q, k, v, bias[:, None], is_causal=True)
        output = params["o_proj"]
        return jnp.einsum("btnh,dnh->btd", context, output["weight"]) + output["bias"]

    expected = attend(params)
    y = run(layer, params, query=X, attention_logit_biases=bias)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_heads": 3}, "hidden_dim 8 is not divisible"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads"),
    ],
)
def test_heads_that_do_not_fit(values, message):
    dims = {"query_dim": 8, "key_dim": 8, "value_dim": 8}
    with pytest.raises(ValueError, match=message):
        made(GroupedQueryAttention.default_config(), **dims, **values)


@pytest.mark.parametrize("structure", ["prenorm", "postnorm", "hybridnorm", "midnorm"])
def test_structures(structure):
    cfg = LAYERS["feed forward"].clone(structure=structure, norm=RMSNorm.default_config())
    if structure == "midnorm":
        with pytest.raises(ValueError, match="midnorm"):
            made(cfg)
        return
    layer, params = made(cfg)

    x = np.asarray(X)

    def norm(x, name="norm"):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-8) * params[name]["scale"]

    def linear(x, name):
        return x @ params[name]["weight"] + params[name]["bias"]

    def inner(x):
        gate = linear(x, "linear1_0")
        return linear(gate / (1 + np.exp(-gate)) * linear(x, "linear1_1"), "linear2")

    expected = {
        "prenorm": lambda: x + inner(norm(x)),
        "postnorm": lambda: norm(x + inner(x)),
        "hybridnorm": lambda: x + norm(inner(norm(x, "prenorm")), "postnorm"),
    }[structure]()
    np.testing.assert_allclose(run(layer, params, X), expected, rtol=1e-4, atol=1e-4)


def test_activations():
    assert activation_fn("nn.relu") is jax.nn.relu
    with pytest.raises(ValueError, match=r"did you mean: nn\.relu"):
        activation_fn("nn.relux")


def test_attention_over_another_sequence():
    attention = MultiheadAttention.default_config().set(num_heads=2)
    cfg = TransformerAttentionLayer.default_config().set(source_dim=3, attention=attention)
    layer, params = made(cfg, target_dim=8)
    y = jax.eval_shape(lambda: run(layer, params, target=X, source=jnp.ones((2, 7, 3))))
    assert y.shape == X.shape


def test_repeated_layer_is_the_stacked_one():
    cfg = RepeatedTransformerLayer.default_config().set(num_layers=2, layer=transformer())
    repeated, params = made(cfg)
    specs = repeated.create_parameter_specs_recursively()
    initialized = jax.eval_shape(repeated.initialize_parameters_recursively, KEY)
    assert isinstance(initialized["layer"], VDict) and isinstance(specs["layer"], VDict)
    assert _shapes(initialized) == _shapes(specs)
    weight = specs["layer"]["feed_forward"]["linear1"]["weight"]
    assert weight.fans()["fan_in"] == 8 and weight.factorization.axes == (None, "row", "col")
    stacked, _ = made(StackedTransformerLayer.default_config(), num_layers=2, layer=transformer())
    parts = {
        f"layer{i}": jax.tree.map(lambda x, i=i: x[i], dict(params["layer"])) for i in range(2)
    }
    np.testing.assert_allclose(
        run(repeated, params, X), run(stacked, parts, X), rtol=1e-5, atol=1e-5
    )


def test_number_of_layers():
    with pytest.raises(ValueError, match="num_layers is 3"):
        made(StackedTransformerLayer.default_config(), num_layers=3, layer=[transformer()])
