from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.recorded_test import refused
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_class, config_for_function
from optax_bridge.spmd.optimizers import OptParam

VALUES = {"w": jnp.array([3.0, 4.0]), "b": jnp.array([0.0])}
PARAMS: Any = jax.tree.map(lambda value: OptParam(value, None, None), VALUES)
TRACE = config_for_function(optimizers.sgd_optimizer).set(
    learning_rate=1.0, decouple_weight_decay=True, momentum=0.5
)


def skipping(inner: Any = TRACE, **kwargs) -> Any:
    cfg = config_for_function(optimizers.skip_and_clip_by_global_norm)
    return cfg.set(inner=inner, **kwargs).instantiate()


def gradients(norm):
    return {"w": jnp.array([0.6, 0.8]) * norm, "b": jnp.array([0.0])}


@pytest.mark.parametrize("norm", [np.nan, np.inf, 10.0])
def test_a_step_that_is_left_out_moves_nothing(norm):
    tx = skipping(drop_norm=10.0)
    update = jax.jit(lambda g, s: tx.update(g, s, PARAMS))
    updates, state = update(gradients(2.0), tx.init(PARAMS))
    np.testing.assert_allclose(updates["w"], [-1.2, -1.6], rtol=1e-6)
    assert (int(state.nonvalid_count), state.count, state.drop_stats) == (0, None, None)
    skipped, after = update(gradients(norm), state)
    assert all(not np.any(u) for u in jax.tree.leaves(skipped))
    assert int(after.nonvalid_count) == 1
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, state.inner_state)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_exact_step_stays_exact_and_can_be_left_out():
    adam = optax_bridge.adam(0.1, weight_decay=0.1)
    definition = config_for_class(legacy_optim.Adam).set(learning_rate=0.1, weight_decay=0.1)
    tx = skipping(definition, drop_norm=10.0)
    step = jax.jit(lambda g, s: tx.step(g, s, PARAMS))
    values, state = step(gradients(2.0), tx.init(PARAMS))
    expected, _ = jax.jit(adam.step)(gradients(2.0), adam.init(VALUES), VALUES)
    jax.tree.map(np.testing.assert_array_equal, values, expected)
    values, after = step(gradients(11.0), state)
    jax.tree.map(np.testing.assert_array_equal, values, VALUES)
    jax.tree.map(np.testing.assert_array_equal, after.inner_state, state.inner_state)


def test_thresholds_follow_the_norms_of_the_steps_that_were_taken():
    tx = skipping(
        drop_norm=config_for_function(optimizers.drop_norm_by_grad_norm_ema).set(
            multipliers=[2, 4]
        ),
        grad_norm_ema_decay=0.5,
    )
    state = tx.init(PARAMS)
    assert (float(state.grad_norm_ema), float(state.grad_norm_square_ema)) == (1.0, 1.0)
    norms, mean, square, taken, expected = [1.5, 1.0, 50.0, 3.0, 1.0], 1.0, 1.0, 0, [0, 0]
    for norm in norms:
        _, state = tx.update(gradients(norm), state, PARAMS)
        exceeds = [norm >= 2 * mean, norm >= 4 * mean]
        expected = [e + x for e, x in zip(expected, exceeds, strict=True)]
        if not any(exceeds):
            decay = 0.5 * (1 - 0.5**taken) / (1 - 0.5 ** (taken + 1))
            mean, square = decay * mean + (1 - decay) * norm, decay * square + (1 - decay) * norm**2
            taken += 1
        assert float(state.grad_norm_ema) == pytest.approx(mean)
        assert float(state.grad_norm_square_ema) == pytest.approx(square)
        assert (int(state.count), int(state.nonvalid_count)) == (taken, expected[0])
        assert [int(n) for n in state.drop_stats.values()] == expected
    assert list(state.drop_stats) == ["2x_mean", "4x_mean"] and expected == [2, 1]
    with refused(ValueError, "needs grad_norm_ema_decay"):
        skipping(drop_norm=optimizers.drop_norm_by_grad_norm_ema())


def test_lion_is_that_of_optax():
    tx: Any = optimizers.lion_optimizer(0.1, 0.9, 0.99, weight_decay=0.1)
    other = optax.lion(0.1, b1=0.9, b2=0.99, weight_decay=0.1)
    state, expected_state = tx.init(PARAMS), other.init(VALUES)
    for norm in (1.0, -3.0):
        updates, state = tx.update(gradients(norm), state, PARAMS)
        expected, expected_state = other.update(gradients(norm), expected_state, VALUES)
        for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    tx = optimizers.lion_optimizer(0.1, 0.9, 0.99, multiply_by_parameter_scale=True)
    updates, _ = tx.update(gradients(1.0), tx.init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["w"], [-0.1 * 12.5**0.5] * 2, rtol=1e-6)


ADASTAR: dict[str, Any] = dict(
    gradient_ema_decay=0.9, gradient_ema_debias=True, gradient_square_ema_decay=0.99,
    gradient_square_ema_debias=True, eps=1e-8, eps_square=0.0, raw_update_clipping_threshold=None,
    update_ema_decay=None, update_ema_debias=False,
)  # fmt: skip


def test_adastar_can_be_adam_with_decoupled_decay():
    settings: Any = dict(learning_rate=0.1, weight_decay=0.01, update_schedule=lambda s: 1.0 / s)
    tx: Any = optimizers.adastar_optimizer(**settings, **ADASTAR)
    other: Any = optimizers.adamw_decoupled_optimizer(**settings, b1=0.9, b2=0.99, eps=1e-8)
    state, expected_state = tx.init(PARAMS), other.init(PARAMS)
    assert jax.tree.leaves(state["compute_updates"].update_ema) == []
    for norm in (1.0, -3.0, 0.5):
        updates, state = tx.update(gradients(norm), state, PARAMS)
        expected, expected_state = other.update(gradients(norm), expected_state, PARAMS)
        for a, b in zip(jax.tree.leaves(updates), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5)
    assert int(state["apply_lr_and_wd"]) == 3


@pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="JAX 0.9 leaves it on the device, on CPUs"
)
def test_an_offloaded_state_lies_there_between_the_steps():
    cfg = config_for_function(optimizers.offload_optimizer).set(optimizer=TRACE, pattern="0/.*|2")
    tx, plain = cfg.instantiate(), TRACE.instantiate()
    specs = jax.tree.map(
        lambda v: optimizers.ParameterSpec(shape=v.shape, dtype=v.dtype, mesh_axes=(None,)), VALUES
    )
    kinds = [spec.memory_kind for spec in jax.tree.leaves(tx.partition(specs))]
    assert kinds == ["pinned_host", "pinned_host", None]
    state, expected_state = tx.init(PARAMS), plain.init(PARAMS)
    update = jax.jit(lambda g, s: tx.update(g, s, PARAMS))
    for norm in (1.0, 2.0):
        updates, state = update(gradients(norm), state)
        expected, expected_state = plain.update(gradients(norm), expected_state, PARAMS)
        jax.tree.map(np.testing.assert_array_equal, updates, expected)
        assert state[0].trace["w"].sharding.memory_kind == "pinned_host"
        assert state[2].count.sharding.memory_kind != "pinned_host"


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"optimizer": None}, "both are needed"),
        ({"pattern": None}, "both are needed"),
        ({"offload_dst": "disk"}, "offload_dst: expected one of .*found 'disk'"),
    ],
)
def test_what_cannot_be_offloaded(kwargs, message):
    with refused(ValueError, message):
        optimizers.offload_optimizer(**{"optimizer": TRACE, **kwargs})


def test_a_platform_without_that_memory_says_so(monkeypatch):
    class Device:
        platform, device_kind = "abacus", "beads"

        def addressable_memories(self):
            return []

    monkeypatch.setattr(jax, "local_devices", lambda: [Device()])
    with refused(ValueError, r"abacus devices \(beads\) have no memory 'device'"):
        optimizers.offload_optimizer(TRACE)
