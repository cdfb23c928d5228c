"""What an optimizer says of a call that cannot be meant."""

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import legacy_optim
import optax_bridge

adam = optax_bridge.adam
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "lr": (lambda: adam(lr=0.1), "no argument lr: here it is learning_rate. It takes learning"),  # type: ignore[call-arg]
    "betas": (lambda: adam(0.1, betas=(0.9, 0.99)), "here it is b1 and b2"),  # type: ignore[call-arg]
    "unknown": (lambda: adam(0.1, amsgrad=True), "no argument amsgrad. It takes learning_rate, b1"),  # type: ignore[call-arg]
    "too-many": (lambda: adam(1, 0, 0, 0, 0, 0), "takes 5 arguments by position, found 6"),  # type: ignore[call-arg]
    "twice": (lambda: adam(0.1, learning_rate=0.1), "learning_rate twice"),  # type: ignore[call-arg]
    "parameters": (lambda: adam({"w": 1.0}, 0.1), r"adam\(learning_rate=\): .*TrainState.create\("),  # type: ignore[arg-type]
    "pair": (lambda: adam(0.1, (0.9, 0.999)), "give each for itself, b1=0.9, b2=0.999"),  # type: ignore[arg-type]
    "class-of-a-number": (lambda: adam(float), "expected a number, .* found the class float"),  # type: ignore[arg-type]
    "text": (lambda: adam("0.1"), "expected a number, an array or a schedule, found str '0.1'"),  # type: ignore[arg-type]
    "no-inner": (lambda: optax_bridge.weight_norm(0.1), "inner: expected an Optax"),  # type: ignore[arg-type]
    "function": (lambda: optax_bridge.weight_norm(adam), r"function adam: call it, adam\("),  # type: ignore[arg-type]
    "class": (
        lambda: optax_bridge.weight_norm(legacy_optim.Adam),  # type: ignore[arg-type]
        r"class Adam of the old API: optax_bridge.from_legacy\(legacy_optim.Adam\(",
    ),
    "no-pairs": (
        lambda: optax_bridge.multi_optimizer(lambda p: p, adam(0.1)),  # type: ignore[arg-type]
        r"groups\[0\]: expected a pair .* found function",
    ),
    "selector": (
        lambda: optax_bridge.multi_optimizer((lambda path, leaf: True, adam(0.1))).init({"w": 1.0}),
        r"optax_bridge.path_mask\(function\)",
    ),
}


@pytest.mark.parametrize("case", CALLS)
def test_a_call_that_cannot_be_meant_says_what_is(case: str):
    call, message = CALLS[case]
    with pytest.raises(TypeError, match=message):
        call()


def test_calls_that_are_meant_go_on():
    for rate in (0.1, 1, None, jnp.ones(()), jnp.ones(2), optax.constant_schedule(0.1)):
        assert adam(rate).hyper_params["learning_rate"] is rate
    assert list(inspect.signature(adam).parameters)[:2] == ["learning_rate", "b1"]
    state: Any = optax.inject_hyperparams(adam)(learning_rate=0.1).init({"w": 1.0})
    assert state.hyperparams.keys() >= {"learning_rate", "b1"}


@pytest.mark.parametrize(
    ("name", "meant"), [("Adam", "adam"), ("trainstate", "TrainState"), ("adm", "adam")]
)
def test_a_name_that_is_not_there_says_which_is(name: str, meant: str):
    with pytest.raises(AttributeError, match=f"is optax_bridge.{meant} meant"):
        getattr(optax_bridge, name)
