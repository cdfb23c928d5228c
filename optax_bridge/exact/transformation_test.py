"""Exact transformations as citizens of Optax: chains, masks, schedules, and what they refuse."""

import copy
import inspect
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_bridge
from optax_bridge.exact.transformation import ExactTransformation, take_step

PARAMS = {"kernel": jnp.arange(6.0).reshape(3, 2) / 5 + 0.1, "bias": jnp.ones(2)}
GRADS = jax.tree.map(jnp.cos, PARAMS)
MAKERS = {
    name: function
    for name, function in inspect.getmembers(optax_bridge, inspect.isfunction)
    if next(iter(inspect.signature(function).parameters), "") == "learning_rate"
}
# Whose step is an update that Optax adds as it is, and whose is not.
FRAMES = [optax_bridge.lamb, lambda rate: optax_bridge.adafactor(rate, weight_decay_rate=rate)]


@pytest.mark.parametrize("make", FRAMES)
def test_a_chain_sees_the_clipped_gradient(make: Any):
    chain = optax.chain(optax.clip(0.5), make(0.1))
    clipped = jax.tree.map(lambda g: jnp.clip(g, -0.5, 0.5), GRADS)
    alone = make(0.1)
    left, _ = take_step(chain, GRADS, chain.init(PARAMS), PARAMS)
    updates, _ = alone.update(clipped, alone.init(PARAMS), PARAMS)
    right = optax.apply_updates(PARAMS, updates)
    # Two ULP: an update that decays is the difference of new and old parameters.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2**-22), left, right)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_schedule_gives_what_the_same_rates_per_call_give(make: Any):
    rates = jnp.asarray([0.1, 0.02, 0.3])
    scheduled, per_call = make(lambda count: rates[count]), make()
    left, right = (tx.init(PARAMS) for tx in (scheduled, per_call))
    params = [PARAMS, PARAMS]
    for rate in rates:
        params[0], left = take_step(scheduled, GRADS, left, params[0])
        params[1], right = take_step(per_call, GRADS, right, params[1], learning_rate=rate)
    jax.tree.map(np.testing.assert_array_equal, *params)
    assert int(left.count) == 3


PARAMETERS_UNREAD = [
    optax_bridge.sgd(0.1),
    optax_bridge.momentum(0.1),
    optax_bridge.adam(0.1),
    optax_bridge.adabelief(0.1),
    optax_bridge.adadelta(0.1),
    optax_bridge.adagrad(0.1),
    optax_bridge.rmsprop(0.1),
    optax_bridge.adafactor(0.1, multiply_by_parameter_scale=False),
]
PARAMETERS_READ = [
    optax_bridge.momentum(0.1, weight_decay=0.1),
    optax_bridge.adam(0.1, weight_decay=0.1),
    optax_bridge.lamb(0.1),
    optax_bridge.lars(0.1),
    optax_bridge.adafactor(0.1),
    optax_bridge.weight_norm(optax_bridge.sgd(0.1)),
    optax_bridge.multi_optimizer(({"kernel": True, "bias": True}, optax_bridge.sgd(0.1))),
]


@pytest.mark.parametrize("tx", PARAMETERS_UNREAD + PARAMETERS_READ)
def test_parameters_are_asked_for_where_they_are_read_alone(tx: ExactTransformation):
    if tx in PARAMETERS_READ:
        with pytest.raises(ValueError, match=r"update\(grads, state, params\)"):
            tx.update(GRADS, tx.init(PARAMS))
        return
    without, _ = tx.update(GRADS, tx.init(PARAMS))
    given, _ = tx.update(GRADS, tx.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, without, given)


DECAYED = optax_bridge.adam(0.1, weight_decay=0.1)
ALL = {"kernel": True, "bias": True}
REPACKED = {
    "init and update": ExactTransformation(*DECAYED),
    "replace": DECAYED._replace(init=lambda params: DECAYED.init(params)),
    "copy": copy.copy(DECAYED),
    "deepcopy": copy.deepcopy(DECAYED),
    "pickle": pickle.loads(pickle.dumps(DECAYED)),
    "tree.map": jax.tree.map(lambda function: function, DECAYED),
    "boxes": optax_bridge.with_axis_metadata(DECAYED),
    "groups": optax_bridge.multi_optimizer((ALL, optax.chain(DECAYED))),
}


@pytest.mark.parametrize("tx", REPACKED.values(), ids=REPACKED)
def test_whatever_takes_it_apart_keeps_the_exact_step(tx: Any):
    expected, _ = DECAYED.step(GRADS, DECAYED.init(PARAMS), PARAMS)
    new, _ = take_step(tx, GRADS, tx.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, new, expected)
    if isinstance(tx, ExactTransformation) and not tx.inner:
        assert tx.hyper_params == DECAYED.hyper_params


def test_what_knows_boxes_knows_its_parts():
    groups: Any = REPACKED["groups"]
    boxed: Any = optax_bridge.with_axis_metadata(groups)
    assert (boxed.inner, boxed.parts) == (groups.inner, groups.parts)
    assert copy.deepcopy(groups) is groups  # to jax.jit another one would be another program


def test_in_a_chain_a_parameter_keeps_its_dtype():
    rates = jnp.asarray([0.1, 0.2])  # float32, so that the legacy step is float32 as well
    params = jax.tree.map(lambda param: param.astype(jnp.bfloat16), PARAMS)
    tx = optax.chain(optax.clip(1.0), optax_bridge.sgd(lambda count: rates[count]))
    new, _ = take_step(tx, params, tx.init(params), params)
    assert {leaf.dtype for leaf in jax.tree.leaves(new)} == {jnp.dtype(jnp.bfloat16)}
    for grads, at in ((params, PARAMS), (PARAMS, params)):  # either in half precision
        updates, _ = DECAYED.update(grads, DECAYED.init(at), at)
        assert {leaf.dtype for leaf in jax.tree.leaves(updates)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(DECAYED, optax.transforms.freeze({"kernel": False, "bias": True})),
        optax.selective_transform(DECAYED, freeze_mask={"kernel": False, "bias": True}),
    ],
    ids=["freeze", "selective_transform"],
)
def test_what_optax_freezes_stands_and_the_rest_takes_the_exact_step(tx: Any):
    new, _ = take_step(tx, GRADS, tx.init(PARAMS), PARAMS)
    expected, _ = DECAYED.step(GRADS, DECAYED.init(PARAMS), PARAMS)
    np.testing.assert_array_equal(new["kernel"], expected["kernel"])
    np.testing.assert_array_equal(new["bias"], PARAMS["bias"])


def test_a_step_of_zero_rank_and_python_numbers():
    tx = optax_bridge.sgd(0.5)
    new, _ = take_step(tx, 1.0, tx.init(2.0), 2.0)
    assert new == 1.5
