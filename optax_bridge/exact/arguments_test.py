"""Which arguments a transformation takes per call, asked of real Optax transformations."""

from typing import Any

import jax.numpy as jnp
import optax
import pytest

import optax_bridge
from optax_bridge import accepted_arguments


def scale_by_weight() -> optax.GradientTransformationExtraArgs:
    """A transformation of a user's own, with a named extra argument."""

    def update(updates: Any, state: Any, params: Any = None, *, weight: Any, **extra: Any) -> Any:
        del params, extra
        return updates * weight, state

    function: Any = update  # the protocol's type knows no arguments by name
    return optax.GradientTransformationExtraArgs(lambda params: (), function)


def scale_by_anything() -> optax.GradientTransformationExtraArgs:
    """One that reads all its extra arguments, whatever they are called."""

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        del params
        return updates * sum(extra.values()), state

    return optax.GradientTransformationExtraArgs(lambda params: (), update)


TAKEN = [
    (optax.sgd(0.1), set()),
    (optax.adamw(0.1), set()),
    (optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)), set()),
    (optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(), set()),
    (optax.contrib.reduce_on_plateau(), {"value"}),
    (optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()), {"value"}),
    (optax.masked(scale_by_weight(), True), {"weight"}),
    (optax.partition({"a": scale_by_weight(), "b": optax.sgd(0.1)}, "a"), {"weight"}),
    (scale_by_weight(), {"weight"}),
    (optax_bridge.sgd(0.1), {"learning_rate"}),
    (optax.chain(optax.clip(1.0), optax_bridge.sgd(0.1)), {"learning_rate"}),
    (
        optax_bridge.weight_norm(optax_bridge.momentum()),
        {"wn_decay", "wn_eps", "learning_rate", "decay", "weight_decay", "nesterov"},
    ),
    (
        optax_bridge.multi_optimizer(({}, optax_bridge.sgd()), ({}, scale_by_weight())),
        {"hyper_params", "learning_rate", "weight"},
    ),
]


@pytest.mark.parametrize(("tx", "names"), TAKEN)
def test_the_names_that_are_taken(tx: Any, names: set[str]):
    assert accepted_arguments(tx) == names


@pytest.mark.parametrize("tx", [optax.lbfgs(), optax.chain(optax.clip(1.0), scale_by_anything())])
def test_where_all_arguments_are_read_any_name_will_do(tx: Any):
    assert accepted_arguments(tx) is None


def test_the_argument_arrives():
    state = optax_bridge.TrainState.create(
        apply_fn=None, params=jnp.ones(()), tx=optax.chain(scale_by_weight(), optax.scale(-1.0))
    )
    assert state.apply_gradients(grads=jnp.ones(()), weight=0.25).params == 0.75
