"""Weight normalisation: which parameters are split, as in `flax.optim`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
import optax_bridge


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (1, 1, 3), (2, 3), (2, 1, 3)], ids=str)
def test_what_is_split_and_what_is_kept_whole(shape: tuple[int, ...]):
    """Shape by shape: a single vector is kept whole, whatever its rank."""
    params = {"w": jnp.reshape(jnp.arange(1.0, 1.0 + np.prod(shape)), shape)}
    optimizer = legacy_optim.WeightNorm(legacy_optim.Momentum(0.1)).create(params)
    state: Any = optax_bridge.TrainState.from_legacy(optimizer)
    assert jax.tree.structure(state.tx.init(params)) == jax.tree.structure(state.opt_state)
    kept: Any = state.opt_state
    shapes = [jnp.shape(leaf) for leaf in jax.tree.leaves(kept.scale)]
    assert shapes == ([(1,) * (len(shape) - 1) + (3,)] if shape in [(2, 3), (2, 1, 3)] else [])
