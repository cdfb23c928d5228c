"""TrainState: exact trajectories in every drive, arguments per call, and the way in and back."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from flax.linen.fp8_ops import OVERWRITE_WITH_GRADIENT
from flax.training import train_state as flax_train_state

import legacy_optim
import optax_bridge
from equivalence_tests.compare.comparison import compare
from equivalence_tests.sides.inputs import problems
from legacy_optim.sgd import _GradientDescentHyperParams
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.entry import Case, Entry

CASES = [
    pytest.param(entry, case, id=f"{entry.name}-{index}", marks=pytest.mark.full if index else ())
    for entry in ENTRIES.values()
    for index, case in enumerate(entry.cases)
]
FIRST_CASES = [pytest.param(e, e.cases[0], id=e.name) for e in ENTRIES.values()]
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
    params, grads = hostile_problem(
        steps
    )  # finite: no update leads back from an infinite parameter
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


@pytest.mark.parametrize(("entry", "case"), FIRST_CASES[:1])
def test_one_compilation_with_donation(entry: Entry, case: Case):
    definition = entry.definition(case, case.learning_rate)
    state = optax_bridge.TrainState.from_legacy(definition.create(PARAMS))
    grads = gradients(PARAMS)
    state = jax.tree.map(jnp.copy, state)
    compilations = 0

    def step(state: Any, grads: Any) -> Any:
        nonlocal compilations
        compilations += 1
        return state.apply_gradients(grads=grads)

    step = jax.jit(step, donate_argnums=0)
    for index in range(3):
        state = step(state, at(grads, index))
    assert compilations == 1
    assert int(state.step) == 3


@pytest.mark.parametrize(("entry", "case"), FIRST_CASES)
def test_taking_over_and_going_back_in_mid_training(entry: Entry, case: Case):
    definition = entry.definition(case, case.learning_rate)
    grads = [at(gradients(PARAMS, 4), index) for index in (0, 2, 3)]
    uninterrupted = optimizer = definition.create(PARAMS)
    for each in grads:
        uninterrupted = uninterrupted.apply_gradient(each)
    state = optax_bridge.TrainState.from_legacy(optimizer.apply_gradient(grads[0]), apply_fn=len)
    state = state.apply_gradients(grads=grads[1])
    assert_same(state.to_legacy(definition).apply_gradient(grads[2]), uninterrupted)


def test_a_schedule_is_called_with_the_steps_taken():
    table = jnp.asarray([0.1, 0.2, 0.4])
    state = optax_bridge.TrainState.create(
        apply_fn=None, params=jnp.zeros(()), tx=optax_bridge.sgd(lambda count: table[count])
    )
    for expected in (-0.1, -0.3, -0.7):
        state = state.apply_gradients(grads=jnp.ones(()))
        assert state.params == pytest.approx(expected, rel=1e-6)  # three float32 additions


def test_it_is_flax_train_state_with_the_same_fields():
    state = optax_bridge.TrainState.create(apply_fn=len, params=PARAMS, tx=optax.adam(1e-3))
    assert isinstance(state, flax_train_state.TrainState)
    theirs = flax_train_state.TrainState.create(apply_fn=len, params=PARAMS, tx=state.tx)
    grads = at(gradients(PARAMS), 2)
    state, theirs = state.apply_gradients(grads=grads), theirs.apply_gradients(grads=grads)
    assert_same((state.params, state.opt_state), (theirs.params, theirs.opt_state))


class BatchNormState(optax_bridge.TrainState):
    """A subclass with a field of its own."""

    batch_stats: Any


def test_fields_replace_fields_and_the_rest_goes_to_the_transformation():
    state = BatchNormState.create(
        apply_fn=None, params=jnp.ones(()), tx=optax_bridge.sgd(), batch_stats={"mean": 0}
    )
    state = state.apply_gradients(
        grads=jnp.ones(()), learning_rate=0.5, batch_stats={"mean": jnp.ones(())}
    )
    assert (state.params, int(state.step)) == (0.5, 1)
    assert state.batch_stats == {"mean": 1}


def test_extra_arguments_reach_stock_transformations():
    plateau = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1))
    state = optax_bridge.TrainState.create(apply_fn=None, params=jnp.zeros(3), tx=plateau)
    for _ in range(4):
        state = state.update(grads=jnp.zeros(3), value=jnp.ones(()))  # is apply_gradients
    scale = optax.tree.get(state.opt_state, "scale")
    assert scale < 1.0


class Decay(legacy_optim.OptimizerDef):
    """A definition of a user's own."""

    def __init__(self, learning_rate: Any = None):
        super().__init__(_GradientDescentHyperParams(learning_rate))

    def init_param_state(self, param: Any) -> Any:
        return jnp.zeros_like(param)

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> Any:
        state = state + grad
        return param - hyper_params.learning_rate / (step + 1) * state, state


def test_a_definition_of_ones_own_goes_over_and_back():
    grads = gradients(PARAMS["dense"])
    optimizer = Decay(0.1).create(PARAMS["dense"])
    state = optax_bridge.TrainState.from_legacy(optimizer)
    for index in range(3):
        optimizer = optimizer.apply_gradient(at(grads, index), learning_rate=0.5)
        state = state.apply_gradients(grads=at(grads, index), learning_rate=0.5)
    back = state.to_legacy(optimizer.optimizer_def)
    assert_same(back, optimizer)


def test_collections_that_are_overwritten_with_their_gradient():
    """Flax keeps its fp8 scales in such a collection; its own TrainState treats it so."""
    name = OVERWRITE_WITH_GRADIENT
    params = {"params": jnp.ones(2), name: jnp.ones(3)}
    grads = {"params": jnp.ones(2), name: 5 * jnp.ones(3)}
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=optax_bridge.sgd(0.5))
    state = state.apply_gradients(grads=grads)
    np.testing.assert_array_equal(state.params["params"], 0.5 * np.ones(2))
    np.testing.assert_array_equal(state.params[name], 5 * np.ones(3))


class Model(nn.Module):
    """The model of FLIP 1009, small."""

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        x = nn.BatchNorm(use_running_average=False)(inputs.reshape(inputs.shape[0], -1))
        return nn.log_softmax(nn.Dense(10)(x))


def test_the_steps_of_flip_1009_can_be_written_as_it_writes_them():
    images = jnp.asarray(np.random.default_rng(0).standard_normal((16, 4, 4)), jnp.float32)
    labels = jnp.arange(16) % 10
    model = Model()
    variables = model.init(jax.random.key(0), images)

    def flattened_traversal(fn: Any) -> Any:
        def mask(data: Any) -> Any:
            flat = traverse_util.flatten_dict(data)
            return traverse_util.unflatten_dict({k: fn(k, v) for k, v in flat.items()})

        return mask

    tx = optax.chain(
        optax.masked(
            optax_bridge.sgd(learning_rate=0.1),
            mask=flattened_traversal(lambda path, _: path[-1] == "bias"),
        ),
        optax.masked(
            optax_bridge.sgd(learning_rate=0.05),
            mask=flattened_traversal(lambda path, _: path[-1] != "bias"),
        ),
    )

    @jax.jit
    def train_step(state: Any, inputs: Any, labels: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            outputs, new_model_state = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                inputs,
                mutable=["batch_stats"],
            )
            loss = -jnp.mean(jnp.take_along_axis(outputs, labels[:, None], 1))
            return loss, new_model_state

        (loss, new_model_state), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
        new_state = state.apply_gradients(grads=grads, batch_stats=new_model_state["batch_stats"])
        return new_state, loss

    state = BatchNormState.create(
        apply_fn=model.apply,
        params=variables["params"],
        tx=tx,
        batch_stats=variables["batch_stats"],
    )
    losses = []
    for _ in range(5):
        state, loss = train_step(state, images, labels)
        losses.append(float(loss))
    assert losses[-1] < losses[0]
