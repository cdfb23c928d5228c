from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from optax_bridge.spmd.config import config_class, config_for_function
from optax_bridge.spmd.layer import (
    BaseLayer,
    BaseModel,
    CompositeTensorStats,
    DefaultInitializer,
    DefaultTensorStats,
    Dropout,
    FactorizationSpec,
    FanAxes,
    Linear,
    ParameterNoise,
    ParameterSpec,
    RematSpec,
    TensorMaxAbs,
    WeightInitializer,
    constant_initializer,
    no_remat,
)
from optax_bridge.spmd.module import functional

KEY = jax.random.key(0)


class Noise(ParameterNoise):
    def apply(self, prng_key, params):
        return jax.tree.map(lambda x: x + 1, params)


class Affine(BaseLayer):
    @config_class
    class Config(BaseLayer.Config):
        dropout: Dropout.Config = Dropout.default_config()

    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        self._add_child("dropout", self.config.dropout)

    def _create_layer_parameter_specs(self):
        return {
            "weight": ParameterSpec((3, 2), mesh_axes=("data", None)),
            "bias": ParameterSpec((2,), jnp.bfloat16, initializer=constant_initializer(3.0)),
        }

    def forward(self, x, *, flag=None, scale=None):
        assert flag in (None, "yes")
        y = self._remat_name(x @ self.parameters["weight"], "product")
        self.add_summary("mean", y.mean())
        self._add_tensor_stats("x", x)
        self._add_tensor_stats("y", y)
        y = self.dropout(jnp.sin(y)) + self.parameters["bias"]
        return y if scale is None else y * scale

    @no_remat
    def any_type(self, x):
        return x

    def arrays(self, x):
        return x

    def stats(self, **kwargs):
        self._add_activation_summary(name="h", **kwargs)


class Outer(BaseLayer):
    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        self._add_child("second", Affine.default_config().set(param_noise=Noise.default_config()))
        self._add_child("first", Linear.default_config().set(input_dim=2, output_dim=2))

    def _create_layer_parameter_specs(self):
        return {"scale": ParameterSpec((2,))}


def made(layer: Any = Outer, **values) -> Any:
    return layer.default_config().set(name="layer", **values).instantiate(parent=None)


def test_specs():
    layer = made(dtype=jnp.float16)
    specs = layer.create_parameter_specs_recursively()
    assert list(specs) == ["scale", "second", "first"]
    assert specs["second"] == {
        "weight": ParameterSpec(
            (3, 2), jnp.float16, PartitionSpec("data", None), fan_axes=FanAxes(-2, -1)
        ),
        "bias": ParameterSpec(
            (2,),
            jnp.bfloat16,
            PartitionSpec(None),
            initializer=constant_initializer(3.0),
        ),
        "dropout": {},
    }
    assert specs["first"]["weight"].factorization == FactorizationSpec(("row", "col"))


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        (ParameterSpec((3, 2), mesh_axes=(None,)), ValueError, "mesh_axes"),
        (ParameterSpec((3,)), NotImplementedError, "weight parameters to have exactly 2 axes"),
    ],
)
def test_specs_that_are_refused(spec, error, message):
    class Bad(BaseLayer):
        def _create_layer_parameter_specs(self):
            return {"weight": spec}

    with pytest.raises(error, match=message):
        made(Bad).create_parameter_specs_recursively()


def test_order_of_keys_fixes_the_numbers():
    layer = made()
    params = layer.initialize_parameters_recursively(KEY)
    key, _ = jax.random.split(KEY)  # the scale's
    _, key = jax.random.split(key)
    weight = made(Affine).initialize_parameters_recursively(key)["weight"]
    np.testing.assert_array_equal(params["second"]["weight"], weight)
    assert params["second"]["bias"].dtype == jnp.bfloat16 and params["second"]["bias"][0] == 3
    np.testing.assert_array_equal(params["scale"], [1, 1])
    np.testing.assert_array_equal(params["first"]["bias"], [0, 0])


def test_prebuilt_parameters():
    layer = made()
    specs = layer.create_parameter_specs_recursively()
    whole = layer.initialize_parameters_recursively(KEY)
    prebuilt = jax.tree.map(lambda _: None, whole)
    prebuilt["second"]["weight"] = specs["second"]["weight"]
    rest = layer.initialize_parameters_recursively(KEY, prebuilt=prebuilt)
    assert rest["second"]["weight"] is None
    np.testing.assert_array_equal(rest["first"]["weight"], whole["first"]["weight"])


def test_what_is_inherited():
    ones = DefaultInitializer.default_config().set(
        init_by_param_name={".*weight": WeightInitializer.default_config().set(fan=None, scale=0.0)}
    )
    layer = made(dtype=jnp.bfloat16, param_init=ones)
    params = layer.initialize_parameters_recursively(KEY)
    assert params["first"]["weight"].dtype == jnp.bfloat16
    assert not params["first"]["weight"].any() and not params["second"]["weight"].any()
    assert made().first.dtype() == jnp.float32


def test_noise():
    layer = made(param_noise=Noise.default_config())
    params = layer.initialize_parameters_recursively(KEY)
    noisy = layer.apply_parameter_noise_recursively(KEY, params)
    np.testing.assert_array_equal(noisy["first"]["bias"], [1, 1])
    np.testing.assert_array_equal(noisy["second"]["bias"], [5, 5])
    np.testing.assert_array_equal(params["second"]["bias"], [3, 3])


def _loss(layer, params, is_training=True, **kwargs):
    def loss(params, x):
        inputs = {"x": x, "flag": "yes", "scale": jnp.full((2,), 2.0)}
        y, outputs = functional(layer, KEY, params, inputs, is_training=is_training, **kwargs)
        return jnp.sum(y**2), outputs

    return jax.value_and_grad(loss, has_aux=True), params, jnp.ones((4, 3))


@pytest.mark.parametrize(
    "policy",
    [
        None,
        config_for_function(jax.checkpoint_policies.save_only_these_names).set(
            names_which_can_be_saved=["Affine.product"]
        ),
    ],
)
def test_remat_leaves_the_numbers_as_they_are(policy):
    dropout = Dropout.default_config().set(rate=0.5)
    plain = made(Affine, dropout=dropout)
    remat = made(Affine, dropout=dropout, remat_spec=RematSpec(policy=policy))
    params = jax.jit(plain.initialize_parameters_recursively)(KEY)
    fn, *args = _loss(plain, params)
    again, *_ = _loss(remat, params)
    (value, outputs), grads = jax.jit(fn)(*args)
    (value2, outputs2), grads2 = jax.jit(again)(*args)
    np.testing.assert_allclose(value2, value, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), grads2, grads)
    assert outputs2.summaries.keys() == outputs.summaries.keys()
    text = str(jax.make_jaxpr(again)(*args))
    assert ("remat" in text or "checkpoint" in text) and "checkpoint[" not in str(
        jax.make_jaxpr(_loss(remat, params, is_training=False)[0])(*args)
    )


def test_remat_takes_arrays_only():
    layer = made(Affine, remat_spec=RematSpec())
    call = {"module": layer, "prng_key": None, "state": {}, "is_training": True}
    assert functional(inputs=("x",), method="any_type", **call)[0] == "x"
    with pytest.raises(ValueError, match=r"no_remat.*args\[0\]"):
        functional(inputs=("x",), method="arrays", **call)


@pytest.mark.parametrize("inline", [True, False])
def test_tensor_stats(inline):
    stats = DefaultTensorStats.default_config()
    stats = stats if inline else CompositeTensorStats.default_config()
    if not inline:
        stats.tensor_stats = {"max": TensorMaxAbs.default_config()}
    layer = made(Affine, tensor_stats=stats)
    params = layer.initialize_parameters_recursively(KEY)
    _, outputs = functional(layer, None, params, {"x": jnp.ones((1, 3))}, is_training=False)
    of_x = outputs.summaries["tensor_stats"]["x"]
    assert of_x == ({"rms_norm": 1, "max_abs": 1} if inline else {"max": {"max_abs": 1}})
    assert set(outputs.summaries["tensor_stats"]) == {"x", "y"}


def test_activation_summaries():
    x = jnp.arange(12.0).reshape(2, 3, 2)
    paddings = jnp.array([[0, 0, 1], [0, 1, 1]])
    layer = made(Affine)
    call = {"prng_key": None, "state": {}, "is_training": True, "method": "stats"}

    def summaries(**inputs):
        return functional(layer, inputs=inputs, **call)[1].summaries

    whole = summaries(activations=x)
    assert whole["activations/h_mean"].mean == 5.5 and whole["activations/h_mean"].weight == 2
    norms = np.sqrt(np.mean(np.square(np.asarray(x)).reshape(2, 6), axis=1))
    np.testing.assert_allclose(whole["activations/h_norm"].mean, norms.mean(), rtol=1e-6)
    padded = summaries(activations=x, activation_paddings=paddings)
    frames = np.asarray(x)[[0, 0, 1], [0, 1, 0]]
    assert padded["activations/h_mean"].weight == 3
    np.testing.assert_allclose(padded["activations/h_mean"].mean, frames.mean(), rtol=1e-6)
    norm = np.sqrt(np.square(frames).mean(axis=1)).mean()
    np.testing.assert_allclose(padded["activations/h_norm"].mean, norm, rtol=1e-6)
    empty = summaries(activations=x, activation_paddings=jnp.ones((2, 3)))
    assert (empty["activations/h_mean"].mean, empty["activations/h_mean"].weight) == (0, 0)


def test_methods_of_base_layers_enter_no_context():
    class Model(BaseModel):
        def forward(self, input_batch):
            return self.dtype(), {"state": self.state}

    model = made(Model)
    assert set(model._methods_to_wrap_for_auto_child_context()) == {"forward", "predict"}
    outputs, _ = functional(model, None, {"a": 1}, ({},), is_training=False)
    assert outputs == (jnp.float32, {"state": {"a": 1}})
    with pytest.raises(NotImplementedError, match="predicts"):
        functional(model, None, {}, ({},), method="predict", is_training=False)
