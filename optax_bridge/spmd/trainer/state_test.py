"""A step of the trainer as a function: its keys, its scalars, what makes it finite."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from optax_bridge.spmd.layer import ParameterSpec
from optax_bridge.spmd.summaries import WeightedSummary
from optax_bridge.spmd.trainer.state import (
    is_finite,
    opt_params,
    read_scalars,
    split_key,
    with_scalars,
)


@pytest.mark.parametrize("partitionable", [False, True])
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_a_key_is_split_as_jax_splits_it(partitionable: bool, implementation: str):
    with jax.threefry_partitionable(partitionable), jax.default_prng_impl(implementation):
        for seed in (0, 7, 2**31 - 1):
            key = jax.random.PRNGKey(seed)
            for count in (1, 4, 5):
                keys = jax.jit(split_key, static_argnums=1)(key, count)
                np.testing.assert_array_equal(keys, jax.random.split(key, count))


def test_a_parameters_own_scale_of_decay_is_the_optimizers():
    specs = {"w": ParameterSpec(shape=(1,), weight_decay_scale=0.5)}
    assert opt_params({"w": jnp.ones(1)}, specs)["w"].weight_decay_scale == 0.5


def test_a_step_is_finite_if_its_loss_and_its_gradients_are():
    for loss, norm in itertools.product((1.0, np.inf), repeat=2):
        outputs = {"loss": loss, "summaries": {"learner": {"gradient_norm": norm}}}
        assert is_finite(outputs) == np.isfinite(loss + norm)


def test_scalars_are_read_at_once_and_as_they_were():
    summaries = {
        "mean": WeightedSummary(jnp.float32(0.1), jnp.int32(2**24 + 1)),
        "half": jnp.bfloat16(0.3),
        "is_odd": jnp.bool_(True),
        "norms": jnp.arange(3.0),
        "layers": 4,
    }
    outputs = {"summaries": summaries, "loss": jnp.float32(jnp.inf), "finite": jnp.bool_(False)}
    with jax.set_mesh(jax.make_mesh((1,), ("data",))):
        ready = jax.jit(with_scalars)({**outputs, "aux": {"x": jnp.float32(7)}})
    read = read_scalars(ready)
    assert ready["scalars"].tolist() == [0, np.inf, 1, np.float32(0.1)]
    expected = jax.tree.map(np.asarray, outputs)
    assert jax.tree.structure(read) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, read, expected)
    del read["summaries"]["layers"], expected["summaries"]["layers"]  # an int of Python
    pairs = zip(*map(jax.tree.leaves, (read, expected)), strict=True)
    assert all(left.dtype == right.dtype for left, right in pairs)
    assert (type(read["finite"]), type(read["loss"])) == (np.bool_, np.float32)
