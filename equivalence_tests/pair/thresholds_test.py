"""Default parameters reach every branch on a size that a side has."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests.pair.thresholds import default_params, sizes_reached
from equivalence_tests.sides.inputs.problems import odd_tree

USUAL = [np.shape(leaf) for leaf in jax.tree.leaves(odd_tree(dtypes=("float32",)))]

BRANCHES: dict[str, Callable[[Any], bool]] = {
    "a rank": lambda g: g.ndim == 6,
    "more axes": lambda g: g.ndim >= 7,
    "a size": lambda g: g.size == 640,
    "from a size on": lambda g: g.size > 1000,
    "a remainder": lambda g: g.size % 1000 == 7,
    "an axis": lambda g: g.shape[-1:] == (640,),
    "as text": lambda g: "640" in str(g.shape),
    "a shape": lambda g: g.shape in {(7, 7, 64, 64)},
    "two large axes": lambda g: g.ndim == 2 and min(g.shape) >= 100,
    "the first of two axes": lambda g: g.ndim == 2 and g.shape[0] > 200,
    "the last of three axes": lambda g: g.ndim == 3 and g.shape[-1] >= 32,
    "one of four axes": lambda g: g.ndim == 4 and g.shape[1] == 77,
}


@pytest.mark.parametrize("case", BRANCHES)
@pytest.mark.parametrize("compiled", [True, False], ids=["traced", "a plain function"])
def test_a_branch_on_the_shape_is_reached(case: str, compiled: bool):
    condition = BRANCHES[case]

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda g: -0.1 * g * (2 if condition(g) else 1), updates), state

    side: Any = optax.GradientTransformation(lambda params: (), update)
    if not compiled:
        if case in ("a rank", "more axes") or "axes" in case.partition(" of ")[2]:
            pytest.skip("a plain function is not traced, and few numbers are tried")
        side = (lambda params: (), lambda g, s, p: (update(g, s)[0], s))
    shapes = sizes_reached([side], USUAL)
    assert any(condition(np.empty(shape)) for shape in shapes), shapes
    assert not any(condition(np.empty(shape)) for shape in USUAL)


@pytest.mark.parametrize(
    "side", [legacy_optim.Adafactor(0.1), optax.adafactor(0.1)], ids=["legacy", "optax"]
)
def test_adafactor_factors_from_128_on(side: Any):
    assert sizes_reached([side], USUAL) == [(128, 128)]
    params, few = default_params(optax.sgd(0.1), side)
    assert params["reached"]["128x128"].shape == few["reached"]["128x128"].shape == (128, 128)


def test_what_asks_for_no_size_gets_the_usual_parameters():
    params, few = default_params(optax.adam(0.1), legacy_optim.LAMB(0.1))
    assert "reached" not in params and [*few] == ["kernel", "bias", "scalar"]


@pytest.mark.parametrize("threshold", [7, 640, 50001])
def test_a_number_that_a_count_is_compared_with_is_no_size(threshold: int):
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        rate = jnp.where(state == threshold, 0.2, 0.1)
        mean = jax.tree.map(lambda g: -rate * (g + g.sum() / max(g.size, 1)), updates)
        return mean, state + 1

    side = optax.GradientTransformation(lambda params: jnp.zeros((), int), update)
    assert not sizes_reached([side], USUAL)


def test_a_plain_function_is_not_called_to_find_out():
    calls = []
    side = (lambda params: (), lambda g, s, p: (calls.append(1), p, s)[1:])
    sizes_reached([side], USUAL)
    assert not calls
