"""A tree that does not match the parameters: the message says where, and what to do."""

import re

import jax
import jax.numpy as jnp
import pytest
from flax.core import FrozenDict

import legacy_optim as optim

W = jnp.ones((2, 3))
PARAMS = {"a": {"w": W, "b": W}, "l": [W, W], "e": {}}

WRONG = {
    "leaf missing": ({**PARAMS, "a": {"w": W}}, "grads['a']['b']: nothing there"),
    "leaf too many": ({**PARAMS, "z": W}, "grads['z']: the parameters have nothing there"),
    "list too short": ({**PARAMS, "l": [W]}, "grads['l'][1]: nothing there"),
    "list too long": ({**PARAMS, "l": [W] * 3}, "grads['l'][2]: the parameters have nothing"),
    "leaf for a dict": ({**PARAMS, "a": 1.0}, "grads['a']: expected a dict, found a float"),
    "FrozenDict": (FrozenDict(PARAMS), "grads: expected a dict, found a FrozenDict"),
    "tuple for a list": ({**PARAMS, "l": (W, W)}, "grads['l']: expected a list, found a tuple"),
    "None": (None, "grads: expected a dict, found a NoneType"),
}
DEFINITIONS = {
    "plain": optim.Momentum(0.1),
    "MultiOptimizer": optim.MultiOptimizer((optim.t_identity.tree(), optim.Adam(0.1))),
    "WeightNorm": optim.WeightNorm(optim.Momentum(0.1)),
}
# A traversal finds its leaves in these as well; only their containers differ.
SAME_PATHS = ("FrozenDict", "tuple for a list")
CASES = [
    *(("WeightNorm", case) for case in WRONG),
    *((name, case) for name in ("plain", "MultiOptimizer") for case in ("leaf missing", "None")),
    ("MultiOptimizer", "leaf too many"),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{case}" for name, case in CASES])
def test_gradients_of_another_structure(name: str, case: str) -> None:
    grads, message = WRONG[case]
    optimizer = DEFINITIONS[name].create(PARAMS)
    with pytest.raises(ValueError, match=f"{re.escape(message)}.*respect to optimizer.target"):
        optimizer.apply_gradient(grads)


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_state_of_another_structure(definition: optim.OptimizerDef) -> None:
    optimizer = definition.create(PARAMS)
    states = {key: value for key, value in optimizer.state.param_states.items() if key != "l"}
    broken = optimizer.replace(state=optimizer.state.replace(param_states=states))
    expected = r"optimizer\.state\.param_states\['l'\]: nothing there.*init_state"
    with pytest.raises(ValueError, match=expected):
        broken.apply_gradient(PARAMS)


@pytest.mark.parametrize("case", SAME_PATHS)
def test_multi_optimizer_finds_gradients_by_path(case: str) -> None:
    optimizer = DEFINITIONS["MultiOptimizer"].create(PARAMS)
    new, expected = optimizer.apply_gradient(WRONG[case][0]), optimizer.apply_gradient(PARAMS)
    assert jax.tree.structure(new) == jax.tree.structure(expected)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, new, expected))


def test_parameters_left_alone_need_no_gradient() -> None:
    definition = optim.MultiOptimizer((optim.t_identity["a"]["w"], optim.GradientDescent(0.5)))
    new = definition.create(PARAMS).apply_gradient({"a": {"w": W, "b": None}})
    assert (new.target["a"]["w"] == 0.5).all()
    assert (new.target["a"]["b"] == 1).all()


def test_state_without_leaves_is_blamed_where_it_is_wrong() -> None:
    optimizer = optim.GradientDescent(0.1).create({"a": W, "b": W})
    broken = optimizer.replace(state=optimizer.state.replace(param_states={"a": ()}))
    with pytest.raises(ValueError, match=r"param_states\['b'\]: nothing there"):
        broken.apply_gradient({"a": W, "b": W})
