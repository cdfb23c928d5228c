import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from equivalence_tests import prove_equivalence
from equivalence_tests.proof import ProofError, unknown_schedule
from equivalence_tests.proof.reading.symbols import unwrap
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS, UNDECIDED
from equivalence_tests.proof.testing import (
    NUMBERS,
    PARAMS,
    assert_proved,
    direct,
    leafwise,
    train_state,
    with_schedule,
)


def test_hyper_params_are_any_numbers():
    proof = assert_proved(
        lambda hp: legacy_optim.Adam(hp["rate"], weight_decay=hp["decay"]),
        lambda hp: optax.adamw(hp["rate"], weight_decay=hp["decay"]),
        REALS,
        hyper_params=NUMBERS,
    )
    assert proof.symbols == ("rate", "decay")
    assert proof.general
    assert any("is less than 2147483647" in text for text in proof.assumptions)


def test_both_cases_of_a_question_are_proved():
    proof = assert_proved(
        lambda hp: legacy_optim.LAMB(hp["rate"], weight_decay=hp["decay"]),
        lambda hp: optax_bridge.lamb(unwrap(hp["rate"]), weight_decay=unwrap(hp["decay"])),
        IDENTICAL,
        hyper_params=NUMBERS,
    )
    assert [(dict(case.fixed), case.excluded) for case in proof.cases] == [
        ({}, ("decay != 0",)),
        ({"decay": 0.0}, ()),
    ]
    assert not proof.general  # it has norms


def test_every_combination_of_numbers_that_are_asked_for_is_a_case():
    def asking(hp: Any) -> Any:
        asked = (1 if hp["decay"] == 0 else 2) * (1 if hp["rate"] == 1 else 3)
        return optax.sgd(asked * unwrap(hp["rate"]))

    proof = prove_equivalence(asking, asking, PARAMS, hyper_params=NUMBERS)
    none, one, other = {}, {"decay": 0.0}, {"rate": 1.0}
    assert [dict(case.fixed) for case in proof.cases] == [none, one, other, one | other]
    assert proof.verdict == IDENTICAL


def test_more_cases_than_are_proved_are_refused():
    def side(hp: Any) -> Any:
        return optax.sgd(1.0 if any(hp["rate"] == n for n in range(2, 19)) else 2.0)

    with pytest.raises(ProofError, match="more than 16 cases"):
        prove_equivalence(side, side, PARAMS, hyper_params={"rate": 0.5})


@pytest.mark.parametrize("asked_by", [0, 1], ids=["left", "right"])
def test_a_number_that_either_side_asks_for_is_a_case(asked_by: int):
    def asking(hp: Any) -> Any:
        return optax.sgd(unwrap(hp["rate"]) * (1 if hp["decay"] == 0 else 2))

    sides: list[Any] = [lambda hp: optax.sgd(unwrap(hp["rate"]))] * 2
    sides[asked_by] = asking
    proof = prove_equivalence(sides[0], sides[1], PARAMS, hyper_params=NUMBERS)
    cases = [(dict(case.fixed), case.verdict) for case in proof.cases]
    assert cases == [({}, DIFFERENT), ({"decay": 0.0}, IDENTICAL)]
    assert proof.verdict == DIFFERENT


def test_a_counterexample_of_one_case_goes_before_another_that_is_not_decided():
    def side(rate: float, unknown: Callable[[Any], Any]) -> Any:
        return lambda hp: optax.sgd(rate) if hp["decay"] == 0 else direct(unknown)

    sides = side(0.1, jnp.tan), side(0.2, lambda x: jnp.sin(x) / jnp.cos(x))
    proof = prove_equivalence(*sides, PARAMS, hyper_params=NUMBERS)
    assert [case.verdict for case in proof.cases] == [UNDECIDED, DIFFERENT]
    assert proof.verdict == DIFFERENT and "after step 1" in str(proof)


OF_SETTINGS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "sign": (lambda rate, decay: jnp.abs(rate) + decay, "rate = -0.001"),
    "value": (lambda rate, decay: jnp.where(rate == 0.5, 2.0, rate) + decay, "rate = 0.5"),
    "size": (lambda rate, decay: jnp.minimum(rate, 1e6) + decay, "rate = 2000000.0"),
    "of a sum": (lambda rate, decay: jnp.maximum(rate + decay, rate), "decay = -0.1"),
}


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_settings_of_another_sign_size_or_value_are_tried(name: str):
    factor, settings = OF_SETTINGS[name]
    left, right = (
        lambda hp, f=f: optax.scale(-f(unwrap(hp["rate"]), unwrap(hp["decay"])))
        for f in (lambda rate, decay: rate + decay, factor)
    )
    params = {"k": jnp.ones(2)}
    proof = prove_equivalence(left, right, params, hyper_params=NUMBERS)
    assert proof.verdict == DIFFERENT and settings in str(proof)


def test_what_rounding_makes_0_in_time_is_assumed_not_to():
    one = with_schedule(lambda t: 1.0 + 0 * t)
    other = with_schedule(lambda t: jnp.where(0.9**t == 0, 2.0, 1.0))
    proof = prove_equivalence(one, other, {"k": jnp.ones(2)})
    assert proof.verdict == REALS
    assert any("is not rounded to 0" in text for text in proof.assumptions)


def test_a_comparison_by_size_keeps_a_number():
    def side(hp: Any) -> Any:
        if hp["decay"] > 0:
            return optax.sgd(hp["rate"])
        return legacy_optim.Momentum(hp["rate"])

    proof = prove_equivalence(side, side, PARAMS, hyper_params=NUMBERS)
    assert proof.verdict == IDENTICAL
    assert proof.symbols == ("rate",)
    assert proof.assumptions == (
        "functions are pure, as JAX asks",
        "decay = 0.1, since decay: a comparison by size decides in Python what the program is",
    )


def test_a_counterexample_is_small_and_true():
    proof = prove_equivalence(legacy_optim.Adam(0.1), optax.adam(0.1, b1=0.8), PARAMS)
    example = proof.counterexample
    assert proof.verdict == DIFFERENT
    assert example is not None
    values = np.concatenate([np.ravel(value) for value in example.params.values()])
    assert set(values) <= {0.0, 1.0}
    assert example.difference > 1e-6
    assert f"after step {example.step}" in str(proof)


def test_a_difference_in_one_dtype_alone():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    side = direct(lambda g: (-0.1 if g.dtype == jnp.bfloat16 else -0.2) * g)
    proof = prove_equivalence(side, optax.sgd(0.2), half)
    assert proof.verdict == DIFFERENT
    assert "the programs for bfloat16, without rounding" in str(proof)
    assert prove_equivalence(side, optax.sgd(0.1), half).verdict == IDENTICAL
    assert prove_equivalence(side, optax.sgd(0.2), PARAMS).verdict == IDENTICAL
    # 0.999 is 1 in bfloat16, so that the bias correction divides by 0.
    proof = prove_equivalence(legacy_optim.Adam(1e-3), optax.adam(1e-3), half)
    assert proof.verdict == DIFFERENT
    assert "run in bfloat16" in str(proof)


def test_what_a_dtype_makes_nan_before_it_is_compared():
    def one(p: jax.Array, g: jax.Array) -> jax.Array:
        rest = 1 - jnp.asarray(0.999, g.dtype)  # 0 in bfloat16
        return p - jnp.maximum(g * rest / rest, g)

    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    proof = prove_equivalence(leafwise(one), optax.sgd(1.0), half)
    assert proof.verdict == DIFFERENT and "run in bfloat16" in str(proof)
    assert_proved(leafwise(one), optax.sgd(1.0), REALS)


def test_rounding_to_another_dtype_is_told():
    def rounded(g: jax.Array) -> jax.Array:
        size = 1 + g * g
        return -0.1 * size.astype(jnp.bfloat16).astype(g.dtype) / size * g

    proof = prove_equivalence(direct(rounded), optax.sgd(0.1), PARAMS)
    assert proof.verdict == REALS
    assert any("rounding to bfloat16 is left out" in text for text in proof.assumptions)


def test_any_schedule():
    rate = unknown_schedule("rate")
    assert_proved(optax_bridge.adam(rate), optax.adam(rate), REALS)
    other = prove_equivalence(optax.sgd(rate), optax.sgd(unknown_schedule("other")), PARAMS)
    assert other.verdict == UNDECIDED  # of two functions nothing says that they differ


class _Own(legacy_optim.OptimizerDef):
    """An optimizer of one's own."""

    def __init__(self, learning_rate: Any = None):
        super().__init__(legacy_optim.Momentum(learning_rate).hyper_params)

    def init_param_state(self, param: Any) -> Any:
        return jnp.zeros_like(param)

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> tuple[Any, Any]:
        trace = 0.5 * state + grad
        return param - hyper_params.learning_rate * trace, trace


def test_a_wrapped_definition():
    assert_proved(_Own(0.1), optax_bridge.wrap_definition(_Own(0.1)), IDENTICAL)
    assert_proved(_Own(0.1), optax.sgd(0.1, momentum=0.5), IDENTICAL)


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_every": 3}, {"ema_decay": 0.99}],
    ids=["plain", "accumulation", "ema"],
)
def test_train_states(options: dict[str, Any]):
    exact = optax_bridge.from_legacy(legacy_optim.Adam(0.1))
    assert_proved(
        train_state(exact, **options), train_state(optax_bridge.adam(0.1), **options), IDENTICAL
    )
    assert_proved(train_state(exact, **options), train_state(optax.adam(0.1), **options), REALS)


def test_loss_scaling():
    def side(tx: Any) -> Any:
        def init(params: Any) -> Any:
            return train_state(tx, dynamic_scale=legacy_optim.DynamicScale()).replace(params=params)

        def step(grads: Any, state: Any, params: Any) -> Any:
            grads = jax.tree.map(lambda g: g / state.dynamic_scale.scale, grads)
            flags = [jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]
            finite = jnp.all(jnp.stack(flags))
            scale = state.dynamic_scale._next(finite)
            new = state.apply_gradients(grads=grads, finite=finite, dynamic_scale=scale)
            return new.params, new

        return init, step

    exact = optax_bridge.from_legacy(legacy_optim.Momentum(0.1))
    assert_proved(side(exact), side(optax_bridge.momentum(0.1)), IDENTICAL)


def _stepping(step: Callable[[Any, Any, Any], Any]) -> Any:
    return lambda params: jnp.zeros(()), step


BAD: dict[str, tuple[Any, Any, str]] = {
    "numpy": (
        _stepping(lambda g, s, p: (jax.tree.map(lambda a, b: a - np.asarray(b), p, g), s)),
        PARAMS,
        "left side .* hands a traced array to NumPy",
    ),
    "branch": (
        _stepping(lambda g, s, p: (p if g["b"][0] > 0 else g, s)),
        PARAMS,
        "left side .* decides in Python by the value of an array",
    ),
    "callback": (
        _stepping(
            lambda g, s, p: (
                jax.tree.map(lambda a: jax.pure_callback(lambda x: x, a, a), p),
                s,
            )
        ),
        PARAMS,
        "left side .*`pure_callback`.* cannot be seen",
    ),
    "structure": (
        _stepping(lambda g, s, p: ({"k": p["k"]}, s)),
        PARAMS,
        r"left side .*changes the structure of what it holds: \[\"\[0\]\['b'\]\"\]",
    ),
    "dtype": (
        (lambda p: jnp.int32(0), lambda g, s, p: (p, s.astype(jnp.float32))),
        PARAMS,
        r"a step makes of `\[1\]`, int32\[\], float32\[\]; a proof by induction needs one type",
    ),
    "static field": (
        (lambda p: jax.tree_util.Partial(min), lambda g, s, p: (p, jax.tree_util.Partial(max))),
        PARAMS,
        "left side .*changes what it holds apart from arrays.*min.* -> .*max",
    ),
    "weakly typed first": (
        (
            lambda p: 0,
            lambda g, s, p: (g if jnp.asarray(s).weak_type else p, jnp.zeros((), int)),
        ),
        PARAMS,
        r"left side .*first step is another program than the next, since `\[1\]` is weakly typed",
    ),
    "no side": (3, PARAMS, "left side.*expected a legacy definition.*found int"),
    "no elements": (optax.sgd(0.1), {"a": jnp.zeros((0, 3))}, r"params\['a'\].*no elements"),
    "whole numbers": (optax.sgd(0.1), {"a": jnp.zeros(3, int)}, r"params\['a'\].*int32"),
    "nothing": (optax.sgd(0.1), {}, "found no leaf"),
    "text": (optax.sgd(0.1), {"a": "x"}, r"params\['a'\]: expected an array .*, found str"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_proved_is_said(name: str):
    left, params, message = BAD[name]
    with pytest.raises(ProofError, match=message):
        prove_equivalence(left, optax.sgd(0.1), params)


UNKNOWN_FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "tan": (jnp.tan, lambda x: jnp.sin(x) / jnp.cos(x)),  # has a row
    "bessel_i0e": (jax.scipy.special.i0e, lambda x: jax.scipy.special.i0e(-x)),  # has none
}


@pytest.mark.parametrize("name", UNKNOWN_FUNCTIONS)
def test_a_function_that_is_not_known_is_named(name: str):
    left, right = map(direct, UNKNOWN_FUNCTIONS[name])
    proof = prove_equivalence(left, right, PARAMS)
    assert proof.verdict == UNDECIDED, proof
    assert re.search(rf"of .*`{name}`.* it is known only that it equals itself", str(proof))


def test_a_side_of_hyper_params_is_a_function():
    with pytest.raises(ProofError, match="right side: with hyper_params it has to be a function"):
        prove_equivalence(
            lambda hp: optax.sgd(hp["rate"]), optax.sgd(0.1), PARAMS, hyper_params=NUMBERS
        )


def test_a_proof_can_be_read():
    proof = prove_equivalence(legacy_optim.Adam(1e-3), optax.adam(1e-3), PARAMS)
    text = str(proof)
    assert text.startswith("equal over the reals, proved: left (Adam) and right")
    assert "for arrays of any shape; any number of steps" in text
    assert dataclasses.is_dataclass(proof.obligations[0])
