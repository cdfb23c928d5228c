from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import optax_bridge
from optax_bridge.recorded_test import refused
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.layer import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.module import (
    InvocationContext,
    new_output_collection,
    set_current_context,
)
from optax_bridge.spmd.optimizers import OptParam, OptStateSpec
from optax_bridge.spmd.trees import VDict

ROW_COL = FactorizationSpec(axes=("row", "col"))


def opt_param(value, factorization=None, scale=None):
    return OptParam(jnp.asarray(value), factorization, scale)


def _spec(param: OptParam, axes: PartitionSpec) -> ParameterSpec:
    return ParameterSpec(
        shape=param.shape,
        dtype=param.dtype,
        mesh_axes=axes,
        factorization=param.factorization_spec,
        weight_decay_scale=param.weight_decay_scale,
    )


def a_model() -> tuple[Any, Any]:
    """A vector with a scale of its own, a matrix with roles, stacked ones, and no parameter."""
    key = jax.random.PRNGKey(3)
    roles = FactorizationSpec(axes=("col", "row"))
    stacked = FactorizationSpec(axes=(None, "row", "col"))
    params: Any = {
        "b": OptParam(jax.random.normal(key, (3,)), None, 0.5),
        "layers": VDict(w=OptParam(2 * jax.random.normal(key, (2, 2, 3)), stacked, None)),
        "w": OptParam(jax.random.normal(key, (3, 2)), roles, None),
        "tiny": OptParam(jnp.asarray([1e-5, -2e-5]), None, None),
        "none": None,
        "masked": optax.MaskedNode(),
    }
    axes = {
        "b": PartitionSpec("model"),
        "layers": VDict(w=PartitionSpec(None, "data", "model")),
        "w": PartitionSpec("model", "data"),
        "tiny": PartitionSpec(None),
        "none": None,
        "masked": optax.MaskedNode(),
    }
    return params, jax.tree.map(_spec, params, axes)


OPTIMIZERS = {
    "sgd": config_for_function(optimizers.sgd_optimizer).set(
        learning_rate=0.1, decouple_weight_decay=True, momentum=0.9, weight_decay=0.01
    ),
    "adam": config_for_function(optimizers.adam_optimizer).set(
        learning_rate=0.1, b1=0.9, b2=0.99, eps=1e-8, l2_regularizer_weight=0.1
    ),
    "adamw": config_for_function(optimizers.adamw_optimizer).set(
        learning_rate=config_for_function(optimizers.constant_with_linear_warmup).set(
            peak_lr=0.1, warmup_steps=3
        ),
        b1=0.9,
        b2=0.99,
        eps=1e-8,
        weight_decay=0.1,
    ),
    "adamw_decoupled": config_for_function(optimizers.adamw_decoupled_optimizer).set(
        learning_rate=0.1, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1, update_schedule=1.0
    ),
    "adafactor": config_for_function(optimizers.adafactor_optimizer).set(
        learning_rate=0.1,
        b1=0.9,
        b2=config_for_function(optimizers.adafactor_decay_rate),
        multiply_by_parameter_scale=True,
        clipping_threshold=1.0,
        weight_decay=0.1,
        weight_decay_scale_by_learning_rate_exponent=1.0,
        apply_scale_by_trust_ratio=True,
    ),
    "ema, int8": config_for_function(optimizers.ema).set(decay=0.9, accumulator_dtype=jnp.int8),
    "param_ema": config_for_function(optimizers.param_ema).set(decay=0.9),
    "lion": config_for_function(optimizers.lion_optimizer).set(
        learning_rate=0.1,
        b1=0.9,
        b2=0.99,
        mu_dtype=jnp.bfloat16,
        weight_decay=0.1,
        multiply_by_parameter_scale=True,
    ),
    "adastar": config_for_function(optimizers.adastar_optimizer).set(
        learning_rate=0.1,
        gradient_ema_decay=0.9,
        gradient_ema_debias=True,
        gradient_square_ema_decay=0.99,
        gradient_square_ema_debias=True,
        eps=1e-8,
        eps_square=0.0,
        raw_update_clipping_threshold=1.0,
        update_ema_decay=0.9,
        update_ema_debias=False,
        adam_update_transformation=config_for_function(optimizers.scale_by_trust_ratio),
        weight_decay=0.1,
        update_schedule=1.0,
        verbosity=1,
    ),
}
OPTIMIZERS["skip, by a norm"] = config_for_function(optimizers.skip_and_clip_by_global_norm).set(
    inner=OPTIMIZERS["adam"], drop_norm=100.0, max_norm=1.0
)
OPTIMIZERS["skip, by averages"] = OPTIMIZERS["skip, by a norm"].clone(
    drop_norm=config_for_function(optimizers.drop_norm_by_grad_norm_ema), grad_norm_ema_decay=0.9
)
OPTIMIZERS["offloaded"] = config_for_function(optimizers.offload_optimizer).set(
    optimizer=OPTIMIZERS["adam"], pattern=".*/mu/.*"
)


def test_specs_as_programs_compare_them():
    _, specs = a_model()
    tx = OPTIMIZERS["adafactor"].instantiate()
    factored = tx.partition(specs)[0]
    assert factored.count == OptStateSpec(shape=[], dtype=jnp.int32, mesh_axes=PartitionSpec())
    assert factored.v_row["w"] == OptStateSpec(
        shape=[3], dtype=jnp.float32, mesh_axes=PartitionSpec("model")
    )
    assert factored.v["w"] == OptStateSpec(
        shape=(1,), dtype=jnp.float32, mesh_axes=PartitionSpec(None)
    )
    adam = OPTIMIZERS["adam"].instantiate().partition(specs)[1]
    assert adam.count == OptStateSpec(shape=(), dtype=jnp.int32, mesh_axes=PartitionSpec())
    there = optimizers.copy_partition(adam.mu, pattern="w", memory_kind="pinned_host")
    assert optimizers.copy_partition(there)["w"].memory_kind == "pinned_host"


@pytest.mark.parametrize("factored", [False, True])
def test_factored_rms_is_that_of_optax(factored):
    params = {"w": opt_param(jnp.ones((5, 3)), FactorizationSpec(axes=("row", "col")))}
    tx = optimizers.scale_by_factored_rms(factored, epsilon=0.1)
    reference: Any = optax.scale_by_factored_rms(factored, min_dim_size_to_factor=1, epsilon=0.1)
    state, expected = tx.init(params), reference.init({"w": params["w"].value})
    update = jax.jit(lambda g, s: tx.update(g, s, params))
    for seed in range(3):
        grads = {"w": jax.random.normal(jax.random.PRNGKey(seed), (5, 3))}
        updates, state = update(grads, state)
        wanted, expected = reference.update(grads, expected, {"w": params["w"].value})
        np.testing.assert_allclose(updates["w"], wanted["w"], rtol=1e-5)
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("axes", [("row", None), ("row", "row")])
def test_roles_that_are_no_pair(axes):
    params = {"w": opt_param(jnp.ones((5, 3)), FactorizationSpec(axes=axes))}
    with refused(ValueError, "one 'row', one 'col'"):
        optimizers.scale_by_factored_rms().init(params)


def test_clip_by_global_norm_drops_what_is_not_finite():
    grads = {"w": jnp.array([3.0, 4.0])}
    clip = optimizers.clip_by_global_norm(max_norm=1.0, drop_norm=100.0)
    np.testing.assert_allclose(clip.update(grads, (), None)[0]["w"], [0.6, 0.8], rtol=1e-6)
    grads = {"w": jnp.array([jnp.inf, 4.0])}
    context = InvocationContext("root", None, None, None, True, None, new_output_collection())
    with set_current_context(context):
        np.testing.assert_array_equal(clip.update(grads, (), None)[0]["w"], [0, 0])
        clip.update({"w": jnp.array([300.0, 4.0])}, (), None)
    assert context.get_summaries()["gradient_scale"] == 0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int16, jnp.int8, None])
def test_ema_is_near_the_average_in_every_accumulator(dtype):
    tx = optimizers.ema(0.5, accumulator_dtype=dtype)
    params = {"w": opt_param(jnp.zeros((4, 3))), "s": opt_param(jnp.zeros(()))}
    state = tx.init(params)
    kept = jnp.float32 if dtype is None else dtype
    assert state.ema["w"].dtype == kept and state.ema["s"].dtype == jnp.float32
    exact = cast(Any, optax.ema(0.5))
    values = jax.tree.map(lambda p: p.value, params)
    expected_state = exact.init(values)
    update = jax.jit(lambda g, s: tx.update(g, s, params))
    sizes = np.array([1.0, 100.0, 1.0], np.float32)
    for seed in range(3):
        numbers = jax.random.normal(jax.random.PRNGKey(seed), (4, 3))
        grads = {"w": numbers * sizes, "s": jnp.float32(seed)}
        updates, state = update(grads, state)
        expected, expected_state = exact.update(grads, expected_state)
        atol = {jnp.int8: 2e-2, jnp.bfloat16: 1e-2}.get(dtype, 1e-3)
        actual, wanted = (w / sizes for w in (updates["w"], expected["w"]))
        np.testing.assert_allclose(actual, wanted, atol=atol)
        np.testing.assert_allclose(updates["s"], expected["s"], rtol=1e-6)
    with refused(ValueError, "float32, bfloat16, int16, int8"):
        optimizers.ema(0.5, accumulator_dtype=jnp.int32)


def test_param_ema_averages_floats_and_copies_the_rest():
    tx = optimizers.param_ema(decay=optimizers.ema_schedule(0.9))
    params = {"w": opt_param([2.0]), "n": opt_param([7])}
    updates, state = tx.update({}, tx.init(params), params)
    assert updates == {}
    np.testing.assert_allclose(state.ema["w"], [0.2], rtol=1e-5)
    np.testing.assert_array_equal(state.ema["n"], [7])
    with refused(ValueError, "params"):
        tx.update({}, state, None)


def test_what_is_no_part_of_a_chain():
    with refused(ValueError, "chain: argument 0: expected a PartitionedGradientTr"):
        optimizers.chain(cast(Any, 1.0))


def test_an_exact_transformation_that_is_chained_twice_takes_the_step_once():
    once = cast(Any, optimizers.from_optax(optax_bridge.momentum(0.1)))
    tx = cast(Any, optimizers.chain(once, once))
    params, grads = {"w": opt_param([1.0, 2.0])}, {"w": jnp.array([3.0, 4.0])}
    values, _ = tx.step(grads, tx.init(params), params)
    updates, _ = once.update(grads, once.init(params), params)
    expected, _ = once.step(updates, once.init(params), params)
    np.testing.assert_array_equal(values["w"], expected["w"])


def test_the_first_step_of_a_schedule_is_1():
    for sgd in (optax_bridge.sgd, config_for_function(optax_bridge.sgd)):
        tx = cast(Any, optimizers.with_learning_rate(sgd, lambda step: 0.5 * step))
        assert tx.step(1.0, tx.init(3.0), 3.0)[0] == 2.5
