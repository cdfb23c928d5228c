"""WeightNorm: which parameters it splits, overrides, errors.

Its steps, recordings judge: `equivalence_tests/reference`.
"""

import jax.numpy as jnp
import numpy as np

import legacy_optim as optim


def test_overrides_of_the_wrapped_and_of_its_own() -> None:
    definition, inner = optim.WeightNorm(optim.Momentum(0.1)), optim.Momentum(0.7).hyper_params
    new = definition.update_hyper_params(hyper_params=inner, wn_decay=0.5)
    assert (new.inner.learning_rate, new.wn_decay, new.wn_eps) == (0.7, 0.5, 1e-8)


def test_a_python_number_is_a_parameter() -> None:
    optimizer = optim.WeightNorm(optim.Momentum(0.1)).create({"a": 2.0, "w": jnp.ones((2, 3))})
    optimizer = optimizer.apply_gradient({"a": 1.0, "w": jnp.ones((2, 3))})
    assert float(optimizer.target["a"]) == np.float32(1.9)
    assert optimizer.state.param_states["a"].scale == ()
