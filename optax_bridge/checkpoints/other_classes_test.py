"""What `flax.optim` saved, into classes of others: Flax's `TrainState`, a user's own states."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization, struct
from flax.training import train_state

import legacy_optim as optim
import optax_bridge
from optax_bridge import CheckpointError, TrainState, convert_state
from optax_bridge.checkpoints import from_bytes, from_state_dict
from optax_bridge.metadata.trees import Params
from optax_bridge.recorded_test import refused

PARAMS = {"kernel": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "bias": jnp.ones(3)}
GRADS = jax.tree.map(jnp.cos, PARAMS)


def taken_over(state: Any, optimizer: optim.Optimizer, new_state: Any) -> bool:
    """Whether a state has an optimizer's parameters and step, and another state's moments."""
    pairs = zip(
        jax.tree.leaves((state.params, state.step, state.opt_state)),
        jax.tree.leaves((optimizer.target, optimizer.state.step, new_state)),
        strict=True,
    )
    return all(np.array_equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("tx", [optax.adam(0.1), optax_bridge.adam(0.1)], ids=["optax", "exact"])
def test_flax_s_own_train_state_takes_an_old_optimizer_over(tx: Any):
    optimizer = optim.Adam(0.1).create(PARAMS).apply_gradient(GRADS)
    flax_state = train_state.TrainState.create(apply_fn=None, params=GRADS, tx=tx)  # pyright: ignore[reportArgumentType]
    state = from_bytes({"model": flax_state}, serialization.to_bytes({"model": optimizer}))["model"]
    ours = TrainState.from_legacy(optimizer, exact=False)
    assert type(state) is train_state.TrainState
    assert taken_over(state, optimizer, ours.opt_state)


def test_the_first_weight_norm_is_refused_by_name():
    """What flax up to 0.3.6 saved, which no later release can continue."""
    saved: Any = serialization.to_state_dict(optim.WeightNorm(optim.Momentum(0.1)).create(PARAMS))
    state = saved["state"]["param_states"]["kernel"]
    state["mult"] = state.pop("scale")
    del state["direction"]
    with refused(CheckpointError, r"WeightNorm of up to flax 0\.3\.6"):
        convert_state(saved)


def test_parameters_below_a_level_say_where_to_put_them():
    """Models before Linen had that level, which a port to Linen drops as a rule."""
    saved = serialization.to_state_dict(optim.Momentum(0.1).create({"params": PARAMS}))
    tx = optax.sgd(0.1, momentum=0.9)
    with refused(CheckpointError, r"make the state of \{'params': params\}"):
        from_state_dict(TrainState.create(None, PARAMS, tx), saved)
    assert from_state_dict(TrainState.create(None, {"params": GRADS}, tx), saved).step == 0


@struct.dataclass
class SlowState:
    """What a definition with a second copy of the parameters keeps."""

    step: Any
    slow: Any
    param_states: Any = None  # every state of flax.optim has that


class Slow(optim.OptimizerDef):
    """A definition whose state is of a class of its own."""

    def init_state(self, params: Params) -> Any:
        return SlowState(jnp.zeros((), jnp.int32), params)

    def apply_gradient(self, hyper_params: Any, params: Any, state: Any, grads: Any) -> Any:
        new = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
        slow = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state.slow, new)
        return new, SlowState(state.step + 1, slow)


SLOW = Slow(optim.Momentum(0.1).hyper_params)


@pytest.mark.parametrize("copies", [None, 2])
def test_the_state_of_a_definition_of_ones_own_may_be_of_any_class(copies: int | None):
    optimizer = SLOW.create(PARAMS).apply_gradient(GRADS)
    saved = optimizer
    if copies:
        saved = jax.tree.map(lambda leaf: np.stack([leaf] * copies), optimizer)
    fresh = TrainState.create(None, GRADS, optax_bridge.wrap_definition(SLOW))
    state = from_bytes(fresh, serialization.to_bytes(saved))
    assert taken_over(state, optimizer, optimizer.state)
    assert taken_over(state, state.to_legacy(SLOW), optimizer.state)


@pytest.mark.parametrize("field", ["batch_stats", "ema_params"])
def test_of_two_entries_the_one_beside_the_optimizer_is_taken(field: str, tmp_path: Path):
    """The nearest by levels, whatever comes first in the alphabet."""
    far, near = (jax.tree.map(lambda x, n=n: x + n, PARAMS) for n in (1, 2))
    optimizer = optim.Adam(0.1).create(PARAMS)
    saved = {field: far, "train": {field: near, "optimizer": optimizer}}
    (tmp_path / "checkpoint").write_bytes(serialization.to_bytes(saved))
    with pytest.warns(optax_bridge.LeftOverWarning, match=field):
        state = optax_bridge.FullTrainState.from_legacy_checkpoint(
            tmp_path / "checkpoint", optimizer_def=optim.Adam(0.1)
        )
    jax.tree.map(np.testing.assert_array_equal, getattr(state, field), near)
