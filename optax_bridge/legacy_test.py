"""What has no equal is refused with a reason."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.legacy import from_legacy, to_legacy, wrap_definition


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda: legacy_optim.Adam(), "per call"),
        (lambda: legacy_optim.Adafactor(0.1, epsilon2=0.5), "epsilon2"),
        (lambda: legacy_optim.Adagrad(0.1), "eps outside the root"),
        (lambda: legacy_optim.LARS(0.1, weight_decay=0.1), "denominator"),
    ],
    ids=["no-rate", "epsilon2", "adagrad", "lars-decay"],
)
def test_settings_without_a_stock_equal_say_so(definition: Any, message: str):
    with pytest.raises(UnsupportedSetting, match=message):
        from_legacy(definition(), exact=False)


def test_parameters_that_the_state_was_not_made_for_are_named():
    definition = legacy_optim.Adam(0.1)
    state = from_legacy(definition).init({"w": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"opt_state's grad_ema: .* found \['b'\] besides. Pass"):
        to_legacy(definition, {"w": jnp.ones(2)}, state, 0)


def test_a_wrapped_definition_follows_optax_s_protocol():
    params = {"w": jnp.asarray([1.0, -2.0]), "b": jnp.asarray([0.5])}
    grads = jax.tree.map(jnp.cos, params)
    definition = legacy_optim.Momentum(0.1)
    tx = wrap_definition(definition)
    legacy = definition.create(params)
    state = tx.init(params)
    for rate in (None, 0.3):
        given = {} if rate is None else {"learning_rate": rate}
        updates, state = tx.update(grads, state, params, **given, of_another=3)
        params = optax.apply_updates(params, updates)
        legacy = legacy.apply_gradient(grads, **given)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), params, legacy.target
        )
        jax.tree.map(np.testing.assert_array_equal, state, legacy.state)
    with pytest.raises(ValueError, match=r"Momentum: update\(grads, state, params\)"):
        tx.update(grads, state)


def test_a_wrapped_subclass_of_multi_optimizer_takes_what_its_groups_take():
    class Own(legacy_optim.MultiOptimizer):
        pass

    kernels = legacy_optim.ModelParamTraversal(lambda path, _: "kernel" in path)
    definition = Own((kernels, legacy_optim.Adam(0.1)))
    tx = wrap_definition(definition)
    params = {"kernel": jnp.ones(2), "bias": jnp.ones(2)}
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    optimizer = definition.create(params)
    (hyper_params,) = tx.hyper_params["hyper_params"]
    for given in ({"learning_rate": 0.5}, {"hyper_params": [hyper_params.replace(beta1=0.0)]}, {}):
        state = state.apply_gradients(grads=params, **given)
        optimizer = optimizer.apply_gradient(params, **given)
        assert jax.tree.map(jnp.array_equal, state.params, optimizer.target) == {
            "kernel": True,
            "bias": True,
        }
    with pytest.raises(TypeError, match="learnig_rate"):
        state.apply_gradients(grads=params, learnig_rate=0.5)


def test_states_of_other_transformations_are_refused_by_name():
    params = {"w": jnp.ones(2)}
    state = from_legacy(legacy_optim.Adam(0.1)).init(params)
    wrapped = legacy_optim.WeightNorm(legacy_optim.Adam(0.1))
    own = Own(legacy_optim.Adam(0.1).hyper_params)
    for definition, expected in ((wrapped, "WeightNormState"), (own, "OptimizerState")):
        with pytest.raises(ValueError, match=rf"{expected}.*AdamState"):
            to_legacy(definition, params, state, 0)
    around = legacy_optim.WeightNorm(own)
    with pytest.raises(ValueError, match=r"^Own is not one of .*; convert it on its own$"):
        to_legacy(around, params, from_legacy(wrapped).init(params), 0)


class Own(legacy_optim.OptimizerDef):
    """A definition of a program's own."""
