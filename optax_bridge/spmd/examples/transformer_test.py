"""The attention layer of AXLearn's concepts document."""

import jax
import numpy as np
import pytest

from optax_bridge.spmd.examples.transformer import (
    GroupedQueryAttention,
    MultiheadAttention,
    TransformerAttentionLayer,
)
from optax_bridge.spmd.layer import RMSNorm
from optax_bridge.spmd.module import functional

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)


def made(cfg, **values):
    layer = cfg.set(name="layer", **values).instantiate(parent=None)
    params = jax.jit(layer.initialize_parameters_recursively)(KEY)
    return layer, jax.tree.map(np.asarray, params)


def run(layer, params, **inputs):
    call = jax.jit(lambda p, x: functional(layer, None, p, x, is_training=False)[0])
    return call(params, inputs)


@pytest.mark.parametrize("kv_heads", [None, 2])
def test_attention(kv_heads):
    cfg = GroupedQueryAttention.default_config().set(num_kv_heads=kv_heads, causal=True)
    layer, params = made(cfg, query_dim=8, source_dim=8, num_heads=4)
    bias = np.ones((2, 1, 5, 5), np.float32) * np.arange(5)
    q, k, v = (
        np.reshape(X @ params[name]["weight"], (2, 5, -1, 2))
        for name in ("q_proj", "k_proj", "v_proj")
    )
    assert k.shape[2] == (kv_heads or 4)
    k, v = (np.repeat(x, 4 // x.shape[2], axis=2) for x in (k, v))
    logits = np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(2) + bias
    weights = np.exp(np.where(np.tril(np.ones((5, 5))), logits, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    context = np.einsum("bnts,bsnh->btnh", weights, v).reshape(X.shape)
    y = run(layer, params, query=X, source=X, bias=bias)
    np.testing.assert_allclose(y, context @ params["o_proj"]["weight"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [{"num_heads": 3}, {"num_heads": 4, "num_kv_heads": 3}])
def test_heads_that_do_not_fit(heads):
    with pytest.raises(ValueError, match="multiple of num_heads"):
        made(GroupedQueryAttention.default_config(), query_dim=8, source_dim=8, **heads)


@pytest.mark.parametrize("structure", ["prenorm", "postnorm", "hybridnorm", "midnorm"])
def test_structures(structure):
    attention = MultiheadAttention.default_config().set(num_heads=2)
    cfg = TransformerAttentionLayer.default_config().set(
        target_dim=8, source_dim=3, attention=attention, norm=RMSNorm.default_config()
    )
    cfg.structure = structure
    if structure == "midnorm":
        with pytest.raises(ValueError, match="midnorm"):
            made(cfg)
        return
    layer, params = made(cfg)
    source = np.ones((2, 7, 3), np.float32)

    def norm(x):
        return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-8)

    def attend(x):
        return run(layer.attention, params["attention"], query=x, source=source)

    expected = {
        "prenorm": lambda x: x + attend(norm(x)),
        "postnorm": lambda x: norm(x + attend(x)),
        "hybridnorm": lambda x: x + norm(attend(norm(x))),
    }[structure](X)
    y = run(layer, params, target=X, source=source)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)
