"""`check_equivalence`: every kind of side, every verdict, and what it says to bad input."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import FrozenDict
from flax.training import train_state

import legacy_optim
import optax_bridge
from equivalence_tests import EquivalenceError, Nature, Verdict, check_equivalence

PARAMS = {
    "a": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32),
    "b": np.zeros(3, np.float32),
}
STEPS = 10


def sgd_functions(rate: float) -> tuple[Any, Any]:
    """In place and without JAX, as another framework's optimizer would be."""

    def step(grads: Any, state: dict[str, int], params: Any) -> Any:
        state["step"] += 1
        return {
            name: params[name] - params[name].dtype.type(rate) * grads[name] for name in params
        }, state

    return lambda params: {"step": 0}, step


def flax_state(tx: optax.GradientTransformation) -> train_state.TrainState:
    return train_state.TrainState.create(apply_fn=lambda: None, params=PARAMS, tx=tx)


def bridge_state(tx: optax.GradientTransformation) -> optax_bridge.TrainState:
    return optax_bridge.TrainState.create(apply_fn=None, params=PARAMS, tx=tx)


KINDS = {
    "definition": lambda: legacy_optim.Momentum(0.1),
    "optimizer": lambda: legacy_optim.Momentum(0.1).create(PARAMS),
    "transformation": lambda: optax.sgd(0.1, momentum=0.9),
    "flax TrainState": lambda: flax_state(optax.sgd(0.1, momentum=0.9)),
    "TrainState": lambda: bridge_state(optax_bridge.momentum(0.1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_sides_of_every_kind_are_identical(kind: str):
    report = check_equivalence(KINDS[kind](), legacy_optim.Momentum(0.1), PARAMS, steps=3)
    assert report.verdict is Verdict.IDENTICAL, report
    assert report.first_difference is None


def in_place_functions(rate: float) -> tuple[Any, Any]:
    """As torch's optimizers do: parameters, and the gradients too, are changed where they are."""

    def step(grads: Any, state: Any, params: Any) -> Any:
        for name in params:
            grads[name] *= rate
            params[name] -= grads[name]
        return params, state

    return lambda params: None, step


@pytest.mark.parametrize("functions", [sgd_functions, in_place_functions])
def test_a_pair_of_functions_is_a_side_and_changes_nothing_but_its_own(functions: Any):
    before = jax.tree.map(np.copy, PARAMS)
    rate = 0.25  # the same number in every precision
    sides = (functions(rate), optax.sgd(rate))
    for left, right in (sides, sides[::-1]):
        report = check_equivalence(left, right, PARAMS, gradients="normal", steps=STEPS)
        assert report.verdict is Verdict.IDENTICAL, report
        assert not report.state_compared
    np.testing.assert_array_equal(before["a"], PARAMS["a"])


def test_a_container_may_change_where_its_paths_do_not():
    def step(grads: Any, state: int, params: Any) -> Any:
        moved = {name: params[name] - np.float32(0.25) * grads[name] for name in params}
        return (FrozenDict(moved) if state else moved), state + 1

    report = check_equivalence(
        optax.sgd(0.25), (lambda params: 0, step), PARAMS, steps=3, decide=False
    )
    assert report.verdict is Verdict.IDENTICAL, report


class OfAnotherOptax(NamedTuple):
    """A transformation whose class is not the present one's."""

    init: Any
    update: Any


@pytest.mark.parametrize(
    "left",
    [OfAnotherOptax(*optax.sgd(0.25)), optax.MultiSteps(optax.sgd(0.25), 1)],
    ids=["class", "MultiSteps"],
)
def test_whatever_has_init_and_update_is_a_transformation(left: Any):
    report = check_equivalence(left, optax.sgd(0.25), PARAMS, steps=3)
    assert report.verdict is Verdict.IDENTICAL, report


def _no_more_than(rows: list[Any]) -> Iterator[Any]:
    yield from rows
    raise AssertionError("more than were asked for")


@pytest.mark.parametrize(("kind", "steps"), [(list, None), (iter, None), (_no_more_than, 3)])
def test_gradients_may_be_a_tree_for_each_step(kind: Any, steps: int | None):
    sides = optax.sgd(0.1), legacy_optim.GradientDescent(0.1)
    report = check_equivalence(*sides, PARAMS, gradients=kind([PARAMS] * 3), steps=steps)
    assert report.verdict is Verdict.IDENTICAL, report
    assert report.steps == 3


@pytest.mark.parametrize(
    ("leaf", "dtype"), [(np.linspace(0, 1, 3), "float64"), (1.5, "float32")], ids=["f64", "number"]
)
def test_the_dtype_of_the_parameters_is_that_of_the_run(leaf: Any, dtype: str):
    def step(grads: Any, state: Any, params: Any) -> Any:
        assert params["a"].dtype == grads["a"].dtype == dtype
        return {"a": params["a"] - params["a"].dtype.type(0.25) * grads["a"]}, state

    report = check_equivalence(
        optax.sgd(0.25), (lambda params: None, step), {"a": leaf}, steps=STEPS
    )
    assert report.verdict is Verdict.IDENTICAL, report


def test_keys_in_a_state_are_compared_and_names_are_not():
    keys = [jax.random.key(0), jax.random.key(0), jax.random.key(1)]
    noisy = [optax.noisy_sgd(0.1, key=key) for key in keys]
    assert check_equivalence(noisy[0], noisy[1], PARAMS, steps=2).verdict is Verdict.IDENTICAL
    assert check_equivalence(noisy[0], noisy[2], PARAMS, steps=2).verdict is Verdict.DIFFERENT
    named = (lambda params: {"name": "sgd"}, sgd_functions(0.25)[1])
    stands = (named[0], lambda grads, state, params: (params, state))
    report = check_equivalence(stands, stands, PARAMS, steps=2)
    assert (report.verdict, report.state_compared) == (Verdict.IDENTICAL, False)


def test_parameters_that_move_once_they_are_smaller_are_not_at_rest(recorded: Any):
    params = {"large": np.full(3, 3e5, np.float32)}
    sides = optax.sgd(1e-3), legacy_optim.GradientDescent(1e-3)
    report = check_equivalence(*sides, params, gradients="normal", steps=8)
    recorded("equivalence.txt", {"hardly moves": report}, some=True, rounded=True)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan], ids=str)
def test_what_is_done_with_any_number_that_is_not_finite_is_seen(number: Any, recorded: Any):
    def skipping(g: Any) -> Any:
        hit = jnp.isnan(g) if np.isnan(number) else g == number
        return jnp.where(hit, 0, -0.1 * g)

    side = optax.stateless(lambda updates, params: jax.tree.map(skipping, updates))
    report = check_equivalence(side, optax.sgd(0.1), PARAMS)
    recorded("equivalence.txt", {str(number): report}, some=True, rounded=True)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan], ids=str)
def test_in_a_small_tree_each_number_that_is_not_finite_comes_first_once(number: Any, size: int):
    def left_out(g: Any) -> Any:
        return jnp.where(jnp.isnan(g) if np.isnan(number) else g == number, 0, g)

    filtered = optax.stateless(lambda updates, params: jax.tree.map(left_out, updates))
    sides = optax.chain(filtered, optax.adam(0.1)), optax.adam(0.1)
    assert check_equivalence(*sides, {"w": jnp.ones(size)}).verdict is Verdict.DIFFERENT


def test_the_state_of_a_train_state_is_widened_with_its_parameters():
    """Else float32 moments in the float64 run would pass for another algorithm."""
    left, right = (
        bridge_state(tx).apply_gradients(grads=PARAMS)
        for tx in (optax.adam(0.1), optax_bridge.adam(0.1))
    )
    report = check_equivalence(left, right, PARAMS, steps=STEPS)
    assert (report.verdict, report.nature) == (Verdict.ROUNDING, Nature.ROUNDING), report


def test_rounding_that_can_be_seen_is_not_called_rounding_only(recorded: Any):
    """Legacy Adam never moves in bfloat16: twice the scale apart, and rounding all the same."""
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    report = check_equivalence(legacy_optim.Adam(0.1), optax.adam(0.1), half, steps=STEPS)
    assert (report.verdict, report.nature) == (Verdict.DIFFERENT, Nature.ROUNDING), report
    recorded("equivalence.txt", {"in bfloat16": report}, some=True, rounded=True)


@pytest.mark.parametrize(("other", "named"), [(0.1 * (1 + 2e-7), True), (0.11, False)])
def test_a_constant_held_in_float32_is_named_as_a_cause(other: float, named: bool, recorded: Any):
    report = check_equivalence(optax.sgd(0.1), optax.sgd(other), PARAMS, steps=STEPS)
    recorded("equivalence.txt", {f"constant, {named}": report}, some=True, rounded=True)


@pytest.mark.parametrize(
    ("left", "right", "verdict"),
    [
        (legacy_optim.Adam(0.01), optax.adam(0.01), Verdict.ROUNDING),
        (optax.adam(0.1, eps=1e-8), optax.adam(0.1, eps=3e-8), Verdict.DIFFERENT),
    ],
    ids=["rounding", "below rounding"],
)
def test_a_float64_run_tells_rounding_from_another_algorithm(
    left: Any, right: Any, verdict: Any, recorded: Any
):
    report = check_equivalence(left, right, PARAMS, gradients="normal", steps=STEPS)
    nature = Nature.ROUNDING if verdict is Verdict.ROUNDING else Nature.ALGORITHM
    assert (report.verdict, report.nature) == (verdict, nature), report
    recorded("equivalence.txt", {f"float64: {verdict.value}": report}, some=True, rounded=True)


def test_without_float64_growth_decides(recorded: Any):
    report = check_equivalence(
        optax.adam(0.1), optax.adam(0.1, eps=1e-3), PARAMS, steps=STEPS, decide=False
    )
    recorded("equivalence.txt", {"growth decides": report}, some=True, rounded=True)


def test_a_closed_loop_follows_its_own_gradients_with_pinned_precision(recorded: Any):
    flag = "jax_default_matmul_precision"
    matrix = jnp.asarray(np.random.default_rng(1).standard_normal((4, 4)), jnp.float32)

    def gradients(step: int, params: Any) -> Any:
        assert getattr(jax.config, flag) == "highest"
        return jax.grad(lambda p: jnp.sum((p["a"] @ matrix) ** 2) + p["b"].sum())(params)

    report = check_equivalence(
        optax.sgd(0.01), legacy_optim.GradientDescent(0.01), PARAMS, gradients=gradients, steps=4
    )
    recorded("equivalence.txt", {"closed loop": report}, some=True, rounded=True)


def test_a_report_has_a_picture_json_and_html():
    report = check_equivalence(optax.adam(0.1), optax.adam(0.1, eps=1e-3), PARAMS, steps=STEPS)
    content = json.loads(report.to_json())
    assert content["verdict"] == "different"
    assert len(content["ulp_by_step"]) == STEPS
    assert content["first_difference"]["leaf"] == report.first_difference.leaf  # type: ignore[union-attr]
    assert set(content["environment"]["versions"]) >= {"jax", "optax"}
    assert report.plot().startswith("<svg")
    assert report.plot()._repr_svg_() == report.plot()
    assert "<svg" in report._repr_html_()


def test_the_state_of_a_half_trained_side_is_kept():
    """A trace is another state, and a count alone is no rounding."""
    for tx in (optax.sgd(0.1, momentum=0.9), optax.adam(0.1)):
        trained = bridge_state(tx).apply_gradients(grads=PARAMS)
        report = check_equivalence(trained, tx, PARAMS, steps=2)
        assert (report.verdict, report.nature) == (Verdict.DIFFERENT, Nature.ALGORITHM), report
    old = legacy_optim.Momentum(0.1)
    trained = old.create(PARAMS).apply_gradient(PARAMS)
    assert check_equivalence(trained, old, PARAMS, steps=2).verdict is Verdict.DIFFERENT


def test_a_rate_in_a_state_is_the_same_rate_in_float64():
    """Else 0.1 in float32 against 0.1 in float64 would pass for another algorithm."""
    left = bridge_state(optax.inject_hyperparams(optax.adam)(learning_rate=0.1))
    report = check_equivalence(left, bridge_state(optax_bridge.adam(0.1)), PARAMS, steps=STEPS)
    assert (report.verdict, report.nature) == (Verdict.ROUNDING, Nature.ROUNDING), report


@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_parameters_that_hardly_move_are_tried_smaller(factor: float):
    """A step of Adam is below half of bfloat16's spacing at 0.5."""
    params = {"a": np.full(3, 0.5, jnp.bfloat16)}
    if factor == 1.0:  # one that moves hides no other
        params["b"] = np.full(3, 2.0**-9, jnp.bfloat16)
    right = optax.chain(optax.adam(1e-3), optax.scale(factor))
    report = check_equivalence(optax.chain(optax.adam(1e-3), optax.scale(1.0)), right, params)
    assert "also started from: parameters / 256" in str(report)
    assert (report.verdict is Verdict.DIFFERENT) == (factor != 1.0)


def test_a_decay_that_only_a_sign_shows_is_found():
    """A gradient of 1e6 gives the moment its sign for thousands of steps, whatever the decay."""
    left, right = (optax.lion(0.25, b1=b1, weight_decay=0.0) for b1 in (0.9, 0.93))
    report = check_equivalence(left, right, PARAMS, steps=96)
    assert report.verdict is Verdict.DIFFERENT, report


def test_a_run_that_is_not_finite_says_from_where(recorded: Any):
    """Adam's epsilon is 0 in float16."""
    params = {"a": np.full(3, 0.5, np.float16)}
    report = check_equivalence(optax.adam(1e-3), optax.adam(1e-3), params)
    recorded("equivalence.txt", {"not finite": report}, some=True, rounded=True)


def functions(new_params: Callable[[int, Any], Any]) -> tuple[Any, Any]:
    """A side that makes its parameters from the number of the step, from 0, and those before."""
    return lambda params: 0, lambda grads, state, params: (new_params(state, params), state + 1)


GROWING = optax.GradientTransformation(
    lambda params: {"count": jnp.zeros([], jnp.int32)},
    lambda updates, state, params=None: (updates, {**state, "trace": updates}),
)


def stream(**changes: Any) -> dict[str, Any]:
    full = {name: np.zeros((STEPS, *leaf.shape), np.float32) for name, leaf in PARAMS.items()}
    return {name: leaf for name, leaf in {**full, **changes}.items() if leaf is not None}


BAD = {
    "no side": (dict(right=3), r"right side: expected a legacy definition .* found int"),
    "no whole number": (dict(steps=2.5), "steps is 2.5; expected a whole number"),
    "no bound": (dict(bound=float("nan")), "bound is nan; expected a distance in ULP"),
    "not called": (dict(right=optax.sgd), "right side: .*found function 'sgd': call it"),
    "one gradient": (
        dict(gradients=PARAMS),
        r"gradients\['a'\]: expected shape \(steps, 3, 4\), a gradient for each step .*\(3, 4\)",
    ),
    "list": (
        dict(gradients=[PARAMS, {"a": PARAMS["a"]}]),
        r"gradients\['b'\]: expected shape \(3,\), found no such leaf \(step 2 of the list\)",
    ),
    "no steps": (dict(steps=0), "steps is 0; expected at least 1"),
    "too few": (dict(gradients=stream(), steps=99), r"gradients\['a'\]: has 10 steps"),
    "missing leaf": (dict(gradients=stream(b=None)), r"gradients\['b'\]: .* found no such leaf"),
    "extra leaf": (dict(gradients=stream(c=np.zeros(STEPS))), r"gradients\['c'\]: found shape"),
    "shape": (
        dict(gradients=stream(b=np.zeros((STEPS, 4), np.float32))),
        r"gradients\['b'\]: expected shape \(3,\), found \(4,\)",
    ),
    "dtype": (
        dict(gradients=stream(b=np.zeros((STEPS, 3), np.float16))),
        r"gradients\['b'\]: expected dtype float32, found float16",
    ),
    "stream": (dict(gradients="odd"), "gradients='odd': expected one of normal"),
    "raises": (
        dict(right=functions(lambda step, params: params if step < 2 else params["out"])),
        r"right side \(.*\), step 3: raised KeyError: 'out' \(equivalence_test.py:\d+\)$",
    ),
    "structure": (
        dict(right=functions(lambda step, params: {"a": params["a"]} if step else params)),
        r"right side \(.*\), step 2: it changed its parameters' structure: params\['b'\]",
    ),
    "state": (
        dict(right=(lambda params: (), lambda grads, state, params: (params, (*state, 1)))),
        r"right side .* step 2: it changed its state's structure",
    ),
    "state at once": (
        dict(right=GROWING),
        r"right side \(GradientTransformation\), step 1: it changed its state's structure: state\[",
    ),
    "uneven": (
        dict(gradients=stream(b=np.zeros((STEPS - 1, 3), np.float32))),
        r"gradients\['b'\]: has 9 steps along its first axis, expected 10 as other leaves have",
    ),
    "nonsense": (
        dict(right=(lambda params: 0, lambda grads, state, params: params)),
        r"right side .* step 1: raised TypeError: step ret",
    ),
    "no leaves": (dict(params={}), "params: found no leaf"),
    "no elements": (dict(params={"a": np.zeros((0, 3))}), r"found no element in params\['a'\]"),
    "integers": (dict(params={"n": np.zeros(3, np.int32)}), r"params\['n'\]: expected a floating"),
    "closed loop": (
        dict(gradients=lambda step, params: {"a": params["a"]}),
        r"left side \(.*\), step 1: gradients are not like params: params\['b'\]",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_side_step_and_leaf(name: str):
    changes, message = BAD[name]
    given = {"left": optax.sgd(0.1), "right": optax.sgd(0.1), "params": PARAMS, **changes}
    with pytest.raises(EquivalenceError, match=message):
        check_equivalence(given.pop("left"), given.pop("right"), given.pop("params"), **given)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("*/none", "at rest on both sides: all parameters, so nothing is compared"),
        ("*/b", "1 of 2 parameters, about which the runs say nothing: params['a']"),
        ("*", None),
    ],
)
@pytest.mark.filterwarnings("ignore:multi_optimizer, group 0. none of")
def test_parameters_that_no_step_moves_are_said(pattern: str, said: str | None):
    left, right = (optax_bridge.multi_optimizer((pattern, optax.sgd(0.1))) for _ in range(2))
    report = check_equivalence(left, right, PARAMS, gradients="normal", steps=3)
    assert report.verdict is Verdict.IDENTICAL
    assert (said or "") in str(report) and ("at rest" in str(report)) == (said is not None)


def test_a_parameter_that_one_side_moves_is_not_at_rest():
    frozen = optax_bridge.multi_optimizer(("*/b", optax.sgd(0.1)))
    report = check_equivalence(frozen, optax.sgd(0.1), PARAMS, gradients="normal", steps=3)
    assert (report.verdict, report.at_rest) == (Verdict.DIFFERENT, ())
