"""Specs, first values, outputs and gradients of layers, beside the outcome that is in a file.

`RECORD=1 python -m pytest optax_bridge/spmd/layer/outcomes_test.py` writes it again.
"""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.optimizers.axis_roles import Role, with_roles
from optax_bridge.recorded_test import assert_recorded
from optax_bridge.spmd.config import config_for_class, config_for_function
from optax_bridge.spmd.layer import (
    BaseLayer,
    CompositeTensorStats,
    DefaultInitializer,
    DefaultTensorStats,
    Dropout,
    Embedding,
    FanAxes,
    GaussianInitializer,
    LayerNorm,
    Linear,
    ParameterNoise,
    ParameterSpec,
    PerGroupInitializer,
    RematSpec,
    RepeatedTransformerLayer,
    RMSNorm,
    StackedTransformerLayer,
    StochasticDepth,
    TensorMaxAbs,
    TensorRMSNorm,
    ThirdPartyLayer,
    WeightInitializer,
    constant_initializer,
)
from optax_bridge.spmd.layer.third_party_test import Linen, Nnx
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.optimizers.outcomes_test import shown
from optax_bridge.spmd.trees import flatten_items

KEY = jax.random.PRNGKey(0)
X = jax.random.normal(jax.random.PRNGKey(1), (3, 4, 4))
PADDINGS = jnp.array([[0, 0, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]])


class Noise(ParameterNoise):
    """Other noise for each parameter of a layer, and a key that shows."""

    def apply(self, prng_key, params):
        return jax.tree.map(lambda x: x + jax.random.normal(prng_key, x.shape), params)


class Rich(Linear):
    """Summaries, statistics, a state update, an output and random numbers."""

    def __init__(self, cfg, *, parent):
        super().__init__(cfg, parent=parent)
        self._add_child("drop", Dropout.default_config().set(rate=0.5))

    def _create_layer_parameter_specs(self):
        mean = ParameterSpec((), initializer=constant_initializer(2.0), weight_decay_scale=0.0)
        return {**super()._create_layer_parameter_specs(), "mean": mean}

    def forward(self, x, *, shift=0.0):
        y = self._remat_name(super().forward(x), "product")
        self.add_summary("mean", jnp.mean(y))
        self.add_state_update("mean", jnp.mean(x))
        self.add_module_output("last", y[..., -1])
        self._add_tensor_stats("y", y)
        self._add_activation_summary(name="h", activations=y)
        self._add_activation_summary(name="p", activations=y, activation_paddings=PADDINGS)
        return self.drop(y) + shift + self.parameters["mean"]


class Weights(BaseLayer):
    """Weights that initializers make, each by its own rule."""

    def _create_layer_parameter_specs(self):
        axes = FanAxes(in_axis=(0, 1), out_axis=-1)
        inits = {
            f"{fan}, {distribution}": WeightInitializer.default_config().set(
                fan=fan, distribution=distribution, scale=0.3
            )
            for fan in ("fan_in", "fan_out", "fan_avg", None)
            for distribution in ("uniform", "normal", "truncated_normal")
        }
        inits["gaussian"] = GaussianInitializer.default_config().set(mean=2.0, std=0.5)
        inits["groups"] = PerGroupInitializer.default_config().set(
            initializer=WeightInitializer.default_config(), num_groups=2
        )
        return {
            name: ParameterSpec((2, 3, 4), initializer=init, fan_axes=axes)
            for name, init in inits.items()
        } | {"by name": ParameterSpec((2,)), "scale": ParameterSpec((2,))}

    def forward(self, x):
        return x * sum(jnp.sum(jnp.square(w)) for w in jax.tree.leaves(self.parameters))


class Roles(nn.Module):
    """A weight whose axes have roles, and names that rules change."""

    @nn.compact
    def __call__(self, x, training):
        names, lecun = ("in", "out"), nn.initializers.lecun_normal()
        init = with_roles(lecun, names, (Role.ROW, Role.COLUMN))
        w = self.param("w", init, (4, 4))
        return jnp.where(training, 2.0, 1.0) * (x @ w)


RICH = Rich.default_config().set(input_dim=4, output_dim=4, param_partition_spec=("data", "model"))
NOISY = RICH.clone(param_noise=Noise.default_config())
LAYERS: dict[str, Any] = {
    "linear": Linear.default_config().set(
        input_dim=4, output_dim=3, param_partition_spec=("data", "model"), dtype=jnp.bfloat16
    ),
    "linear, no bias": Linear.default_config().set(
        input_dim=4, output_dim=3, bias=False, param_partition_spec=None
    ),
    "rms": RMSNorm.default_config().set(input_dim=4, eps=0.5),
    "norm": LayerNorm.default_config().set(input_dim=4),
    "dropout": Dropout.default_config().set(rate=0.25),
    "depth": StochasticDepth.default_config().set(rate=0.25),
    "depth, whole batch": StochasticDepth.default_config().set(rate=0.02, mode="batch"),
    "rich": NOISY.clone(tensor_stats=DefaultTensorStats.default_config()),
    "rich, remat": NOISY.clone(
        tensor_stats=CompositeTensorStats.default_config().set(
            tensor_stats={
                "a": TensorRMSNorm.default_config(), "b": TensorMaxAbs.default_config()
            }
        ),
        remat_spec=RematSpec(prevent_cse=False),
    ),
    "stacked": StackedTransformerLayer.default_config().set(
        num_layers=2, layer=[RICH, Linear.default_config().set(output_dim=4)], input_dim=4,
        param_noise=Noise.default_config(),
    ),
    "repeated": RepeatedTransformerLayer.default_config().set(
        num_layers=3, layer=NOISY, input_dim=4, unroll=2, param_noise=Noise.default_config()
    ),
    "weights": Weights.default_config().set(
        param_init=DefaultInitializer.default_config().set(
            init_by_param_name={"by.*": GaussianInitializer.default_config()}
        )
    ),
    "linen": ThirdPartyLayer.default_config().set(
        module=config_for_class(Linen), example_inputs=[(1, 4)],
        axis_rules=[("in", None), ("out", "model"), ("out", "in")],
    ),
    "nnx": ThirdPartyLayer.default_config().set(
        module=config_for_class(Nnx).set(dim=4),
        axis_rules=[("in", "data"), ("out", None), ("in", "model")],
    ),
    "roles": ThirdPartyLayer.default_config().set(module=Roles(), input_dim=4),
    "a function": ThirdPartyLayer.default_config().set(
        module=config_for_function(lambda: jnp.cos)
    ),
}  # fmt: skip


def described(path: str, spec: ParameterSpec) -> str:
    roles = spec.factorization and spec.factorization.axes
    fans = spec.fan_axes and (*spec.fan_axes.canonicalize(), *spec.fans().values())
    kind = f"{jnp.dtype(spec.dtype)}{list(spec.shape)} {tuple(spec.mesh_axes or ())}"
    return f"spec {path} {kind} roles {roles}, fans {fans}, decay {spec.weight_decay_scale}"


@pytest.mark.parametrize("name", LAYERS)
def test_outcome(name):
    cfg = LAYERS[name].clone(name="layer")
    layer = cfg.instantiate(parent=None)
    specs = layer.create_parameter_specs_recursively()
    params = jax.jit(layer.initialize_parameters_recursively)(KEY)
    assert jax.tree.structure(params) == jax.tree.structure(specs)

    @jax.jit
    def call(params: Any) -> Any:
        def loss(params: Any) -> Any:
            out = functional(layer, KEY, params, (X,), is_training=True, drop_output_collections=())
            return jnp.sum(jnp.square(out[0]) / 2), out

        evaluated, _ = functional(layer, None, params, (X,), is_training=False)
        return jax.grad(loss, has_aux=True)(params), evaluated

    (grads, (trained, outputs)), evaluated = call(params)
    lines = [described(path, spec) for path, spec in flatten_items(specs)]
    noisy = layer.apply_parameter_noise_recursively(KEY, params) if "Noise" in str(cfg) else {}
    for kind, tree in {
        "value": params,
        "noisy": noisy,
        "gradient": grads,
        "out": {"train": trained, "eval": evaluated},
        **{kind: getattr(outputs, kind) for kind in ("summaries", "state_updates")},
        "module_outputs": outputs.module_outputs,
    }.items():
        lines += shown(f"{kind} ", [tree])
    assert_recorded(Path(__file__).with_name("testdata") / "outcomes.json", name, lines)


def test_prebuilt_parameters_are_left_out_and_the_others_are_as_without():
    layer = LAYERS["repeated"].clone(name="layer").instantiate(parent=None)
    params = layer.initialize_parameters_recursively(KEY)
    for built in ("weight", "bias", "mean"):
        prebuilt = jax.tree.map(lambda x: None, params)
        prebuilt["layer"][built] = 1
        rest = layer.initialize_parameters_recursively(KEY, prebuilt=prebuilt)["layer"]
        assert rest[built] is None
        for name in {*params["layer"]} - {built, "drop"}:
            np.testing.assert_array_equal(rest[name], params["layer"][name])
    embedding = Embedding.default_config().set(num_embeddings=5, dim=2, name="e")
    spec = embedding.instantiate(parent=None).create_parameter_specs_recursively()["weight"]
    assert described("weight", spec).endswith(
        "roles ('row', 'col'), fans ((-2,), (-1,), (), 5.0, 2.0, 3.5), decay None"
    )
