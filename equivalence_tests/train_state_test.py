"""TrainState: exact trajectories in every drive, arguments per call, and the way in and back."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training import train_state as flax_train_state

import optax_bridge
from equivalence_tests.compare.comparison import compare
from equivalence_tests.sides.inputs import problems
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.entry import Case, Entry

CASES = [
    pytest.param(entry, case, id=f"{entry.name}-{index}")
    for entry in ENTRIES.values()
    for index, case in enumerate(entry.cases)
]
PARAMS = {
    "dense": {"kernel": jnp.arange(6.0).reshape(3, 2) / 5 + 0.1, "bias": jnp.zeros(2)},
    "half": jnp.linspace(-1, 1, 4, dtype=jnp.bfloat16),
}


def gradients(params: Any, steps: int = 4) -> Any:
    return problems.gradients(params, steps, "hostile", seed=3)


def hostile_problem(steps: int) -> tuple[Any, Any]:
    params, grads = problems.problem(steps, compact=True)
    return params["hostile"], grads["hostile"]


def assert_same(left: Any, right: Any) -> None:
    """Every bit of every leaf."""
    found = compare(*(jax.tree.map(lambda x: np.asarray(x)[None], side) for side in (left, right)))
    assert found.identical, found.first


def at(tree: Any, index: int) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x[index]), tree)


@pytest.mark.parametrize(("entry", "case"), CASES)
def test_the_plain_protocol_is_within_one_ulp_a_step(entry: Entry, case: Case):
    """Lockstep: each step starts from the legacy state, so that nothing accumulates."""
    steps = 9
    params, grads = hostile_problem(steps)  # no update leads back from an infinite parameter
    definition = entry.definition(case, case.learning_rate)
    tx = optax_bridge.from_legacy(definition)

    @jax.jit
    def both(optimizer: Any, grads: Any) -> Any:
        state = optax_bridge.TrainState.from_legacy(optimizer)
        updates, _ = tx.update(grads, state.opt_state, state.params)
        return optimizer.apply_gradient(grads), optax.apply_updates(state.params, updates)

    optimizer = definition.create(jax.tree.map(jnp.asarray, params))
    seen = []
    for index in range(steps):
        optimizer, plain = both(optimizer, at(grads, index))
        seen.append((optimizer.target, plain))
    left, right = (jax.tree.map(lambda *x: np.stack(x), *side) for side in zip(*seen, strict=True))
    assert compare(left, right).ulp <= 1.0  # the facts of decoupled decay: one more rounding


BOXED = {"kernel": nn.Partitioned(jnp.ones((4, 3)), ("a", "b")), "bias": jnp.ones(3)}
TAKEN_OVER = [("plain", name) for name in ENTRIES]
TAKEN_OVER += [("boxed", name) for name, entry in ENTRIES.items() if "boxed" not in entry.excluded]


@pytest.mark.parametrize(("kind", "name"), TAKEN_OVER)
def test_taking_over_and_going_back_in_mid_training(kind: str, name: str):
    params, case = BOXED if kind == "boxed" else PARAMS, ENTRIES[name].cases[0]
    definition = ENTRIES[name].definition(case, case.learning_rate)
    grads = [at(gradients(params, 4), index) for index in (0, 2, 3)]
    uninterrupted = optimizer = definition.create(params)
    for each in grads:
        uninterrupted = uninterrupted.apply_gradient(each)
    state = optax_bridge.TrainState.from_legacy(optimizer.apply_gradient(grads[0]), apply_fn=len)
    state = state.apply_gradients(grads=grads[1])
    assert_same(state.to_legacy(definition).apply_gradient(grads[2]), uninterrupted)


class BatchNormState(optax_bridge.TrainState):
    """A subclass with a field of its own."""

    batch_stats: Any


def test_fields_replace_fields_and_the_rest_goes_to_the_transformation():
    state = BatchNormState.create(
        apply_fn=None, params=jnp.ones(()), tx=optax_bridge.sgd(), batch_stats={"mean": 0}
    )
    state = state.update(  # FLIP 1009's other name of apply_gradients
        grads=jnp.ones(()), learning_rate=0.5, batch_stats={"mean": jnp.ones(())}
    )
    assert isinstance(state, flax_train_state.TrainState)
    assert (state.params, int(state.step)) == (0.5, 1)
    assert state.batch_stats == {"mean": 1}


def test_collections_that_are_overwritten_with_their_gradient():
    """Flax keeps its fp8 scales in such a collection; its own TrainState treats it so."""
    name = OVERWRITE_WITH_GRADIENT
    params = {"params": jnp.ones(2), name: jnp.ones(3)}
    grads = {"params": jnp.ones(2), name: 5 * jnp.ones(3)}
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optax_bridge.sgd(0.5))
    state = state.apply_gradients(grads=grads)
    np.testing.assert_array_equal(state.params["params"], 0.5 * np.ones(2))
    np.testing.assert_array_equal(state.params[name], 5 * np.ones(3))
