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
from optax_bridge.legacy import from_legacy, to_legacy, to_optax, wrap_definition


def test_settings_without_an_optax_equal_say_so():
    with pytest.raises(UnsupportedSetting, match="per call"):
        from_legacy(legacy_optim.Adam(), exact=False)
    with pytest.raises(UnsupportedSetting, match="denominator"):
        from_legacy(legacy_optim.LARS(0.1, weight_decay=0.1), exact=False)


def test_parameters_that_the_state_was_not_made_for_are_named():
    definition = legacy_optim.Adam(0.1)
    state = from_legacy(definition).init({"w": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"of Adam .*: found \['mu'\]\['b'\], .* besides. Pass"):
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
    for definition, said in ((wrapped, r"no \['w'\].*\['mu'\]\['w'\]"), (own, "OptimizerState")):
        with pytest.raises(ValueError, match=rf"not that of .*{said}"):
            to_legacy(definition, params, state, 0)
    plain = from_legacy(legacy_optim.GradientDescent(0.1)).init(params)
    with pytest.raises(ValueError, match=r"not that of Momentum .*no \['w'\]\['momentum'\]"):
        to_legacy(legacy_optim.Momentum(0.1), params, plain, 0)
    optimizer = legacy_optim.Momentum(0.1).create(params)
    narrow = jax.tree.map(jnp.float16, optimizer.state.param_states)
    wrong = optimizer.replace(state=optimizer.state.replace(param_states=narrow))
    with pytest.raises(ValueError, match=r"transformation has float32\[2\], the .* float16\[2\]"):
        to_optax(wrong)


def test_definitions_of_ones_own_go_there_and_back_alone_and_within_groups():
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


def on_optax_in(definition: legacy_optim.OptimizerDef, dtype: Any) -> Any:
    """A step of `from_legacy(exact=False)` on parameters of a dtype."""
    params = {"a": {"w": jnp.ones((2, 2), dtype)}, "b": jnp.ones(2)}
    tx = from_legacy(definition, exact=False)
    return tx.update(params, tx.init(params), params)


KERNELS = legacy_optim.ModelParamTraversal(lambda path, _: path.endswith("/w"))
BIASES = legacy_optim.ModelParamTraversal(lambda path, _: path.endswith("/b"))


@pytest.mark.parametrize(
    "definition",
    [
        legacy_optim.WeightNorm(legacy_optim.Momentum(0.1)),
        legacy_optim.MultiOptimizer(
            (KERNELS, legacy_optim.Adam(0.1)), (BIASES, legacy_optim.Momentum(0.1))
        ),
    ],
    ids=["wrapped", "grouped"],
)
def test_half_precision_is_refused_where_public_optax_is_no_equal(definition: Any):
    on_optax_in(definition, jnp.float32)
    with pytest.raises(UnsupportedSetting, match=r"\['w'\] is float16.*exact=True is exact"):
        on_optax_in(definition, jnp.float16)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_is_taken_where_it_is_the_same_each_group_for_itself(dtype: Any):
    on_optax_in(legacy_optim.Momentum(0.1, weight_decay=0.1), dtype)
    groups = ((KERNELS, legacy_optim.Momentum(0.1)), (BIASES, legacy_optim.Adam(0.1)))
    on_optax_in(legacy_optim.MultiOptimizer(*groups), dtype)


def test_half_precision_is_refused_by_init_and_by_a_step_whatever_init_was_given():
    tx, half = from_legacy(legacy_optim.Adam(0.1), exact=False), jnp.ones(2, jnp.bfloat16)
    with pytest.raises(UnsupportedSetting, match="params is bfloat16"):
        tx.init(half)
    state = tx.init(jnp.ones(2))
    for params in (half, None):
        with pytest.raises(UnsupportedSetting, match="params is bfloat16"):
            tx.update(half, state, params)


@pytest.mark.parametrize("exact", ["no", None, 0])
def test_exact_is_a_boolean(exact: Any):
    with pytest.raises(TypeError, match="exact: expected True or False"):
        from_legacy(legacy_optim.Adam(0.1), exact)
