"""MultiOptimizer: which leaves each group holds, their states, overrides and errors."""

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from flax.core import FrozenDict

import legacy_optim as optim
from legacy_optim.momentum import _MomentumParamState

T = optim.t_identity
W = jnp.ones((2, 3))


class Pair(NamedTuple):
    w: Any
    b: Any


@struct.dataclass
class Layer:
    w: Any
    b: Any


def flax_traversal() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return flax.traverse_util.ModelParamTraversal(lambda path, _: path.endswith("/w"))


class DuckTyped:
    """A traversal of a user's own that only iterates."""

    def iterate(self, inputs: Any) -> Iterator[Any]:
        yield inputs["w"]


# traversal, parameters; only `w` is selected
CONTAINERS = {
    "dict": (T["w"], {"w": W, "b": W}),
    "empty sub-dict": (T["w"], {"w": W, "b": W, "c": {}}),
    "None": (T["w"], {"w": W, "b": None}),
    "FrozenDict": (T["w"], FrozenDict({"w": W, "b": W})),
    "nested FrozenDict": (T["a"]["w"], {"a": FrozenDict({"w": W, "b": W})}),
    "list": (T[0], [W, W]),
    "tuple": (T[0], (W, W)),
    "tuple from its end": (T[-1], (W, W)),
    "NamedTuple": (T.w, Pair(W, W)),
    "dataclass": (T.w, Layer(W, W)),
    "scalars": (T["w"], {"w": 1.0, "b": 2.0}),
    "NumPy": (T["w"], {"w": np.ones(2, np.float32), "b": np.ones(2, np.float32)}),
    "by path": (optim.ModelParamTraversal(lambda path, _: path.endswith("/w")), {"w": W, "b": W}),
    "by rank": (T.tree().filter(lambda leaf: leaf.ndim == 2), {"w": W, "b": jnp.ones(3)}),
    "by size": (T.tree().filter(lambda leaf: leaf.size == 6), {"w": W, "b": jnp.ones(3)}),
    "by dtype": (
        T.tree().filter(lambda leaf: leaf.dtype == jnp.bfloat16),
        {"w": W.astype(jnp.bfloat16), "b": W},
    ),
    "by shape": (T.tree().filter(lambda leaf: leaf.shape == (2, 3)), {"w": W, "b": W.T}),
    "Flax's own": (flax_traversal(), {"w": W, "b": W}),
    "duck-typed": (DuckTyped(), {"w": W, "b": W}),
}


def test_selected_leaves_move_and_the_others_stay(subtests: pytest.Subtests) -> None:
    for traversal, params in CONTAINERS.values():
        with subtests.test(str(traversal)):
            step = jax.jit(lambda optimizer, grads: optimizer.apply_gradient(grads))
            optimizer = optim.MultiOptimizer((traversal, optim.Momentum(0.5))).create(params)
            for count in (1, 2):
                optimizer = step(optimizer, params)
                assert optimizer.state.step == count
            treedef = jax.tree.structure(params)
            assert jax.tree.structure(optimizer.target) == treedef
            before, after = jax.tree.leaves(params), jax.tree.leaves(optimizer.target)
            states = treedef.flatten_up_to(optimizer.state.param_states)
            moved = [not np.array_equal(old, new) for old, new in zip(before, after, strict=True)]
            assert sum(moved) == 1
            assert [isinstance(state, _MomentumParamState) for state in states] == moved
            assert [state is None for state in states] == [not move for move in moved]


OVERRIDES = {
    "none": ({}, (1.0, 10.0)),
    "to every group": ({"learning_rate": 2.0}, (2.0, 2.0)),
    "per group": ({"hyper_params": [3.0, 4.0]}, (3.0, 4.0)),
    "tuple": ({"hyper_params": (3.0, 4.0)}, (3.0, 4.0)),
}


@pytest.mark.parametrize(("overrides", "rates"), OVERRIDES.values(), ids=OVERRIDES)
def test_overrides(overrides: dict[str, Any], rates: tuple[float, float]) -> None:
    definition = optim.MultiOptimizer(
        (T["a"], optim.GradientDescent(1.0)), (T["b"], optim.GradientDescent(10.0))
    )
    optimizer = definition.create({"a": 0.0, "b": 0.0, "c": {}})
    if given := overrides.get("hyper_params"):
        pairs = zip(definition.hyper_params, given, strict=True)
        own = type(given)(hp.replace(learning_rate=rate) for hp, rate in pairs)
        overrides = {"hyper_params": own}
    new = optimizer.apply_gradient({"a": -1.0, "b": -1.0, "c": {}}, **overrides)
    assert (new.target["a"], new.target["b"]) == rates
    assert new.state == optim.OptimizerState(1, {"a": (), "b": (), "c": {}})
    assert [hp.learning_rate for hp in definition.hyper_params] == [1.0, 10.0]


def test_focus_is_a_single_group() -> None:
    params = {"a": 0.0, "b": 0.0}
    optimizer = optim.GradientDescent(learning_rate=1.0).create(params, focus=T["a"])
    assert isinstance(optimizer.optimizer_def, optim.MultiOptimizer)
    assert optimizer.state == optim.OptimizerState(0, {"a": (), "b": None})
    new = optimizer.apply_gradient({"a": -1.0, "b": -2.0})
    assert new.target == {"a": 1.0, "b": 0.0}
    assert new.state == optim.OptimizerState(1, {"a": (), "b": None})


NESTED = {
    "WeightNorm": (T["k"].tree(), lambda: optim.WeightNorm(optim.Momentum(0.5))),
    "MultiOptimizer": (
        T["k"].tree(),
        lambda: optim.MultiOptimizer((T.each(), optim.Momentum(0.5))),
    ),
}


@pytest.mark.parametrize(("traversal", "definition"), NESTED.values(), ids=NESTED)
def test_groups_may_nest(traversal: Any, definition: Any) -> None:
    params = {"k": {"p": W, "q": 2 * W}, "b": jnp.ones(3)}
    pairs = (traversal, definition()), (T["b"], optim.Momentum(0.5))
    optimizer = optim.MultiOptimizer(*pairs).create(params)
    grads = jax.tree.map(
        lambda leaf: jnp.arange(leaf.size, dtype=float).reshape(leaf.shape), params
    )
    slow = optimizer.apply_gradient(grads, learning_rate=0.25).target
    alone = definition().create(tuple(params["k"].values()))
    expected = alone.apply_gradient(tuple(grads["k"].values()), learning_rate=0.25).target
    for leaf, other in zip(slow["k"].values(), expected, strict=True):
        assert (leaf == other).all()
    assert not (optimizer.apply_gradient(grads).target["k"]["p"] == slow["k"]["p"]).all()


def test_a_selected_none_is_no_parameter() -> None:
    everything = optim.ModelParamTraversal(lambda *_: True)
    optimizer = optim.Momentum(0.5).create({"w": W, "b": None}, focus=everything)
    new = optimizer.apply_gradient({"w": W, "b": None})
    assert (new.target["w"] == 0.5).all()
    assert new.target["b"] is None


def test_a_group_may_be_empty() -> None:
    nothing = T.tree().filter(lambda leaf: leaf.ndim == 7)
    definitions = (nothing, optim.WeightNorm(optim.Adam(0.1))), (T["w"], optim.Momentum(0.5))
    optimizer = optim.MultiOptimizer(*definitions).create({"w": W}).apply_gradient({"w": W})
    assert (optimizer.target["w"] == 0.5).all()
