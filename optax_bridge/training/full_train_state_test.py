"""The ready training state: collections, keys, averages, accumulation, loss scaling, rates."""

from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization

import legacy_optim
import optax_bridge
from optax_bridge import FullTrainState

PARAMS = {"w": jnp.arange(1.0, 4.0), "b": jnp.zeros(2)}
GRADS = {"w": jnp.asarray([0.1, -0.2, 0.3]), "b": jnp.asarray([1.0, -1.0])}


def create(**kwargs: Any) -> Any:
    given = {"params": PARAMS, "tx": optax_bridge.adam(0.1), **kwargs}
    return FullTrainState.create(apply_fn=None, **given)


def assert_equal(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False)(nn.Dense(4)(x))
        return nn.Dropout(0.5, deterministic=False)(x)


def test_everything_at_once_compiles_once_under_donation():
    model, x = Noisy(), jnp.ones((8, 3))
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    variables = model.init(keys, x)
    state = FullTrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=optax_bridge.momentum(0.1),
        batch_stats=variables["batch_stats"],
        rngs={"dropout": jax.random.key(2)},
        ema_decay=0.9,
        accumulate_every=2,
        dynamic_scale=legacy_optim.DynamicScale(),
    )
    compilations = 0

    def step(state: Any, x: Any) -> Any:
        nonlocal compilations
        compilations += 1

        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            out, updated = state.apply_fn(
                variables, x, mutable=["batch_stats"], rngs=state.step_rngs()
            )
            return jnp.mean(out**2), updated["batch_stats"]

        scale, finite, (_, stats), grads = state.dynamic_scale.value_and_grad(loss, has_aux=True)(
            state.params
        )
        return state.apply_gradients(
            grads=grads, finite=finite, dynamic_scale=scale, batch_stats=stats
        )

    assert jax.eval_shape(step, state, x).params["Dense_0"]["kernel"].shape == (3, 4)
    step = jax.jit(step, donate_argnums=0)
    for _ in range(6):
        state = step(state, x)
    assert compilations == 1
    assert int(state.step) == 3
    fresh = serialization.to_bytes(state.replace(rngs=None))
    restored = serialization.from_bytes(state.replace(rngs=None), fresh)
    assert_equal(restored, state.replace(rngs=None))


def test_a_state_that_starts_as_the_parameters_is_donated_with_them():
    params = jax.tree.map(jnp.copy, PARAMS)
    tx = optax.contrib.dog()
    started = {id(leaf) for leaf in jax.tree.leaves(tx.init(params))}
    assert {id(leaf) for leaf in jax.tree.leaves(params)} <= started  # or there is nothing to copy
    state: Any = FullTrainState.create(apply_fn=None, params=params, tx=tx, ema_decay=0.9)
    # Not every platform refuses to donate a buffer twice.
    buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(buffers)) == len(buffers)
    step = jax.jit(lambda state: state.apply_gradients(grads=GRADS), donate_argnums=0)
    assert int(step(step(state)).step) == 2
    zeros = jnp.zeros(2)
    twice = create(
        tx=optax.GradientTransformation(lambda params: (zeros, zeros), optax.identity().update)
    )
    assert len({leaf.unsafe_buffer_pointer() for leaf in twice.opt_state}) == 2


def test_a_line_search_and_numbers_compile_once():
    def loss(params: Any) -> Any:
        return jnp.sum(params["w"] ** 2) + params["scale"] ** 2

    traces = []

    @jax.jit
    def step(state: Any) -> Any:
        traces.append(1)
        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads, value=value, grad=grads, value_fn=loss)

    params = {"w": jnp.ones(3), "scale": 2.0}  # of a weak type, as the state of a line search
    state = FullTrainState.create(apply_fn=None, params=params, tx=optax.lbfgs(), ema_decay=0.5)
    for _ in range(3):
        state = step(state)
    assert len(traces) == 1


def test_averages_and_sums_of_wide_and_whole_numbers_keep_their_dtypes():
    jax.config.update("jax_enable_x64", True)
    params = {"w": jnp.ones(2, jnp.float64), "n": jnp.full(2, 3, jnp.int32)}
    state: Any = create(params=params, tx=optax.identity(), ema_decay=0.5, accumulate_every=2)
    for _ in range(2):
        state = state.apply_gradients(grads=params)
    for tree, w, n in ((state.ema_params, 1.5, 4), (state.accumulated, 0, 0)):
        assert (tree["w"].dtype, tree["n"].dtype) == (jnp.float64, jnp.int32)
        assert (tree["w"].tolist(), tree["n"].tolist()) == ([w, w], [n, n])


def test_the_mean_of_half_precision_is_taken_before_it_is_rounded():
    state: Any = FullTrainState.create(
        apply_fn=None, params=jnp.zeros((), jnp.bfloat16), tx=optax_bridge.sgd(1.0),
        accumulate_every=3,
    )  # fmt: skip
    for grad in (256.0, 4.0, 3.0):  # 263 is no bfloat16
        state = state.apply_gradients(grads=jnp.asarray(grad, jnp.bfloat16))
    assert state.params == -jnp.asarray(263 / 3, jnp.bfloat16)


def schedule(count: Any) -> Any:
    return 0.5 / (count + 1)


KERNEL = {"w": True, "b": False}
GROUPS = optax_bridge.multi_optimizer(
    (KERNEL, optax_bridge.sgd(0.5)),
    ({"w": False, "b": True}, optax.chain(optax.clip(1.0), optax_bridge.adam(schedule))),
)


def partition(kernel: Any, bias: Any) -> optax.GradientTransformation:
    return optax.partition({"kernel": kernel, "bias": bias}, {"w": "kernel", "b": "bias"})


def injected(rate: Any) -> optax.GradientTransformation:
    return optax.inject_hyperparams(optax.sgd)(learning_rate=rate)


READABLE = {
    "masked": (optax.masked(optax_bridge.adam(schedule), KERNEL), 0.25),
    "frozen": (optax_bridge.frozen(KERNEL, optax_bridge.adam(0.25)), (0.25,)),
    "legacy": (optax_bridge.from_legacy(legacy_optim.LAMB(0.25)), 0.25),
    "ours": (optax_bridge.adam(0.25), 0.25),
    "ours scheduled": (optax_bridge.adam(schedule), 0.25),
    "injected": (injected(0.25), 0.25),
    "injected schedule": (optax.chain(optax.clip(1.0), injected(schedule)), 0.25),
    "injected within MultiSteps": (optax.MultiSteps(injected(0.25), 2), 0.25),
    "weight norm": (optax_bridge.weight_norm(optax_bridge.sgd(0.25)), 0.25),
    "groups": (GROUPS, (0.5, 0.25)),
    "chain of groups": (optax.chain(optax.clip(1.0), GROUPS), (0.5, 0.25)),
    "one rate in two groups": (
        partition(optax_bridge.sgd(schedule), optax_bridge.adam(schedule)),
        0.25,
    ),
    "one group stands": (partition(optax_bridge.sgd(schedule), optax.set_to_zero()), 0.25),
}


@pytest.mark.parametrize(("tx", "rate"), READABLE.values(), ids=READABLE)
def test_the_learning_rate_is_readable(tx: Any, rate: Any):
    """After one step, so that a schedule stands at 1/2 of its start."""
    state = create(tx=tx).apply_gradients(grads=GRADS)
    np.testing.assert_allclose(np.asarray(state.learning_rate), rate, rtol=1e-6)
    traced = jax.jit(lambda state: state.learning_rate)(state)
    np.testing.assert_allclose(np.asarray(traced), rate, rtol=1e-6)


def test_a_schedule_is_asked_at_the_count_of_the_optimizer():
    """A state that took an optimizer over counts its own steps from 0."""
    state = create(tx=optax_bridge.adam(schedule)).apply_gradients(grads=GRADS)
    state = state.replace(step=jnp.zeros_like(state.step))
    assert float(state.learning_rate) == 0.25


def scaled_after() -> optax.GradientTransformation:
    return optax.chain(optax_bridge.sgd(0.5), optax.scale(0.5))


NOT_READABLE = {
    "two groups": partition(optax_bridge.sgd(0.5), optax_bridge.adam(0.1)),
    "an alias": optax.adam(0.25),
    "none": optax.identity(),
    "per call": optax_bridge.sgd(),
    "per call in a group": optax_bridge.multi_optimizer((KERNEL, optax_bridge.sgd())),
    "scaled after": scaled_after(),
    "under a condition": optax.MultiSteps(optax_bridge.adam(schedule), 2),
    "a schedule under a condition": optax.MultiSteps(injected(schedule), 2),
    "two in the state": partition(injected(0.1), injected(0.2)),
    "wants arguments": optax.chain(optax_bridge.sgd(0.1), optax.contrib.reduce_on_plateau()),
}


def test_a_rate_that_is_not_known_is_an_error(recorded: Any):
    states = {name: create(tx=tx) for name, tx in NOT_READABLE.items()}
    recorded("rates.txt", {n: lambda s=state: s.learning_rate for n, state in states.items()})


def test_reduce_on_plateau_scales_the_rate():
    for rate, after_four in ((0.1, 0.1), (schedule, 0.1)):
        plateau = optax.contrib.reduce_on_plateau(patience=1, factor=0.5)
        state = create(tx=optax.chain(injected(rate), plateau))
        for _ in range(4):
            state = state.apply_gradients(grads=GRADS, value=jnp.ones(()))
        factor = optax.tree.get(state.opt_state, "scale")
        assert factor < 1
        np.testing.assert_allclose(state.learning_rate, after_four * factor, rtol=1e-6)


@pytest.mark.parametrize(
    ("key", "fitted"),
    [
        pytest.param(jax.random.PRNGKey, False, id="raw"),
        pytest.param(jax.random.key, True, id="typed fitted"),
        pytest.param(jax.random.key, False, id="typed"),
    ],
)
def test_orbax_gives_back_every_field(key: Any, fitted: bool, tmp_path: Path):
    state = create(
        batch_stats={"mean": jnp.ones(2)},
        rngs={"dropout": key(7)},
        ema_decay=0.9,
        accumulate_every=2,
        dynamic_scale=legacy_optim.DynamicScale(),
    )
    fresh = state
    for _ in range(3):
        state = state.apply_gradients(grads=GRADS, batch_stats={"mean": jnp.zeros(2)})
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        if fitted:
            saved = checkpointer.restore(tmp_path / "state")
            restored = optax_bridge.restored_into(fresh, saved)
        else:
            restored = checkpointer.restore(tmp_path / "state", fresh)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    again = restored.apply_gradients(grads=GRADS), state.apply_gradients(grads=GRADS)
    for left, right in ((restored, state), again):
        assert_equal(*(s.replace(rngs=None) for s in (left, right)))
        assert_equal(*(jax.random.normal(s.step_rngs()["dropout"], (3,)) for s in (left, right)))
