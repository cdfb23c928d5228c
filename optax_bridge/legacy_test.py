"""Definitions of a program's own: wrapped, there and back. What is refused: `checks_test.py`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import legacy_optim
import optax_bridge
from optax_bridge.legacy import to_legacy, to_optax, wrap_definition


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


def test_definitions_of_ones_own_go_there_and_back_alone_and_within_groups():
    jax.config.update("jax_enable_x64", True)
    params = {"w": jnp.ones(2), "b": jnp.ones(3)}
    own = Own(legacy_optim.Adam(0.1).hyper_params)
    weights = legacy_optim.ModelParamTraversal(lambda path, _: path == "/w")
    groups = legacy_optim.MultiOptimizer((weights, own))
    for definition, exact in ((own, True), (groups, True), (legacy_optim.LARS(0.1), False)):
        optimizer = definition.create(params)
        optimizer = optimizer.replace(state=jax.tree.map(lambda x: x + 2, optimizer.state))
        _, state = to_optax(optimizer, exact)
        back = to_legacy(definition, params, state, np.int64(optimizer.state.step))
        assert back.state.step.dtype == jnp.int32
        jax.tree.map(np.testing.assert_array_equal, back.state, optimizer.state)


class Own(legacy_optim.OptimizerDef):
    """A definition of a program's own."""

    def init_param_state(self, param: Any) -> Any:
        return {"old": jnp.zeros_like(param)}
