"""States begin as steps leave them, sharded alike on explicit axes; directions are optimizers."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import optax_bridge
from optax_bridge.correspondence import ENTRIES
from optax_bridge.exact.transformation import take_step

SHAPES = {"kernel": (16, 32), "scanned": (4, 16, 32), "bias": (8,)}
SPECS = {"kernel": ("a", "b"), "scanned": (None, "b", "a"), "bias": ("b",)}


def made(name: str) -> optax.GradientTransformation:
    """An optimizer by the name of its entry."""
    if name == "weight_norm":
        return optax_bridge.weight_norm(optax_bridge.adam(0.1))
    if name == "multi_optimizer":
        return optax_bridge.multi_optimizer(("*/kernel", optax_bridge.adam(0.1)))
    return getattr(optax_bridge, name)(0.1)


def adafactor(**settings: Any) -> Callable[[], optax.GradientTransformation]:
    return lambda: optax_bridge.adafactor(0.1, min_dim_size_to_factor=8, **settings)


RULES = {"scanned": ("batch", "row", "column"), "kernel": ("row", "column")}
OPTIMIZERS = {
    **{name: (lambda name=name: made(name)) for name in ENTRIES},
    "adafactor-factored": adafactor(),
    "adafactor-momentum": adafactor(momentum=0.9, dtype_momentum=jnp.bfloat16),
    "adafactor-rules": adafactor(path_rules=RULES),
    "adafactor-group": lambda: optax_bridge.multi_optimizer(("*", adafactor()())),
}


COMPILED = ("adam", "adafactor-group")


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_keeps_the_types_of_a_state_on_explicit_axes(name: str):
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        params = {
            key: jax.device_put(jnp.ones(shape), NamedSharding(mesh, PartitionSpec(*SPECS[key])))
            for key, shape in SHAPES.items()
        }
        tx = OPTIMIZERS[name]()
        state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
        step: Any = jax.jit(lambda state: state.apply_gradients(grads=params))
        types = [jax.typeof(leaf) for leaf in jax.tree.leaves(state)]
        assert jax.make_jaxpr(step)(state).out_avals == types
        jax.eval_shape(lambda s: jax.lax.scan(lambda s, _: (step(s), None), s, None, 2), state)
        if name in COMPILED:  # equal types are one program
            step(step(state))
            assert step._cache_size() == 1


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_state_is_made_of_shapes_as_of_arrays(name: str):
    tx = OPTIMIZERS[name]()
    params = {key: jnp.ones(shape, jnp.bfloat16) for key, shape in SHAPES.items()}
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    kinds = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
        for state in (tx.init(params), tx.init(shapes), jax.eval_shape(tx.init, params))
    ]
    assert kinds[0] == kinds[1] == kinds[2]


@pytest.mark.parametrize(
    "name", [name for name in ENTRIES if hasattr(optax_bridge, f"scale_by_{name}")]
)
def test_the_direction_and_a_learning_rate_are_the_optimizer(name: str):
    piece, whole = getattr(optax_bridge, f"scale_by_{name}"), getattr(optax_bridge, name)
    parameters = inspect.signature(piece).parameters.items()
    settings = {
        key: isinstance(parameter.default, bool) or 0.3 + number / 8
        for number, (key, parameter) in enumerate(parameters)
    }
    for names in ({}, settings):
        transformations: Any = (
            optax.chain(piece(*names.values()), optax.scale_by_learning_rate(0.1)),
            whole(0.1, **names),
        )
        start: Any = {"kernel": jnp.arange(6.0).reshape(3, 2) / 5 + 0.1, "bias": jnp.ones(2)}
        trained = []
        for tx in transformations:
            params, state = start, tx.init(start)
            for step in range(3):
                grads = jax.tree.map(lambda leaf, step=step: jnp.cos(leaf + step), start)
                params, state = take_step(tx, grads, state, params)
            trained.append(params)
        # lr * (m / d) against (lr * m) / d: two ULP a step at the scale of 1
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=6e-7), *trained)
