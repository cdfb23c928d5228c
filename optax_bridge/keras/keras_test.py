"""What the table says of Keras is so: signatures, and what to write for names without an entry."""

import inspect
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_bridge.keras
from optax_bridge import TrainState
from optax_bridge.correspondence import KERAS

keras: Any = pytest.importorskip("keras", reason="Keras is not installed")

# Name -> its arguments.
_SCHEDULES: dict[str, dict[str, Any]] = {
    "ExponentialDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5, "staircase": True,
    },
    "PolynomialDecay": {
        "initial_learning_rate": 0.1, "decay_steps": 7, "end_learning_rate": 0.01, "power": 2.0,
    },
    "CosineDecay": {"initial_learning_rate": 0.1, "decay_steps": 7, "alpha": 0.2},
    "PiecewiseConstantDecay": {"boundaries": [3, 8], "values": [0.3, 0.2, 0.1]},
    "InverseTimeDecay": {"initial_learning_rate": 0.1, "decay_steps": 7, "decay_rate": 0.5},
}  # fmt: skip
_OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adagrad": {"learning_rate": 0.1, "initial_accumulator_value": 0.2, "epsilon": 1e-3},
    "Lamb": {"learning_rate": 0.1, "beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3},
}

# Name -> its arguments that may be arrays, and the others.
_WITH_ARRAYS: dict[str, tuple[dict[str, float], dict[str, Any]]] = {
    "Adadelta": ({"rho": 0.9, "epsilon": 1e-3}, {}),
    "Adam": ({"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3}, {"amsgrad": True}),
    "Adamax": ({"beta_1": 0.8, "beta_2": 0.9, "epsilon": 1e-3}, {"weight_decay": 0.1}),
    "RMSprop": ({"rho": 0.8, "momentum": 0.9, "epsilon": 1e-3}, {"centered": True}),
}


def _equal(name: str, arguments: dict[str, Any]) -> Any:
    """What the table says to write, evaluated."""
    source = re.search(
        r"lambda .*?(?=,)|(?:optax\.\w+\(.*?\))(?= is the same)", KERAS.without_entry[name]
    )
    assert source is not None, name
    return eval(source[0], {"optax": optax, **arguments})


@pytest.mark.parametrize("name", _SCHEDULES)
def test_schedules_are_optax_s_from_the_first_step_on(name: str):
    theirs = getattr(keras.optimizers.schedules, name)(**_SCHEDULES[name])
    ours = _equal(name, _SCHEDULES[name])
    rates = [float(theirs(count)) for count in range(12)]
    np.testing.assert_allclose([float(ours(count)) for count in range(12)], rates, rtol=1e-6)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_what_stands_for_an_optimizer_without_an_entry_is_the_same(name: str):
    tx: Any = _equal(name, _OPTIMIZERS[name])
    theirs = getattr(keras.optimizers, name)(**_OPTIMIZERS[name])
    variable = keras.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))
    params: Any = jnp.asarray(variable.value)
    state = tx.init(params)
    for count in range(5):
        grads = jnp.cos(3 * params + count)
        theirs.apply([grads], [variable])
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        np.testing.assert_allclose(params, variable.value, rtol=1e-5, atol=1e-6)


def test_constructors_are_those_of_keras_and_each_class_is_known():
    classes = {
        name
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value) and issubclass(value, keras.optimizers.Optimizer)
    }
    entries = {entry.legacy.__name__: entry for entry in KERAS.values()}
    assert classes - {"Optimizer"} <= {*entries, *KERAS.without_entry}
    for name, entry in entries.items():
        theirs = dict(inspect.signature(getattr(keras.optimizers, name)).parameters)
        theirs.pop("kwargs")
        known = {*entry.defaults(), *entry.extra_arguments}
        assert theirs.keys() == known, name
        assert entry.defaults() == {key: theirs[key].default for key in entry.defaults()}
        places = [key for key in theirs if key in entry.defaults()]
        assert places == list(entry.defaults()), name


@pytest.mark.parametrize("name", _WITH_ARRAYS)
def test_parameters_and_state_keep_their_dtype_where_hyper_parameters_have_another(name: str):
    numbers, others = _WITH_ARRAYS[name]
    arguments = {key: jnp.float32(value) for key, value in numbers.items()} | others
    theirs = getattr(keras.optimizers, name)(learning_rate=0.1, **arguments)
    value = jnp.linspace(-1, 1, 12, dtype=jnp.bfloat16)
    variable = keras.Variable(value, dtype="bfloat16")
    tx = getattr(optax_bridge.keras, name.lower())(learning_rate=0.1, **arguments)
    state: Any = TrainState.create(apply_fn=None, params=value, tx=tx)
    for count in range(3):
        grads = jnp.cos(3 * state.params + count)
        theirs.apply([grads], [variable])
        state = state.apply_gradients(grads=grads)
        assert state.params.dtype == variable.value.dtype == jnp.bfloat16
        assert (state.params == variable.value).all()
    slots = [each.value for each in theirs.variables[2:]]  # after the count and the rate
    ours = [each for each in state.opt_state[1:] if each is not None]
    assert (
        [each.dtype for each in ours] == [each.dtype for each in slots] == [value.dtype] * len(ours)
    )
