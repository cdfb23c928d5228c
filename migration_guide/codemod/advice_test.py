"""What the rules advise is executed: each piece of code stands in a message, and runs."""

import flax
import flax.core
import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import optax
import pytest

import legacy_optim
import optax_bridge
import optax_bridge.checkpoints
from migration_guide.codemod.rules import (
    comments,
    frozen_dict,
    optimize,
    optimizer_def,
    unclear,
)

PARAMS = {"a": jnp.ones(2), "b": jnp.ones(3)}
TX = optax_bridge.adam(0.1)
GROUPS = optax_bridge.multi_optimizer(("*/a", TX), ("*/b", optax_bridge.sgd(0.1)))
STATE = optax_bridge.TrainState.create(apply_fn=None, params=PARAMS, tx=TX)
NAMES = {
    "flax": flax,
    "jax": jax,
    "optax": optax,
    "optax_bridge": optax_bridge,
    "grads": PARAMS,
    "params": PARAMS,
    "tx": TX,
    "opt_state": STATE.opt_state,
    "state": STATE,
    "grouped": optax_bridge.TrainState.create(apply_fn=None, params=PARAMS, tx=GROUPS),
    "optimizer": STATE,
    "template": STATE,
    "old": legacy_optim.Adam(0.1).create(PARAMS),
    "definition": legacy_optim.Adam(0.1),
    "saved": flax.serialization.to_state_dict(legacy_optim.Adam(0.1).create(PARAMS)),
    "loss_fn": lambda params: params["a"].sum(),
    "it": flax.core.freeze(PARAMS),
    "rng": jax.random.key(0),
    "batch_dims": (2,),
    "cell": nn.LSTMCell,
    "leaves": jax.tree.leaves(STATE),
}
# What stands in the message -> what is run, where that has something filled in.
ADVICE = [
    (optimizer_def.INSTEAD, "tx.init", "tx.init(params)"),
    (
        optimizer_def.INSTEAD,
        "tx.update(grads, opt_state, params, learning_rate=...)",
        "tx.update(grads, opt_state, params, learning_rate=0.5)",
    ),
    (
        optimizer_def.INSTEAD,
        "state.apply_gradients(grads=grads, hyper_params=[{...}, {...}])",
        "grouped.apply_gradients(grads=grads, hyper_params=[{'b1': 0.5}, {}])",
    ),
    (optimize.INSTEAD, "jax.value_and_grad(loss_fn)(optimizer.params)", ""),
    (optimize.INSTEAD, "optimizer.apply_gradients(grads=grads)", ""),
    (frozen_dict.PERHAPS.format("unfreeze"), "flax.core.unfreeze(it)", ""),
    (
        frozen_dict.NO_LONGER,
        "(dict, flax.core.FrozenDict)",
        "1 / isinstance(params, (dict, flax.core.FrozenDict))",
    ),
    (
        comments.CARRY,
        "{cell}(features=size, parent=None).initialize_carry(rng, (*batch_dims, 1))",
        "cell(features=4, parent=None).initialize_carry(rng, (*batch_dims, 1))",
    ),
    (unclear.EITHER, "optax_bridge.checkpoints.from_state_dict(state, saved)", ""),
    (unclear.EITHER, "flax.serialization.to_state_dict(state.to_legacy(definition))", ""),
    (
        unclear.ORDER,
        "jax.tree.unflatten(jax.tree.structure(template), leaves)",
        "",
    ),
    (
        unclear.ORDER,
        "optax_bridge.checkpoints.from_state_dict(state, flax.serialization.to_state_dict(old))",
        "",
    ),
]


def test_what_is_advised_runs(subtests: pytest.Subtests):
    for message, advised, code in ADVICE:
        with subtests.test(message):
            assert advised in message
            assert eval(code or advised, NAMES) is not None
