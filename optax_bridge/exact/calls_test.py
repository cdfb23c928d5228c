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
ONES = jnp.ones(2)
ADAM: Any = adam(0.1, weight_decay=0.1)
LARS: Any = optax_bridge.lars(0.1)
GROUPS: Any = optax_bridge.multi_optimizer(("*", optax.chain(optax_bridge.sgd(0.1))), ("", LARS))
ANY: Any = optax_bridge  # calls that no type allows


def create(tx: Any, params: Any = ONES, **fields: Any) -> Any:
    return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx, **fields)


CALLS: dict[str, Callable[[], Any]] = {
    "lr": lambda: ANY.adam(lr=0.1),
    "betas": lambda: ANY.adam(0.1, betas=(0.9, 0.99)),
    "unknown": lambda: ANY.adam(0.1, amsgrad=True),
    "too-many": lambda: ANY.adam(1, 0, 0, 0, 0, 0),
    "too-many-but-some-by-name": lambda: ANY.adafactor(*[1] * 13),
    "twice": lambda: ANY.adam(0.1, learning_rate=0.1),
    "parameters": lambda: ANY.adam({"w": 1.0}, 0.1),
    "pair": lambda: ANY.adam(0.1, (0.9, 0.999)),
    "class-of-a-number": lambda: ANY.adam(float),
    "text": lambda: ANY.adam("0.1"),
    "flag": lambda: ANY.momentum(0.1, nesterov="no"),
    "text-that-is-one": lambda: ANY.torch.muon(adjust_lr_fn="original") and None,
    "no-inner": lambda: ANY.weight_norm(0.1),
    "function": lambda: ANY.weight_norm(adam),
    "class": lambda: ANY.weight_norm(legacy_optim.Adam),
    "definition": lambda: create(legacy_optim.Adam(0.1)),
    "optimizer": lambda: create(legacy_optim.Adam(0.1).create(ONES)),
    "group-alone": lambda: ANY.multi_optimizer(adam(0.1)),
    "group-of-three": lambda: ANY.multi_optimizer(("*", adam(0.1), 3)),
    "no-transformation": lambda: ANY.multi_optimizer(("*", adam(0.1)), ("/b", 0.1)),
    "strict": lambda: ANY.multi_optimizer(("*", adam(0.1)), strict="no"),
    "number-for-a-dtype": lambda: ANY.adafactor(dtype_momentum=0.9),
    "integers": lambda: ANY.adafactor(dtype_momentum="int32"),
    "index": lambda: ANY.add_axis({"w": 1.0}, True, "layers"),
    "rate": lambda: adam(None).step(ONES, adam(None).init(ONES), ONES),
    "decay-of-a-step": lambda: ADAM.step(ONES, ADAM.init(ONES), ONES, weight_decay=False),
    "no-parameters": lambda: ADAM.update(ONES, ADAM.init(ONES)),
    "no-parameters-for-a-norm": lambda: LARS.update(ONES, LARS.init(ONES)),
    "state": lambda: ADAM.update(ONES, (), ONES),
    "leaf": lambda: ADAM.update({"v": ONES}, ADAM.init({"w": ONES}), {"w": ONES}),
    "leaves": lambda: ADAM.update({"w": ONES, "v": 1.0}, ADAM.init({"w": ONES}), {"w": ONES}),
    "containers": lambda: ADAM.update([ONES], ADAM.init((ONES,)), (ONES,)),
    "text-as-a-parameter": lambda: ADAM.init({"w": {"a": "0.1"}}),
    "argument-of-a-group": lambda: create(GROUPS).apply_gradients(
        grads=ONES, hyper_params=[{"eps": 0.1, "epsilon": 0.2}, {}]
    ),
    "argument-of-another-group": lambda: create(GROUPS).apply_gradients(
        grads=ONES, hyper_params=[{}, {"b1": 0.1}]
    ),
    "too-few-groups": lambda: create(GROUPS).apply_gradients(grads=ONES, hyper_params=[{}]),
    "no-groups": lambda: create(GROUPS).apply_gradients(grads=ONES, hyper_params={"b1": 0.1}),
    "groups-without-parameters": lambda: GROUPS.update(ONES, GROUPS.init(ONES)),
    "no-step": lambda: ADAM._replace(update=len),
    "argument": lambda: create(ADAM).apply_gradients(grads=ONES, learnig_rate=0.5, b1=0.5),
    "rate-of-optax": lambda: create(optax.adam(1)).apply_gradients(grads=ONES, learning_rate=0.5),
    "rate-of-scale": lambda: create(optax.scale(1)).apply_gradients(grads=ONES, learning_rate=0.5),
    "text-of-a-step": lambda: create(ADAM).apply_gradients(grads=ONES, learning_rate="0.5"),
}


def test_a_call_that_cannot_be_meant_says_what_is(recorded: Any):
    recorded("calls.txt", CALLS)


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


def test_calls_that_are_meant_go_on():
    for rate in (0.1, 1, None, jnp.ones(()), jnp.ones(2), optax.constant_schedule(0.1)):
        assert adam(rate).hyper_params["learning_rate"] is rate
    assert list(inspect.signature(adam).parameters)[:2] == ["learning_rate", "b1"]
    state: Any = optax.inject_hyperparams(adam)(learning_rate=0.1).init({"w": 1.0})
    assert state.hyperparams.keys() >= {"learning_rate", "b1"}
