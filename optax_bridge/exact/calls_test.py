"""What an optimizer says of a call that cannot be meant."""

import inspect
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.correspondence import ENTRIES

adam = optax_bridge.adam
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "lr": (lambda: adam(lr=0.1), "no argument lr: here it is learning_rate. It takes learning"),  # type: ignore[call-arg]
    "betas": (lambda: adam(0.1, betas=(0.9, 0.99)), "here it is b1 and b2"),  # type: ignore[call-arg]
    "unknown": (lambda: adam(0.1, amsgrad=True), "no argument amsgrad. It takes learning_rate, b1"),  # type: ignore[call-arg]
    "too-many": (lambda: adam(1, 0, 0, 0, 0, 0), "takes 5 arguments by position, found 6"),  # type: ignore[call-arg]
    "twice": (lambda: adam(0.1, learning_rate=0.1), "learning_rate twice"),  # type: ignore[call-arg]
    "parameters": (lambda: adam({"w": 1.0}, 0.1), r"adam\(learning_rate=\): .*TrainState.create\("),  # type: ignore[arg-type]
    "pair": (lambda: adam(0.1, (0.9, 0.999)), "pass them separately, b1=0.9, b2=0.999"),  # type: ignore[arg-type]
    "class-of-a-number": (lambda: adam(float), "expected a number, .* found the class float"),  # type: ignore[arg-type]
    "text": (lambda: adam("0.1"), "expected a number, an array or a schedule, found str '0.1'"),  # type: ignore[arg-type]
    "no-inner": (lambda: optax_bridge.weight_norm(0.1), "inner: expected an Optax"),  # type: ignore[arg-type]
    "function": (lambda: optax_bridge.weight_norm(adam), r"function adam: call it, adam\("),  # type: ignore[arg-type]
    "class": (
        lambda: optax_bridge.weight_norm(legacy_optim.Adam),  # type: ignore[arg-type]
        r"class Adam of the old API: optax_bridge.from_legacy\(legacy_optim.Adam\(",
    ),
    "selector": (
        lambda: optax_bridge.multi_optimizer((lambda path, leaf: True, adam(0.1))).init({"w": 1.0}),
        r"optax_bridge.path_mask\(function\)",
    ),
    "number-for-a-dtype": (
        lambda: optax_bridge.adafactor(dtype_momentum=0.9),
        "dtype_momentum: expected a floating-point dtype, found 0.9",
    ),
    "integers": (lambda: optax_bridge.adafactor(dtype_momentum="int32"), "floating-point dtype"),
    "strict": (
        lambda: optax_bridge.multi_optimizer(("*", adam(0.1)), strict="no"),  # type: ignore[arg-type]
        "strict: expected True or False, found str 'no'",
    ),
    "roles": (
        lambda: optax_bridge.adafactor(path_rules={"kernel": "row"}),
        "path rule 'kernel': expected a role for each axis, found 'row'",
    ),
    "names": (
        lambda: optax_bridge.with_roles(jnp.ones, "embed", ("row", "column")),
        "expected a name or None for each axis, found 'embed'",
    ),
    "index": (
        lambda: optax_bridge.add_axis({"w": 1.0}, True, "layers"),
        "index: expected the number of an axis, found True",
    ),
    "transformation-as-selector": (
        lambda: optax_bridge.group_counts({"w": 1.0}, adam(0.1)),
        "selector: expected a glob, .* found a transformation, ExactTransformation",
    ),
    "no-traversal": (
        lambda: optax_bridge.traversal_mask("*/bias"),
        "expected a traversal, .* found str '\\*/bias'; path_mask takes globs",
    ),
}


def test_a_call_that_cannot_be_meant_says_what_is(subtests: pytest.Subtests):
    for case in CALLS:
        with subtests.test(case):
            call, message = CALLS[case]
            with pytest.raises(TypeError, match=message):
                call()


NO_NUMBERS = ("0.1", b"1", True, [0.1], (0.1,), {0.1}, {"a": 0.1}, iter([0.1]), float)
NO_FLAGS = ("no", "False", [], None, 2, 0.0, np.ones(2, bool), lambda: False)


def test_no_argument_takes_what_counts_as_a_number_or_as_true_by_accident(
    subtests: pytest.Subtests,
):
    for optimizer in [e.port.rpartition(".")[2] for e in ENTRIES.values()]:
        with subtests.test(optimizer):
            make = getattr(optax_bridge, optimizer)
            for name, parameter in inspect.signature(make).parameters.items():
                wrong = NO_FLAGS if isinstance(parameter.default, bool) else NO_NUMBERS
                for value in (True, 0.5) if "dtype" in name else wrong:
                    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                        inner = {} if optimizer != "weight_norm" else {"inner": adam(0.1)}
                        with pytest.raises(TypeError, match="expected"):
                            make(**{**inner, name: value})


@pytest.mark.parametrize("value", ["0.1", True, [0.1], (0.1,), None])
def test_an_argument_of_a_step_is_a_number(value: Any):
    tx = adam(None)
    with pytest.raises((TypeError, ValueError), match=r"learning_rate=: expected|no learning rate"):
        tx.step(jnp.ones(2), tx.init(jnp.ones(2)), jnp.ones(2), learning_rate=value)


def test_calls_that_are_meant_go_on():
    for rate in (0.1, 1, None, jnp.ones(()), jnp.ones(2), optax.constant_schedule(0.1)):
        assert adam(rate).hyper_params["learning_rate"] is rate
    assert list(inspect.signature(adam).parameters)[:2] == ["learning_rate", "b1"]
    state: Any = optax.inject_hyperparams(adam)(learning_rate=0.1).init({"w": 1.0})
    assert state.hyperparams.keys() >= {"learning_rate", "b1"}
