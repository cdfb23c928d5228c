"""Masks and labels that were made from boxed parameters, as Flax's TrainState takes them."""

from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training import train_state

import optax_bridge

PARAMS = {
    "kernel": nn.Partitioned(jnp.ones((4, 3)), ("in", "out")),  # type: ignore[arg-type]
    "bias": nn.Partitioned(jnp.ones(3), ("out",)),  # type: ignore[arg-type]
}
GRADS = jax.tree.map(lambda leaf: leaf / 2, PARAMS)
MASK = jax.tree.map(lambda leaf: leaf.ndim > 1, PARAMS)
LABELS = jax.tree.map(lambda leaf: "a" if leaf.ndim > 1 else "b", PARAMS)
MADE: dict[str, Callable[[], optax.GradientTransformation]] = {
    "decay": lambda: optax.adamw(0.1, mask=MASK),
    "function": lambda: optax.adamw(0.1, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p)),
    "masked": lambda: optax.chain(optax.masked(optax.clip(0.1), MASK), optax.sgd(0.1)),
    "factored": lambda: optax.masked(optax.adafactor(0.1, min_dim_size_to_factor=2), MASK),
    "exact": lambda: optax.masked(optax_bridge.adam(0.1), MASK),
    "labels": lambda: optax.partition({"a": optax_bridge.momentum(0.1), "b": optax.sgd(1)}, LABELS),
}


@pytest.mark.parametrize("name", MADE)
def test_a_mask_of_boxes_runs_as_in_flax_s_train_state(name: str):
    ours, flaxs = (
        state.create(apply_fn=None, params=PARAMS, tx=MADE[name]())
        for state in (optax_bridge.TrainState, train_state.TrainState)
    )
    step: Any = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))
    for _ in range(3):
        ours, flaxs = step(ours, GRADS), step(flaxs, GRADS)
    assert jax.tree.structure(ours.params) == jax.tree.structure(flaxs.params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), ours.params, flaxs.params
    )
    unboxed = ours.apply_gradients(grads=optax_bridge.unboxed(GRADS))
    jax.tree.map(np.testing.assert_array_equal, unboxed.params, step(ours, GRADS).params)


def test_a_mask_that_fits_no_tree_says_how_masks_are_made():
    tx = optax.masked(optax.sgd(0.1), {"kernel": {"w": True}})
    with pytest.raises(ValueError) as caught:
        optax_bridge.TrainState.create(apply_fn=None, params=PARAMS, tx=tx)
    assert "optax_bridge.unboxed(params)" in caught.value.__notes__[0]
