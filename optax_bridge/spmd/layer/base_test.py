"""Layers, their parameters' specs and first values."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.config import config_class, config_for_function
from optax_bridge.spmd.layer import (
    PARAM_REGEXP_BIAS,
    PARAM_REGEXP_SCALE,
    PARAM_REGEXP_WEIGHT,
    BaseLayer,
    BaseModel,
    ConstantInitializer,
    DefaultInitializer,
    Dropout,
    FactorizationSpec,
    FanAxes,
    GaussianInitializer,
    Linear,
    ParameterNoise,
    ParameterSpec,
    PerGroupInitializer,
    RematSpec,
    WeightInitializer,
    constant_initializer,
    maybe_prepend_axis,
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

    with refused(error, message):
        made(Bad).create_parameter_specs_recursively()


def test_prebuilt_parameters():
    layer = made()
    specs = layer.create_parameter_specs_recursively()
    whole = layer.initialize_parameters_recursively(KEY)
    prebuilt = jax.tree.map(lambda _: None, whole)
    prebuilt["second"]["weight"] = specs["second"]["weight"]
    prebuilt["scale"] = specs["scale"]
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
    with refused(ValueError, r"no_remat.*args\[0\]"):
        functional(inputs=("x",), method="arrays", **call)


def test_activation_summaries_of_padding_alone():
    x = jnp.arange(12.0).reshape(2, 3, 2)
    layer = made(Affine)
    call = {"prng_key": None, "state": {}, "is_training": True, "method": "stats"}

    def summaries(**inputs):
        return functional(layer, inputs=inputs, **call)[1].summaries

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
    with refused(NotImplementedError, "predicts"):
        functional(model, None, {}, ({},), method="predict", is_training=False)


AXES = FanAxes(in_axis=-2, out_axis=-1)


def values(initializer, name="weight", shape=(4, 8), axes: FanAxes | None = AXES, key=KEY):
    return initializer.initialize(name, prng_key=key, shape=shape, dtype=jnp.float32, axes=axes)


def test_fan_axes():
    assert FanAxes((1, 0), 2) == FanAxes((0, 1), (2,), ())
    assert FanAxes(0, 1) != FanAxes(1, 0) and hash(FanAxes(0, 1)) == hash(FanAxes((0,), (1,)))
    kinds = FanAxes.AxisType
    assert AXES.prepend_axis(axis_type=kinds.BATCH_AXIS) == FanAxes(-2, -1, 0)
    assert FanAxes(0, 1).prepend_axis(axis_type=kinds.IN_AXIS) == FanAxes((0, 1), 2)
    assert AXES.append_axis(axis_type=kinds.OUT_AXIS) == FanAxes(-3, (-2, -1))
    assert FanAxes(0, 1).append_axis(axis_type=kinds.NONE) == FanAxes(0, 1)
    assert maybe_prepend_axis(None, axis_type=kinds.NONE) is None


def test_fans_that_are_not_known():
    with refused(ValueError, "fan_axes"):
        ParameterSpec((3,)).fans()


def test_roles_are_row_and_col():
    with refused(ValueError, "'rows'"):
        FactorizationSpec(("rows",))


def test_weights_need_axes():
    with refused(NotImplementedError, "fan axes"):
        values(WeightInitializer.default_config().instantiate(), axes=None)
    with refused(ValueError, "distribution"):
        cfg = WeightInitializer.default_config().set(fan=None, distribution="cauchy")
        values(cfg.instantiate())


def test_default_initializer():
    initializer = DefaultInitializer.default_config().instantiate()
    names = [PARAM_REGEXP_BIAS, PARAM_REGEXP_SCALE, PARAM_REGEXP_WEIGHT]
    assert list(initializer.config.init_by_param_name) == names
    assert not values(initializer, "qkv_bias").any() and values(initializer, "scale").all()
    with refused(NotImplementedError, "Unsupported parameter name"):
        values(initializer, "kernel")
    assert "ConstantInitializer(value=0.0)" in initializer.debug_string()
    assert initializer.debug_string("scale") == "ConstantInitializer(value=1.0)"


def test_first_rule_wins():
    three = ConstantInitializer.default_config().set(value=3.0)
    rules = {"in": three.clone(value=5.0), ".*in_weight": three}
    initializer = DefaultInitializer.default_config().set(init_by_param_name=rules).instantiate()
    assert (values(initializer, "in_weight") == 3).all()
    assert next(iter(initializer.config.init_by_param_name)) == "in"


def test_groups():
    inner = GaussianInitializer.default_config()
    cfg = PerGroupInitializer.default_config().set(initializer=inner)
    np.testing.assert_array_equal(values(cfg.instantiate()), values(inner.instantiate()))
    with refused(ValueError, "divisible"):
        values(cfg.set(num_groups=3).instantiate())
