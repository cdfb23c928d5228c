"""One step under chex's variants: with and without jit, on a device, and mapped."""

import chex
import jax
import numpy as np
import pytest
from absl.testing import parameterized

import legacy_optim
from optax_bridge import TrainState, from_legacy

PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "b": np.zeros(2, np.float32)}
DEFINITIONS = {
    "adam": legacy_optim.Adam(0.01, weight_decay=0.1),
    "lamb": legacy_optim.LAMB(0.01),
    "momentum": legacy_optim.Momentum(0.1, nesterov=True),
}


@pytest.mark.filterwarnings("ignore:.*pmap.*:DeprecationWarning")
class VariantsTest(chex.TestCase):
    @chex.variants(  # pyright: ignore[reportCallIssue]
        with_jit=True, without_jit=True, with_device=True, without_device=True
    )
    @parameterized.named_parameters(*((name, name) for name in DEFINITIONS))
    def test_a_step_is_the_same(self, name: str):
        definition = DEFINITIONS[name]
        grads = jax.tree.map(lambda leaf: np.cos(leaf + 1), PARAMS)
        optimizer = definition.create(jax.tree.map(jax.numpy.asarray, PARAMS))
        state = TrainState.create(
            apply_fn=None, params=optimizer.target, tx=from_legacy(definition)
        )
        old = self.variant(lambda held, g: held.apply_gradient(g))
        new = self.variant(lambda held, g: held.apply_gradients(grads=g))
        for _ in range(3):
            optimizer, state = old(optimizer, grads), new(state, grads)
            chex.assert_trees_all_equal(optimizer.target, state.params)
            chex.assert_trees_all_equal(
                optimizer.state.param_states, state.to_legacy(definition).state.param_states
            )
