import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.spmd.layer import (
    PARAM_REGEXP_BIAS,
    PARAM_REGEXP_SCALE,
    PARAM_REGEXP_WEIGHT,
    ConstantInitializer,
    DefaultInitializer,
    FactorizationSpec,
    FanAxes,
    GaussianInitializer,
    ParameterSpec,
    PerGroupInitializer,
    WeightInitializer,
    constant_initializer,
    maybe_prepend_axis,
)

KEY = jax.random.key(0)
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


def test_fans():
    spec = ParameterSpec((3, 4, 5), fan_axes=FanAxes(1, 2, 0))
    assert spec.fans() == {"fan_in": 4, "fan_out": 5, "fan_avg": 4.5}
    spec = ParameterSpec((3, 4, 5), fan_axes=FanAxes(1, 2))
    assert spec.fans() == {"fan_in": 12, "fan_out": 15, "fan_avg": 13.5}
    with pytest.raises(ValueError, match="fan_axes"):
        ParameterSpec((3,)).fans()


def test_stacked_spec():
    spec = ParameterSpec(
        (4, 5),
        mesh_axes=("a", None),
        factorization=FactorizationSpec(("row", "col")),
        fan_axes=AXES,
    ).stacked(3)
    assert spec.shape == (3, 4, 5) and tuple(spec.mesh_axes or ()) == (None, "a", None)
    assert spec.factorization is not None and spec.factorization.axes == (None, "row", "col")
    assert spec.fans()["fan_in"] == 4
    with pytest.raises(ValueError, match="'rows'"):
        FactorizationSpec(("rows",))


@pytest.mark.parametrize(
    ("fan", "distribution"),
    [("fan_in", "uniform"), ("fan_out", "normal"), ("fan_avg", "truncated_normal")],
)
def test_weights_are_scaled_by_fans(fan, distribution):
    cfg = WeightInitializer.default_config().set(fan=fan, distribution=distribution, scale=2.0)
    expected = jax.nn.initializers.variance_scaling(2.0, fan, distribution)(KEY, (4, 8))
    np.testing.assert_array_equal(values(cfg.instantiate()), expected)


@pytest.mark.parametrize("distribution", ["uniform", "normal", "truncated_normal"])
def test_weights_without_fans(distribution):
    cfg = WeightInitializer.default_config().set(fan=None, scale=0.1, distribution=distribution)
    x = values(cfg.instantiate(), shape=(1000,), axes=None)
    expected = 0.1 / np.sqrt(3) if distribution == "uniform" else 0.1
    np.testing.assert_allclose(np.std(x), expected, rtol=0.15)
    assert np.abs(x).max() < {"uniform": 0.1, "normal": 1.0, "truncated_normal": 0.3}[distribution]


def test_weights_need_axes():
    with pytest.raises(NotImplementedError, match="fan axes"):
        values(WeightInitializer.default_config().instantiate(), axes=None)
    with pytest.raises(ValueError, match="distribution"):
        cfg = WeightInitializer.default_config().set(fan=None, distribution="cauchy")
        values(cfg.instantiate())


def test_default_initializer():
    initializer = DefaultInitializer.default_config().instantiate()
    names = [PARAM_REGEXP_BIAS, PARAM_REGEXP_SCALE, PARAM_REGEXP_WEIGHT]
    assert list(initializer.config.init_by_param_name) == names
    assert not values(initializer, "qkv_bias").any() and values(initializer, "scale").all()
    with pytest.raises(NotImplementedError, match="Unsupported parameter name"):
        values(initializer, "kernel")
    assert "ConstantInitializer(value=0.0)" in initializer.debug_string()
    assert initializer.debug_string("scale") == "ConstantInitializer(value=1.0)"


def test_first_rule_wins():
    rules = {".*in_weight": ConstantInitializer.default_config().set(value=3.0)}
    initializer = DefaultInitializer.default_config().set(init_by_param_name=rules).instantiate()
    assert (values(initializer, "in_weight") == 3).all()
    assert next(iter(initializer.config.init_by_param_name)) == ".*in_weight"


def test_constants_and_normals():
    assert (values(constant_initializer(2.0)) == 2).all()
    gaussian = GaussianInitializer.default_config().set(std=0.1, mean=3.0).instantiate()
    expected = 3 + 0.1 * jax.random.normal(KEY, (4, 8))
    np.testing.assert_array_equal(values(gaussian), expected)


def test_groups():
    inner = GaussianInitializer.default_config()
    cfg = PerGroupInitializer.default_config().set(initializer=inner)
    np.testing.assert_array_equal(values(cfg.instantiate()), values(inner.instantiate()))
    grouped = values(cfg.set(num_groups=2).instantiate())
    for i, key in enumerate(jax.random.split(KEY, 2)):
        part = values(inner.instantiate(), shape=(4, 4), key=key)
        np.testing.assert_array_equal(grouped[:, 4 * i : 4 * i + 4], part)
    with pytest.raises(ValueError, match="divisible"):
        values(cfg.set(num_groups=3).instantiate())
