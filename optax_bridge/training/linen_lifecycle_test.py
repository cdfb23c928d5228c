"""The lifecycle of Linen modules holds inside the training state."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import optax_bridge

X = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3)), jnp.float32)


class Setup(nn.Module):
    hidden_size: int = 5

    def setup(self) -> None:
        self.hidden = nn.Dense(self.hidden_size)
        self.norm = nn.BatchNorm(use_running_average=False, momentum=0.5)
        self.out = nn.Dense(3)

    def __call__(self, x: Any) -> Any:
        return self.out(nn.relu(self.norm(self.hidden(x))))


class Compact(nn.Module):
    hidden_size: int = 5

    @nn.compact
    def __call__(self, x: Any) -> Any:
        norm = nn.BatchNorm(use_running_average=False, momentum=0.5, name="norm")
        x = nn.relu(norm(nn.Dense(self.hidden_size, name="hidden")(x)))
        return nn.Dense(3, name="out")(x)


def create(model: Any) -> Any:
    variables = model.init(jax.random.key(0), X)
    return optax_bridge.FullTrainState.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        tx=optax_bridge.momentum(0.1),  # Adam would blow up a zero gradient's rounding
    )


@jax.jit
def train_step(state: Any, x: Any) -> Any:
    def loss(params: Any) -> Any:
        variables = {"params": params, "batch_stats": state.batch_stats}
        out, updated = state.apply_fn(variables, x, mutable=["batch_stats"])
        return jnp.mean(out**2), updated["batch_stats"]

    grads, stats = jax.grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=stats)


def assert_equal(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, left, right)


def assert_close(left: Any, right: Any) -> None:
    """Compiled otherwise: a few ULP of the order of magnitude of the parameters, 1."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), left, right)


def test_setup_and_compact_modules_train_alike():
    left, right = create(Setup()), create(Compact())
    for _ in range(3):
        left, right = train_step(left, X), train_step(right, X)
    assert_equal((left.params, left.batch_stats), (right.params, right.batch_stats))


def test_a_top_level_module_stays_unbound():
    model = Setup(hidden_size=7)
    state = create(model)
    train_step(state, X)
    assert not hasattr(model, "hidden")
    assert model.scope is None
    assert model.clone() == model


@pytest.mark.parametrize("lift", ["eager", "scan", "vmap"])
def test_state_is_an_input_and_an_output(lift: str):
    state = create(Setup())
    before = jax.tree.map(np.asarray, state)
    twice = train_step(train_step(state, X), X)
    if lift == "eager":
        with jax.disable_jit():
            new = train_step(train_step(state, X), X)
    elif lift == "scan":
        new, _ = jax.lax.scan(lambda s, x: (train_step(s, x), None), state, jnp.stack([X, X]))
    else:
        ensemble = jax.tree.map(lambda x: jnp.stack([x, x]), state)
        step = jax.vmap(train_step, in_axes=(0, None))
        new = jax.tree.map(lambda x: x[1], step(step(ensemble, X), X))
    assert_close(new, twice)
    assert_equal(state, before)  # a pure function: what went in is as it was
    assert not np.array_equal(new.batch_stats["norm"]["mean"], state.batch_stats["norm"]["mean"])
