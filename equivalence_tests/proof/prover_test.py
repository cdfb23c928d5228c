import dataclasses
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
from equivalence_tests.proof import ProofError, check, unknown_schedule
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS, UNDECIDED
from equivalence_tests.proof.symbols import unwrapped

PARAMS = {"b": jnp.ones(3), "k": jnp.ones((2, 3))}
NUMBERS = {"rate": 1e-3, "decay": 0.1}


def _proved(left: Any, right: Any, verdict: str, **options: Any) -> Any:
    """The proof, whose certificate an independent evaluation agrees with."""
    proof = prove_equivalence(left, right, PARAMS, **options)
    assert proof.verdict == verdict, proof
    options.pop("relation", None)
    checked = check(proof.to_json(), left, right, PARAMS, points=1, **options)
    if verdict in (IDENTICAL, REALS):
        assert checked.values > 0
        assert verdict == REALS or checked.bits > 0
    return proof


def _chain(*pieces: Any) -> Callable[[], Any]:
    return lambda: optax.chain(*pieces)


def _weights(decay: float) -> Any:
    return optax.add_decayed_weights(decay)


# Each of Optax's aliases beside pieces that make the same.
ALIASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "sgd": (lambda: optax.sgd(0.1), lambda: optax.scale(-0.1), IDENTICAL),
    "sgd nesterov": (
        lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
        _chain(optax.trace(0.9, nesterov=True), optax.scale_by_learning_rate(0.1)),
        IDENTICAL,
    ),
    "adam": (
        lambda: optax.adam(1e-3),
        _chain(optax.scale_by_adam(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "nadam": (
        lambda: optax.nadam(1e-3),
        _chain(optax.scale_by_adam(nesterov=True), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adamw": (
        lambda: optax.adamw(1e-3, weight_decay=0.1),
        _chain(optax.scale_by_adam(), optax.scale(-1e-3), _weights(-1e-4)),
        REALS,
    ),
    "adamax": (
        lambda: optax.adamax(1e-3),
        _chain(optax.scale_by_adamax(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adamaxw": (
        lambda: optax.adamaxw(1e-3, weight_decay=0.1),
        _chain(optax.scale_by_adamax(), _weights(0.1), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "amsgrad": (
        lambda: optax.amsgrad(1e-3),
        _chain(optax.scale_by_amsgrad(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adabelief": (
        lambda: optax.adabelief(1e-3),
        _chain(optax.scale_by_belief(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adadelta": (
        lambda: optax.adadelta(1e-3, weight_decay=0.1),
        _chain(_weights(0.1), optax.scale_by_adadelta(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adagrad": (
        lambda: optax.adagrad(0.1),
        _chain(optax.scale_by_rss(), optax.scale(-0.05), optax.scale(2.0)),
        REALS,
    ),
    "lamb": (
        lambda: optax.lamb(1e-3, weight_decay=0.1),
        _chain(
            optax.scale_by_adam(eps=1e-6),
            _weights(0.1),
            optax.scale_by_trust_ratio(),
            optax.scale(-1e-3),
        ),
        IDENTICAL,
    ),
    "lars": (
        lambda: optax.lars(0.1, weight_decay=0.1),
        _chain(
            _weights(0.1),
            optax.scale_by_trust_ratio(trust_coefficient=1e-3),
            optax.scale(-0.1),
            optax.trace(0.9),
        ),
        IDENTICAL,
    ),
    "lion": (
        lambda: optax.lion(1e-3, weight_decay=0.1),
        _chain(optax.scale_by_lion(), _weights(0.1), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "noisy sgd": (
        lambda: optax.noisy_sgd(0.1, key=0),
        _chain(optax.add_noise(0.01, 0.55, 0), optax.scale(-0.1)),
        IDENTICAL,
    ),
    "radam": (
        lambda: optax.radam(1e-3),
        _chain(optax.scale_by_radam(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "rmsprop": (
        lambda: optax.rmsprop(1e-3),
        _chain(optax.scale_by_rms(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "rmsprop centered": (
        lambda: optax.rmsprop(1e-3, centered=True, momentum=0.9),
        _chain(optax.scale_by_stddev(), optax.scale(-1e-3), optax.trace(0.9)),
        IDENTICAL,
    ),
    "rprop": (
        lambda: optax.rprop(0.1),
        _chain(optax.scale_by_rprop(0.1), optax.scale(-1.0)),
        IDENTICAL,
    ),
    "sm3": (lambda: optax.sm3(0.1), _chain(optax.scale_by_sm3(0.9), optax.scale(-0.1)), IDENTICAL),
    "yogi": (
        lambda: optax.yogi(1e-3),
        _chain(optax.scale_by_yogi(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "clipped": (
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        _chain(optax.clip_by_global_norm(1.0), optax.scale(0.2), optax.scale(-0.5)),
        REALS,
    ),
    "injected": (
        lambda: optax.inject_hyperparams(optax.adam)(1e-3),
        lambda: optax.adam(1e-3),
        REALS,
    ),
    "partition": (
        lambda: optax.partition({"x": optax.adam(0.1), "y": optax.sgd(0.1)}, {"k": "x", "b": "y"}),
        lambda: optax.partition(
            {"x": optax.chain(optax.scale_by_adam(), optax.scale(-0.1)), "y": optax.scale(-0.1)},
            {"k": "x", "b": "y"},
        ),
        IDENTICAL,
    ),
    "schedule": (
        lambda: optax.adam(optax.cosine_decay_schedule(0.1, 100)),
        _chain(
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 100)),
        ),
        IDENTICAL,
    ),
}


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_its_pieces(name: str):
    left, right, verdict = ALIASES[name]
    _proved(left(), right(), verdict)


def test_hyper_params_are_any_numbers():
    proof = _proved(
        lambda hp: legacy_optim.Adam(hp["rate"], weight_decay=hp["decay"]),
        lambda hp: optax.adamw(hp["rate"], weight_decay=hp["decay"]),
        REALS,
        hyper_params=NUMBERS,
    )
    assert proof.symbols == ("rate", "decay")
    assert proof.general
    assert any("is less than 2147483647" in text for text in proof.assumptions)


def test_both_cases_of_a_question_are_proved():
    proof = _proved(
        lambda hp: legacy_optim.LAMB(hp["rate"], weight_decay=hp["decay"]),
        lambda hp: optax_bridge.lamb(unwrapped(hp["rate"]), weight_decay=unwrapped(hp["decay"])),
        IDENTICAL,
        hyper_params=NUMBERS,
    )
    assert [(dict(case.fixed), case.excluded) for case in proof.cases] == [
        ({}, ("decay != 0",)),
        ({"decay": 0.0}, ()),
    ]
    assert not proof.general  # it has norms


def test_one_case_may_be_different():
    proof = prove_equivalence(
        lambda hp: legacy_optim.LARS(hp["rate"], weight_decay=hp["decay"]),
        lambda hp: optax.lars(hp["rate"], weight_decay=hp["decay"], eps=0.0),
        PARAMS,
        hyper_params=NUMBERS,
    )
    assert [case.verdict for case in proof.cases] == [DIFFERENT, REALS]


def test_a_comparison_by_size_keeps_a_number():
    def side(hp: Any) -> Any:
        if hp["decay"] > 0:
            return optax.sgd(hp["rate"])
        return legacy_optim.Momentum(hp["rate"])

    proof = prove_equivalence(side, side, PARAMS, hyper_params=NUMBERS)
    assert proof.verdict == IDENTICAL
    assert proof.symbols == ("rate",)
    assert proof.assumptions == ("decay = 0.1, since decay: a comparison by size decides in "
                                 "Python what the program is",)  # fmt: skip


def test_a_counterexample_is_small_and_true():
    proof = prove_equivalence(legacy_optim.Adam(0.1), optax.adam(0.1, b1=0.8), PARAMS)
    example = proof.counterexample
    assert proof.verdict == DIFFERENT
    assert example is not None
    values = np.concatenate([np.ravel(value) for value in example.params.values()])
    assert set(values) <= {0.0, 1.0}
    assert example.difference > 1e-6
    assert f"after step {example.step}" in str(proof)


def _of_moments(init: Any, update: Any) -> optax.GradientTransformation:
    """A transformation whose state are moments of the shapes of the parameters."""
    return optax.GradientTransformation(
        lambda params: jax.tree.map(lambda param: init * jnp.ones_like(param), params),
        lambda updates, state, params=None: jax.tree.transpose(
            jax.tree.structure(updates), None, jax.tree.map(update, updates, state)
        ),
    )


def _running_powers(rate: float) -> optax.GradientTransformation:
    """Adam that keeps powers of its decays, as some do in place of a count."""

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"a": jnp.ones(()), "b": jnp.ones(()), "m": zeros, "v": zeros}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        a, b = state["a"] * 0.9, state["b"] * 0.999
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], updates)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], updates)
        step = jax.tree.map(
            lambda m, v: -rate * (m / (1 - a)) / (jnp.sqrt(v / (1 - b)) + 1e-8), m, v
        )
        return step, {"a": a, "b": b, "m": m, "v": v}

    return optax.GradientTransformation(init, update)


RELATED: dict[str, tuple[Any, Any, str]] = {
    "a sign": (
        optax.sgd(0.1, momentum=0.5),
        _of_moments(0.0, lambda g, m: (0.1 * (0.5 * m - g), 0.5 * m - g)),
        "state['b'] = -state[0].trace['b']",
    ),
    "the rate": (
        optax.sgd(0.1, momentum=0.5),
        _of_moments(0.0, lambda g, m: 2 * (0.5 * m - 0.1 * g,)),
        "= -1/10 * ",
    ),
    "an average": (
        optax.sgd(0.1, momentum=0.9),
        _of_moments(0.0, lambda g, m: (-(m * 0.9 + 0.1 * g), m * 0.9 + 0.1 * g)),
        "= 1/10 * ",
    ),
    "powers": (_running_powers(1e-3), optax.adam(1e-3), "state['a'] = (9/10) ** state"),
}


@pytest.mark.parametrize("name", RELATED)
def test_relations_are_found_by_trying(name: str):
    left, right, told = RELATED[name]
    proof = _proved(left, right, REALS)
    assert any(told in text for text in proof.cases[0].induction.relation), proof.cases[
        0
    ].induction.relation


def test_a_relation_may_have_hyper_params():
    def plain(hp: Any) -> Any:
        return optax.sgd(hp["rate"], momentum=hp["decay"])

    def inside(hp: Any) -> Any:
        rate, decay = unwrapped(hp["rate"]), unwrapped(hp["decay"])
        return _of_moments(0.0, lambda g, m: 2 * (decay * m - rate * g,))

    proof = _proved(plain, inside, REALS, hyper_params=NUMBERS)
    assert "= -rate * " in str(proof.cases[0].induction.relation)


def test_a_relation_of_ones_own():
    minus = _of_moments(0.0, lambda g, m: 2 * (0.5 * m - 0.1 * g,))

    def relation(held: Any) -> Any:
        count, params, state = held
        return count, params, jax.tree.map(lambda trace: -0.1 * trace, state[0].trace)

    _proved(optax.sgd(0.1, momentum=0.5), minus, REALS, relation=relation)


@pytest.mark.parametrize("every", [2, 3])
def test_accumulated_gradients(every: int):
    ours = _state(optax.adam(0.1), accumulate_every=every)
    proof = _proved(ours, optax.MultiSteps(optax.adam(0.1), every), REALS)
    assert f"{every} states, one after the other" in proof.cases[0].induction.relation[-1]
    other = optax.MultiSteps(optax.adam(0.1), every + 1)
    assert prove_equivalence(ours, other, PARAMS).verdict == DIFFERENT


def _times(factor: Callable[[Any], Any]) -> Any:
    return optax.GradientTransformation(
        lambda params: (),
        lambda updates, state, params=None: (
            jax.tree.map(lambda g: factor(g) * g, updates),
            state,
        ),
    )


def test_a_difference_in_one_dtype_alone():
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    side = _times(lambda g: -0.1 if g.dtype == jnp.bfloat16 else -0.2)
    proof = prove_equivalence(side, optax.sgd(0.2), half)
    assert proof.verdict == DIFFERENT
    assert "the programs for bfloat16, without rounding" in str(proof)
    assert prove_equivalence(side, optax.sgd(0.1), half).verdict == IDENTICAL
    assert prove_equivalence(side, optax.sgd(0.2), PARAMS).verdict == IDENTICAL
    # 0.999 is 1 in bfloat16, so that the bias correction divides by 0.
    proof = prove_equivalence(legacy_optim.Adam(1e-3), optax.adam(1e-3), half)
    assert proof.verdict == DIFFERENT
    assert "run in bfloat16" in str(proof)


def test_rounding_to_another_dtype_is_told():
    def rounded(g: jax.Array) -> jax.Array:
        size = 1 + g * g
        return -0.1 * size.astype(jnp.bfloat16).astype(g.dtype) / size

    side = _times(rounded)
    proof = prove_equivalence(side, optax.sgd(0.1), PARAMS)
    assert proof.verdict == REALS
    assert any("rounding to bfloat16 is left out" in text for text in proof.assumptions)


SCHEDULES: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "exponential": (lambda n: 0.1 * 0.5 ** (n / 10), optax.exponential_decay(0.1, 10, 0.5)),
    "warm up": (
        lambda n: jnp.where(n < 5, 0.02 * n, 0.1),
        optax.join_schedules(
            [optax.linear_schedule(0.0, 0.1, 5), optax.constant_schedule(0.1)], [5]
        ),
    ),
    "a branch": (
        lambda n: jax.lax.cond(n < 10, lambda: 0.01, lambda: 0.1),
        optax.piecewise_constant_schedule(0.01, {10: 10.0}),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_by_hand(name: str):
    ours, theirs = SCHEDULES[name]
    _proved(optax.sgd(ours), optax.sgd(theirs), REALS)


def test_any_schedule():
    rate = unknown_schedule("rate")
    _proved(optax_bridge.adam(rate), optax.adam(rate), REALS)
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
    _proved(_Own(0.1), optax_bridge.wrap_definition(_Own(0.1)), IDENTICAL)
    _proved(_Own(0.1), optax.sgd(0.1, momentum=0.5), IDENTICAL)


def _state(tx: Any, **options: Any) -> Any:
    return optax_bridge.FullTrainState.create(apply_fn=None, params=PARAMS, tx=tx, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"accumulate_every": 3}, {"ema_decay": 0.99}],
    ids=["plain", "accumulation", "ema"],
)
def test_train_states(options: dict[str, Any]):
    exact = optax_bridge.from_legacy(legacy_optim.Adam(0.1))
    _proved(_state(exact, **options), _state(optax_bridge.adam(0.1), **options), IDENTICAL)
    _proved(_state(exact, **options), _state(optax.adam(0.1), **options), REALS)


def test_loss_scaling():
    def side(tx: Any) -> Any:
        def init(params: Any) -> Any:
            return _state(tx, dynamic_scale=legacy_optim.DynamicScale()).replace(params=params)

        def step(grads: Any, state: Any, params: Any) -> Any:
            grads = jax.tree.map(lambda g: g / state.dynamic_scale.scale, grads)
            flags = [jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(grads)]
            finite = jnp.all(jnp.stack(flags))
            scale = state.dynamic_scale._next(finite)
            new = state.apply_gradients(grads=grads, finite=finite, dynamic_scale=scale)
            return new.params, new

        return init, step

    exact = optax_bridge.from_legacy(legacy_optim.Momentum(0.1))
    _proved(side(exact), side(optax_bridge.momentum(0.1)), IDENTICAL)


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


def _elementwise(function: Callable[[Any, Any], Any]) -> Any:
    return _stepping(lambda grads, state, params: (jax.tree.map(function, params, grads), state))


# Functions of a parameter and a gradient, some of which are the same.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool]] = {
    "guards differ": (
        lambda p, g: jnp.where(g == 0, 1.0, p / g),
        lambda p, g: jnp.where(g == 0, 2.0, p / g),
        False,
    ),
    "one guard": (lambda p, g: jnp.where(g == 0, 1.0, p / g), lambda p, g: p / g, False),
    "guarded alike": (
        lambda p, g: jnp.where(g == 0, 1.0, 2 * p / g),
        lambda p, g: jnp.where(g == 0, 1.0, p / (g / 2)),
        True,
    ),
    "maximum": (jnp.maximum, lambda p, g: jnp.where(p >= g, p, g), True),
    "maximum the other way": (jnp.maximum, lambda p, g: jnp.where(g > p, g, p), True),
    "sign": (lambda p, g: jnp.sign(g) * p, lambda p, g: jnp.where(g > 0, p, -p), False),
    "root of a square": (
        lambda p, g: jnp.sqrt(g * g) * p,
        lambda p, g: jnp.where(g < 0, -g, g) * p,
        True,
    ),
    "undefined where it is taken": (
        lambda p, g: jnp.where(g == 0, p / g, p),
        lambda p, g: jnp.where(g == 0, 1.0, p),
        False,
    ),
    "infinity in arithmetic": (lambda p, g: p + (jnp.inf - jnp.inf), lambda p, g: p, False),
    "infinity that is not taken": (
        lambda p, g: jnp.minimum(jnp.where(p > p + 1, jnp.inf, p), jnp.inf),
        lambda p, g: p,
        True,
    ),
    "sum of a selection": (
        lambda p, g: p * jnp.sum(jnp.where(g > 0, 2 * g, 0)),
        lambda p, g: 2 * p * jnp.sum(jnp.maximum(g, 0)),
        True,
    ),
    "selections within an unknown function": (
        lambda p, g: (
            p * (jax.lax.cummax(jnp.where(g > 0, g, 0)) + jax.lax.cummax(jnp.where(g > 0, 0, g)))
        ),
        lambda p, g: p * (jax.lax.cummax(g) + jax.lax.cummax(0 * g)),
        False,
    ),
    "one unknown function": (
        lambda p, g: p * jax.lax.cummax(jnp.where(g > 0, 2 * g, 0)),
        lambda p, g: jax.lax.cummax(2 * jnp.maximum(g, 0)) * p,
        True,
    ),
    "means": (
        lambda p, g: p * jnp.mean(g * 3),
        lambda p, g: 3 * p * jnp.sum(g) / g.size,
        True,
    ),
    "powers": (lambda p, g: (1 + g * g) ** -0.5 * p, lambda p, g: p / jnp.sqrt(1 + g**2), True),
    "a short loop": (
        lambda p, g: p - jax.lax.fori_loop(0, 3, lambda i, sum: sum + i * g, jnp.zeros_like(g)),
        lambda p, g: p - 3 * g,
        True,
    ),
    "a loop until a count is reached": (
        lambda p, g: jax.lax.while_loop(
            lambda at: at[0] < 3, lambda at: (at[0] + 1, at[1] - 0.1 / 3 * g), (0, p)
        )[1],
        lambda p, g: p - 0.1 * g,
        True,
    ),
    "a loop over rows": (
        lambda p, g: jax.lax.scan(lambda sum, row: (sum, p[0] - row), 0.0, g)[1],
        lambda p, g: p[0] - g,
        True,
    ),
    "a root and its power": (lambda p, g: p - jnp.cbrt(g) ** 3, lambda p, g: p - g, False),
    "a logarithm undone": (
        lambda p, g: p - jnp.exp(jnp.log(g * g + 1)),
        lambda p, g: p - g * g - 1,
        True,
    ),
    "stacked": (lambda p, g: jnp.stack([p - g, p], 1)[:, 0], lambda p, g: p - g, True),
    "one row for all": (lambda p, g: p[0] - g, lambda p, g: p - g, False),
    "one row for all, spread": (
        lambda p, g: p[0] - g,
        lambda p, g: jnp.broadcast_to(p[0], g.shape) - g,
        True,
    ),
    "one row chosen": (
        lambda p, g: jnp.where(g > p[:1], p[:1], g),
        lambda p, g: jnp.maximum(g, 0 * g + p[:1]) * 0 + jnp.minimum(g, p[:1]),
        True,
    ),
    "a norm of flattened arrays": (
        lambda p, g: p * jnp.vdot(g, g),
        lambda p, g: p * jnp.sum(g * g),
        True,
    ),
    "norm": (
        lambda p, g: p * jnp.linalg.norm(2 * g.ravel()),
        lambda p, g: 2 * p * jnp.sqrt(jnp.vdot(g, g)),
        True,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_real_numbers(name: str):
    left, right, same = FUNCTIONS[name]
    proof = prove_equivalence(_elementwise(left), _elementwise(right), PARAMS)
    assert (proof.verdict in (IDENTICAL, REALS)) == same, proof
    assert name != "a root and its power" or proof.verdict == UNDECIDED
    assert not [text for text in proof.assumptions if name == "guarded alike"]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (lambda p, g: p - g, lambda p, g: -g + p, True),
        (lambda p, g: p * (-g), lambda p, g: -(g * p), True),
        (lambda p, g: p - 2.0 * g, lambda p, g: p + (-2.0) * g, True),
        (lambda p, g: g**2 / 4, lambda p, g: 0.25 * (g * g), True),
        (lambda p, g: (p + g) + 1, lambda p, g: p + (g + 1), False),
        (lambda p, g: -(p - g), lambda p, g: g - p, False),  # -0.0 and 0.0 where p = g
        (lambda p, g: p + 0.0, lambda p, g: p, False),  # of -0.0
        (lambda p, g: p - 0.0, lambda p, g: p, True),
        (lambda p, g: p * 0, lambda p, g: 0 * jnp.abs(p), False),  # of NaN and infinity
        (lambda p, g: p / 3, lambda p, g: p * (1 / 3), False),
        (lambda p, g: jnp.maximum(p, g), lambda p, g: jnp.maximum(g, p), False),  # of 0.0 and -0.0
        (lambda p, g: p.astype("bfloat16").astype("float32"), lambda p, g: p, False),
        (lambda p, g: p.astype("float64").astype("float32"), lambda p, g: p, True),
        (lambda p, g: g * jnp.broadcast_to(2.0, g.shape), lambda p, g: 2.0 * g, True),
    ],
)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_every_bit(left: Callable[..., Any], right: Callable[..., Any], same: bool):
    verdict = prove_equivalence(_elementwise(left), _elementwise(right), PARAMS).verdict
    assert (verdict == IDENTICAL) == same
