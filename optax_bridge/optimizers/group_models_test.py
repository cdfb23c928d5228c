"""Groups: frozen leaves and norms, counts, mixtures of containers, and what many groups cost."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.core import FrozenDict

import optax_bridge
from legacy_optim import ModelParamTraversal


@struct.dataclass
class Pair:
    kernel: Any
    bias: Any


class Module(nnx.Module):
    def __init__(self, kernel: Any, bias: Any):
        self.kernel, self.bias = nnx.Param(kernel), nnx.Param(bias)


KERNEL, BIAS = jnp.full((2, 2), 2.0), jnp.ones(2)
PARAMS = {
    "dict": {"kernel": KERNEL, "bias": BIAS},
    "frozen": FrozenDict({"kernel": KERNEL, "bias": BIAS}),
    "dataclass": Pair(KERNEL, BIAS),
    "boxes": {"kernel": nn.Partitioned(KERNEL, ("a", "b")), "bias": BIAS},
    "nnx": nnx.state(Module(KERNEL, BIAS)),
}
MASKS = {
    "dict": {"kernel": True, "bias": False},
    "frozen": FrozenDict({"kernel": True, "bias": False}),
    "dataclass": Pair(True, False),
    "boxes": {"kernel": nn.Partitioned(True, ()), "bias": False},
    "nnx": nnx.state(Module(True, False)),
    "path": optax_bridge.path_mask(lambda path, value: path == "/kernel" and value.ndim == 2),
}


@pytest.mark.parametrize(
    ("params", "mask"),
    [*((name, name) for name in PARAMS), *(("dict", name) for name in MASKS), ("nnx", "path")],
)
def test_any_mixture_of_containers(params: str, mask: str):
    tx = optax_bridge.multi_optimizer((MASKS[mask], optax_bridge.momentum(0.5)))
    tree = PARAMS[params]
    state = optax_bridge.TrainState.create(apply_fn=None, params=tree, tx=tx)
    new = state.apply_gradients(grads=tree)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    by_rank = {leaf.ndim: leaf for leaf in jax.tree.leaves(new.params)}
    np.testing.assert_array_equal(by_rank[2], 0.5 * KERNEL)
    np.testing.assert_array_equal(by_rank[1], BIAS)
    assert sorted(x.ndim for x in jax.tree.leaves(new.opt_state)) == [0, 0, 2]


def test_frozen_leaves_are_left_out_of_the_global_norm():
    params = PARAMS["dict"]
    grads = {"kernel": jnp.full((2, 2), 0.5), "bias": jnp.full(2, 1e6)}
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
    frozen = optax_bridge.frozen(MASKS["path"], tx)
    state = optax_bridge.TrainState.create(
        apply_fn=None, params=params, tx=optax_bridge.frozen({"kernel": False, "bias": True}, tx)
    )
    new = state.apply_gradients(grads=grads)
    np.testing.assert_array_equal(new.params["bias"], BIAS)
    np.testing.assert_array_equal(new.params["kernel"], KERNEL - 0.5)  # of norm 1: not clipped
    updates: Any = frozen.update(grads, frozen.init(params), params)[0]
    np.testing.assert_array_equal(updates["kernel"], 0)


def test_counts_per_group():
    is_bias = ModelParamTraversal(lambda path, _: "bias" in path)
    params = {"a": {"kernel": KERNEL, "bias": BIAS}, "b": {"kernel": KERNEL, "scale": BIAS}}
    counts = optax_bridge.group_counts(
        params,
        (optax_bridge.path_mask(lambda path, _: "kernel" in path), optax_bridge.sgd(0.1)),
        is_bias,
    )
    assert [tuple(count) for count in counts] == [(0, 2, 8), (1, 1, 2), (None, 1, 2)]
    with pytest.raises(ValueError, match=r"\['a'\]\['bias'\] in groups \[0, 1\]"):
        optax_bridge.group_counts(params, is_bias, is_bias)


def test_each_group_sees_its_own_leaves_only():
    """What makes the cost grow with the leaves: no group's trees hold the leaves of others."""
    params = {f"layer{i}": {"kernel": KERNEL, "bias": BIAS} for i in range(30)}
    seen = []

    def init(params: Any) -> Any:
        tree = params
        seen.append(len(jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, optax.MaskedNode))))
        return optax.EmptyState()

    probe = optax.GradientTransformation(init, lambda updates, state, params=None: (updates, state))
    groups = [
        (optax_bridge.path_mask(lambda path, _, i=i: path.startswith(f"/layer{i}/")), probe)
        for i in range(30)
    ]
    optax_bridge.multi_optimizer(*groups).init(params)
    assert seen == [2] * 30


class Counted:
    """Parameters that count how often they are taken apart."""

    def __init__(self, leaves: list[Any]):
        self.leaves = leaves


FLATTENED = []


def _flatten(node: Counted) -> tuple[list[Any], None]:
    FLATTENED.append(node)
    return node.leaves, None


jax.tree_util.register_pytree_node(Counted, _flatten, lambda _, leaves: Counted(list(leaves)))


@pytest.mark.parametrize("selector", [optax_bridge.path_mask, ModelParamTraversal])
def test_the_leaves_are_read_once_for_all_groups(selector: Any):
    """What else makes the cost grow with the leaves: a group more only asks its predicate."""
    params, passes = Counted([BIAS] * 30), []
    for number in (3, 30):
        groups = [
            (selector(lambda path, _, i=i, n=number: int(path[1:]) % n == i), optax_bridge.sgd(0.1))
            for i in range(number)
        ]
        FLATTENED.clear()
        counts = optax_bridge.group_counts(params, *groups)
        passes.append(len(FLATTENED))
        assert [count.leaves for count in counts] == [30 // number] * number + [0]
    assert passes[0] == passes[1]


def test_selectors_are_asked_once_for_parameters_of_one_form():
    asked = []
    selector = optax_bridge.path_mask(lambda path, _: asked.append(path) or True)
    tx = optax_bridge.multi_optimizer((selector, optax_bridge.sgd(0.1)))
    state = optax_bridge.TrainState.create(apply_fn=None, params=PARAMS["dict"], tx=tx)
    for _ in range(3):
        state = state.apply_gradients(grads=state.params)
    assert len(asked) == 2
