"""`check_equivalence`: every kind of side, every verdict, and what it says to bad input."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
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


@pytest.mark.parametrize("right", KINDS)
@pytest.mark.parametrize("left", KINDS)
def test_sides_of_every_kind_are_identical(left: str, right: str):
    report = check_equivalence(KINDS[left](), KINDS[right](), PARAMS, steps=3)
    assert report.verdict is Verdict.IDENTICAL, report
    assert report.first_difference is None


def test_a_pair_of_functions_is_a_side():
    rate = 0.25  # the same number in every precision
    report = check_equivalence(optax.sgd(rate), sgd_functions(rate), PARAMS, steps=STEPS)
    assert report.verdict is Verdict.IDENTICAL, report
    assert not report.state_compared


CASES = {
    "rounding": (
        legacy_optim.Adam(0.01),
        optax.adam(0.01),
        "normal",
        Verdict.ROUNDING,
        Nature.ROUNDING,
    ),
    "epsilon": (
        legacy_optim.Adagrad(0.1),
        optax.adagrad(0.1, initial_accumulator_value=0.0),
        "hostile",
        Verdict.DIFFERENT,
        Nature.ALGORITHM,
    ),
    "below rounding": (
        optax.adam(0.1, eps=1e-8),
        optax.adam(0.1, eps=3e-8),
        "normal",
        Verdict.DIFFERENT,
        Nature.ALGORITHM,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_float64_run_tells_rounding_from_another_algorithm(name: str):
    left, right, stream, verdict, nature = CASES[name]
    report = check_equivalence(left, right, PARAMS, gradients=stream, steps=STEPS)
    assert (report.verdict, report.nature) == (verdict, nature), report
    assert report.wide is not None
    assert "decided in float64" in str(report)
    assert report.first_difference is not None
    assert report.first_difference.leaf.startswith(("params", "state"))


def test_without_float64_growth_decides():
    report = check_equivalence(
        optax.adam(0.1), optax.adam(0.1, eps=1e-3), PARAMS, steps=STEPS, decide=False
    )
    assert (report.verdict, report.nature) == (Verdict.DIFFERENT, Nature.ALGORITHM)
    assert "judged by its growth" in str(report)


def test_equal_nan_and_equal_infinity_are_equal():
    report = check_equivalence(
        optax.sgd(0.1), legacy_optim.GradientDescent(0.1), PARAMS, gradients="poisoned", steps=STEPS
    )
    assert report.verdict is Verdict.IDENTICAL, report


def test_a_closed_loop_follows_its_own_gradients_with_pinned_precision():
    flag = "jax_default_matmul_precision"
    matrix = jnp.asarray(np.random.default_rng(1).standard_normal((4, 4)), jnp.float32)

    def gradients(step: int, params: Any) -> Any:
        assert getattr(jax.config, flag) == "highest"
        return jax.grad(lambda p: jnp.sum((p["a"] @ matrix) ** 2) + p["b"].sum())(params)

    report = check_equivalence(
        optax.sgd(0.01), legacy_optim.GradientDescent(0.01), PARAMS, gradients=gradients, steps=4
    )
    assert report.verdict is Verdict.IDENTICAL, report
    assert "matmul precision highest" in str(report)
    assert "each its own gradients" in str(report)


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
    trained = bridge_state(optax.sgd(0.1, momentum=0.9)).apply_gradients(grads=PARAMS)
    report = check_equivalence(trained, optax.sgd(0.1, momentum=0.9), PARAMS, steps=2)
    assert report.verdict is Verdict.DIFFERENT


def raises_at_three() -> tuple[Any, Any]:
    def step(grads: Any, state: Any, params: Any) -> Any:
        if state == 2:
            raise RuntimeError("out of steps")
        return params, state + 1

    return lambda params: 0, step


def changes_structure() -> tuple[Any, Any]:
    def step(grads: Any, state: Any, params: Any) -> Any:
        return ({"a": params["a"]} if state else params), state + 1

    return lambda params: 0, step


def grows_state() -> tuple[Any, Any]:
    return lambda params: (), lambda grads, state, params: (params, (*state, 1))


def returns_nonsense() -> tuple[Any, Any]:
    return lambda params: 0, lambda grads, state, params: params


def stream(**changes: Any) -> dict[str, Any]:
    full = {name: np.zeros((STEPS, *leaf.shape), np.float32) for name, leaf in PARAMS.items()}
    return {name: leaf for name, leaf in {**full, **changes}.items() if leaf is not None}


BAD = {
    "no side": (dict(right=3), r"right side: expected a legacy definition .* found int"),
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
        dict(right=raises_at_three()),
        r"right side \(.*\), step 3: raised RuntimeError: out",
    ),
    "structure": (
        dict(right=changes_structure()),
        r"right side \(.*\), step 2: it changed its parameters' structure: params\['b'\]",
    ),
    "state": (dict(right=grows_state()), r"right side .* step 2: it changed its state's structure"),
    "nonsense": (
        dict(right=returns_nonsense()),
        r"right side .* step 1: raised TypeError: step ret",
    ),
    "no leaves": (dict(params={}), "params: found no leaf"),
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
