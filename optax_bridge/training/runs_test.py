"""Whole trainings in every setting: all that a state holds after each call, as it is recorded.

Numbers have four digits, which no release of XLA rounds otherwise.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT

import legacy_optim
import optax_bridge

PARAMS = {"w": jnp.arange(1.0, 4.0), "b": jnp.zeros(2)}
HALF = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
OVERWRITTEN = {"params": PARAMS, OVERWRITE_WITH_GRADIENT: {"scale": jnp.ones(1)}}
MASK = {"w": True, "b": False}


def schedule(count: Any) -> Any:
    return 0.5 / (count + 1)


def created(tx: Any, params: Any = PARAMS, **fields: Any) -> Any:
    return lambda: optax_bridge.FullTrainState.create(None, params, tx, **fields)


KEYS = {"dropout": jax.random.key(3)}
SCALE = legacy_optim.DynamicScale(scale=8.0, growth_interval=2)
RUNS: dict[str, Any] = {
    "plain": created(optax_bridge.momentum(schedule, weight_decay=0.1)),
    "average": created(optax_bridge.adam(0.1), ema_decay=0.75),
    "accumulated": created(optax_bridge.sgd(0.5), accumulate_every=3, ema_decay=0.5, rngs=KEYS),
    "collections": created(optax.sgd(0.1), batch_stats={"mean": jnp.zeros([])}, rngs=KEYS),
    "scaled": created(optax_bridge.adam(0.1), dynamic_scale=SCALE, ema_decay=0.5),
    "scaled, accumulated": created(
        optax_bridge.sgd(0.1),
        dynamic_scale=SCALE,
        accumulate_every=2,
        batch_stats={"mean": jnp.zeros([])},
    ),
    "half precision": created(optax_bridge.adam(0.1), HALF, ema_decay=0.5, accumulate_every=2),
    "rate per call": created(optax_bridge.rmsprop()),
    "rate in the state": created(optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)),
    "groups": created(
        optax_bridge.multi_optimizer((MASK, optax_bridge.sgd(0.5)), ("/b", optax_bridge.lars(1)))
    ),
    "frozen": created(optax_bridge.frozen(MASK, optax_bridge.adagrad(0.5))),
    "overwritten": created(optax_bridge.sgd(0.5), OVERWRITTEN),
}


def shown(value: Any) -> str:
    """An array with its dtype; a key by its bits."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    numbers = np.ravel(np.asarray(value, np.float64))
    return f"{value.dtype} " + " ".join(f"{number + 0:.4g}" for number in numbers)


def held(state: Any) -> list[str]:
    """A line for each array of a state, its rate and the keys of the next call."""
    try:
        rate = jax.tree.map(lambda rate: f"{float(rate):.4g}", state.learning_rate)
    except ValueError:
        rate = "not known"
    rows = jax.tree_util.tree_leaves_with_path({"state": state, "keys": state.step_rngs()})
    lines = [
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {shown(leaf)}"
        for path, leaf in rows
    ]
    return [f"rate {rate}", *lines]


def loss(params: Any, call: int) -> Any:
    """A loss that is not finite at the second call."""
    return sum(jnp.sum(jnp.sin(leaf * call)) for leaf in params.values()) / (call != 2)


def run(name: str) -> str:
    """The lines that change with each of four calls."""
    state, lines = RUNS[name](), ["at first", *held(RUNS[name]())]
    for call in range(1, 5):
        grads = jax.tree.map(lambda leaf, call=call: jnp.cos(leaf * call), state.params)
        extra: dict[str, Any] = (
            {"batch_stats": {"mean": jnp.float32(call)}} if state.batch_stats else {}
        )
        if name == "rate per call":
            extra["learning_rate"] = 0.5 / call
        if state.dynamic_scale is not None:
            result = state.dynamic_scale.value_and_grad(loss)(state.params, call)
            grads = result.grad
            extra |= {"finite": result.finite, "dynamic_scale": result.dynamic_scale}
        before = held(state)
        state = state.apply_gradients(grads=grads, **extra)
        lines += [f"after call {call}", *(line for line in held(state) if line not in before)]
    return "\n".join(lines)


def test_every_run_is_the_recorded_one(recorded: Any):
    recorded("runs.txt", {name: run(name) for name in RUNS})
