"""One rule for every parameter: what is traced, and how often."""

import functools
from types import SimpleNamespace
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import optax_bridge
from optax_bridge.exact.arguments import unused_arguments
from optax_bridge.exact.leaf_rule import LeafRule, decay_powers, zeros


class _State(NamedTuple):
    count: Any
    trace: Any


def test_powers_of_decays_are_computed_in_half_precision_as_the_parameters_are():
    powers = decay_powers(SimpleNamespace(b1=0.9, b2=0.999), jnp.int32(2), jnp.bfloat16)
    assert [power.dtype for power in powers] == [jnp.bfloat16] * 2
    assert [float(power) for power in powers] == [0.7265625, 1.0]  # and not 0.730 and 0.996


def test_parameters_that_are_alike_are_traced_once():
    seen = []

    def step_leaf(
        hp: SimpleNamespace, count: Any, grad: Any, param: Any, trace: Any
    ) -> tuple[Any, tuple[Any]]:
        del count, param
        seen.append(jnp.shape(grad))
        return hp.learning_rate * trace, (trace + grad,)

    tx = LeafRule(_State, zeros(1), step_leaf, {"learning_rate": 0.5}).transformation()
    params = {"a": jnp.ones(2), "b": jnp.ones(2), "c": jnp.ones(2, jnp.bfloat16), "d": jnp.ones(3)}
    state = tx.init(params)
    eager = tx.step(params, state, params)
    assert len(seen) == 4
    compiled = jax.jit(tx.step)(params, state, params)
    assert seen[4:] == [(2,), (2,), (3,)], "one for each shape and dtype"
    assert jax.tree.all(jax.tree.map(jnp.array_equal, eager, compiled))


def test_what_no_parameter_makes_use_of_is_unused_however_many_are_alike():
    params = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx = optax.chain(optax_bridge.adafactor(0.1, multiply_by_parameter_scale=False))
    extra = {"decay_rate": 0.5, "epsilon2": 0.1}
    assert unused_arguments(tx, params, tx.init(params), params, extra) == ["epsilon2"]


def test_a_decay_that_is_a_known_array_is_looked_at_while_jit_traces():
    grads = jnp.ones(2)
    tx = optax_bridge.adam(0.1, weight_decay=jnp.zeros([]))
    jax.jit(tx.update)(grads, tx.init(grads))  # without decay the parameters are not needed
    tx = optax_bridge.adam(0.1, weight_decay=jnp.ones([]))
    with pytest.raises(ValueError, match="needs the parameters"):
        jax.jit(tx.update)(grads, tx.init(grads))
    tx = optax_bridge.adam(0.1)  # whose decay a call may give
    with pytest.raises(ValueError, match="needs the parameters"):
        tx.update(grads, tx.init(grads), weight_decay=0.1)
    half = grads.astype(jnp.bfloat16)
    assert jax.tree.leaves(tx.update(half, tx.init(grads), grads)[0])[0].dtype == jnp.float32


def test_a_compiled_step_of_parameters_that_are_alike_can_be_differentiated_and_mapped():
    params = {"a": jnp.ones(2), "b": jnp.full(2, 3.0)}
    tx = optax_bridge.momentum(0.1)
    state = tx.init(params)

    def after(step: Any, grads: Any) -> Any:
        new, _ = step(grads, state, params)
        return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(new))

    def slope_and_mapped(step: Any) -> Any:
        own = functools.partial(after, step)
        return jax.grad(own)(params), jax.vmap(own)(
            jax.tree.map(lambda p: jnp.stack([p, -p]), params)
        )

    eager, compiled = map(slope_and_mapped, (tx.step, jax.jit(tx.step)))
    chex.assert_trees_all_close(compiled, eager, rtol=1e-6)
