"""Groups of leaves: the legacy meaning, whatever holds the parameters and whatever chooses them."""

import warnings
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.core import FrozenDict

import optax_bridge
from legacy_optim import ModelParamTraversal, t_identity
from optax_bridge.exact.transformation import take_step
from optax_bridge.optimizers.selectors import ParamLeaves, select


class Pair(NamedTuple):
    kernel: Any
    bias: Any


@struct.dataclass
class Layer:
    kernel: Any
    bias: Any


class Module(nnx.Module):
    def __init__(self, kernel: Any, bias: Any):
        self.kernel, self.bias = nnx.Param(kernel), nnx.Param(bias)


KERNEL, BIAS = jnp.ones((2, 2)), jnp.ones(2)
CONTAINERS = {
    "dict": {"kernel": KERNEL, "bias": BIAS},
    "frozen": FrozenDict({"kernel": KERNEL, "bias": BIAS}),
    "named tuple": Pair(KERNEL, BIAS),
    "dataclass": Layer(KERNEL, BIAS),
    "nested": {"layers": [{"kernel": KERNEL}, {"bias": BIAS}]},
    "boxes": {"kernel": nn.Partitioned(KERNEL, ("a", "b")), "bias": BIAS},
    "nnx": nnx.state(Module(KERNEL, BIAS)),
}
is_kernel = optax_bridge.path_mask(lambda path, value: "kernel" in path and value.ndim == 2)
SELECTORS = {
    "dict": {"kernel": True, "bias": False},
    "frozen": FrozenDict({"kernel": True, "bias": False}),
    "dataclass": Layer(True, False),
    "boxes": {"kernel": nn.Partitioned(True, ()), "bias": False},  # type: ignore[arg-type]
    "nnx": nnx.state(Module(True, False)),
    "function": lambda params: {"kernel": True, "bias": False},
    "by name": ModelParamTraversal(lambda path, value: path == "/kernel"),
    "by item": t_identity["kernel"],
    "by attribute": t_identity.kernel,
    "by path": is_kernel,
    "by a traversal's mask": optax_bridge.traversal_mask(
        ModelParamTraversal(lambda path, _: path == "/kernel")
    ),
    "mapped": lambda params: jax.tree.map(lambda x: x.ndim == 2, params),
}
MIXTURES = [
    *((name, "by path") for name in CONTAINERS),
    *((name, name) for name in ("frozen", "dataclass", "boxes", "nnx")),
    *(("dict", name) for name in SELECTORS if name != "by attribute"),
    *(("frozen", name) for name in ("dict", "function", "by name", "by item")),
    *(("boxes", name) for name in ("dict", "by item", "by a traversal's mask", "mapped")),
    *(("nnx", name) for name in ("dict", "by name")),
    *((name, "by attribute") for name in ("named tuple", "dataclass")),
]


@pytest.mark.parametrize(("params", "selector"), MIXTURES)
def test_unmatched_leaves_never_move_and_have_no_state(params: str, selector: str):
    tree = CONTAINERS[params]
    tx = optax_bridge.multi_optimizer((SELECTORS[selector], optax_bridge.momentum(0.5)))
    state = optax_bridge.TrainState.create(apply_fn=None, params=tree, tx=tx)
    assert sorted(leaf.ndim for leaf in jax.tree.leaves(state.opt_state)) == [0, 0, 2]
    new = state.apply_gradients(grads=tree)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    updates, _ = tx.update(tree, state.opt_state, tree)
    for after in (new.params, optax.apply_updates(tree, updates)):
        by_rank = {leaf.ndim: leaf for leaf in jax.tree.leaves(after)}
        np.testing.assert_array_equal(by_rank[2], 0.5 * KERNEL)
        np.testing.assert_array_equal(by_rank[1], BIAS)
    if params == "boxes" and callable(SELECTORS[selector]):  # and by optax.masked
        masked = optax.masked(optax_bridge.momentum(0.5), SELECTORS[selector])
        state = optax_bridge.TrainState.create(apply_fn=None, params=tree, tx=masked)
        assert sorted(leaf.ndim for leaf in jax.tree.leaves(state.opt_state)) == [0, 2]


@pytest.mark.filterwarnings("ignore:.*none of the 1 parameters is selected")
@pytest.mark.parametrize("by", ["shape", "dtype"])
def test_parameters_of_another_form_are_grouped_anew(by: str):
    chosen = {"shape": lambda _, x: x.ndim > 1, "dtype": lambda _, x: x.dtype == jnp.float32}[by]
    tx = optax_bridge.multi_optimizer((optax_bridge.path_mask(chosen), optax_bridge.momentum(0.5)))
    other = {"shape": jnp.ones(2), "dtype": jnp.ones((2, 2), jnp.bfloat16)}[by]
    for kernel, moments in ((KERNEL, 2), (other, 1), (KERNEL, 2)):
        state: Any = tx.init({"kernel": kernel, "always": KERNEL})
        assert len(jax.tree.leaves(state.inner[0].trace)) == moments


def test_arguments_go_to_every_group_or_to_each_its_own():
    is_bias = optax_bridge.path_mask(lambda path, _: path.endswith("bias"))
    tx = optax_bridge.multi_optimizer(
        (is_kernel, optax_bridge.sgd()), (is_bias, optax_bridge.momentum(decay=0.0))
    )
    state: Any = optax_bridge.TrainState.create(apply_fn=None, params=CONTAINERS["dict"], tx=tx)
    both = state.apply_gradients(grads=state.params, learning_rate=0.25)
    assert both.params["kernel"][0, 0] == both.params["bias"][0] == 0.75
    assert int(both.opt_state.count) == 1
    own = state.apply_gradients(
        grads=state.params, hyper_params=[{"learning_rate": 0.5}, {"learning_rate": 1.0}]
    )
    assert (own.params["kernel"][0, 0], own.params["bias"][0]) == (0.5, 0.0)
    # As in flax.optim, what a call gives to all counts more than what it gives to one.
    all_of_them = state.apply_gradients(
        grads=state.params, learning_rate=0.25, hyper_params=[{"learning_rate": 0.5}, {}]
    )
    assert all_of_them.params["kernel"][0, 0] == all_of_them.params["bias"][0] == 0.75


def test_a_traversal_s_mask_is_asked_with_arrays_and_has_the_form_of_the_parameters():
    seen = []
    selector = ModelParamTraversal(lambda path, value: seen.append((path, value.shape)) or True)
    mask = optax_bridge.traversal_mask(selector)
    for params in ("frozen", "boxes"):
        assert mask(CONTAINERS[params]) == type(CONTAINERS[params])(kernel=True, bias=True)
    assert seen == 2 * [("/bias", (2,)), ("/kernel", (2, 2))]


nothing = optax_bridge.path_mask(lambda path, _: "kernl" in path)
TREE, MANY = CONTAINERS["dict"], {str(i): BIAS for i in range(6)}
ANY: Any = optax_bridge  # calls that no type allows


def init(params: Any, *selectors: Any, **strict: bool) -> Any:
    """The groups of a `multi_optimizer` after `init`, as `group_counts` prints them."""
    pairs = [(selector, optax_bridge.sgd(0.1)) for selector in selectors]
    optax_bridge.multi_optimizer(*pairs, **strict).init(params)
    return "\n".join(map(str, optax_bridge.group_counts(params, *selectors)))


def all_of(params: Any) -> Any:
    return jax.tree.map(lambda _: True, params)


SAID: dict[str, Any] = {
    "counts": lambda: init(PARAMS, "*/kernel", "/bias"),
    "counts of pairs": lambda: optax_bridge.group_counts(PARAMS, ("*/bias", optax_bridge.sgd(1))),
    "counts of a tuple": lambda: optax_bridge.group_counts((KERNEL, BIAS), (True, False)),
    "counts of masks": lambda: optax_bridge.group_counts(PARAMS, {"dense": True, "bias": False}),
    "overlap": lambda: init(TREE, is_kernel, all_of),
    "overlap of counts": lambda: optax_bridge.group_counts(PARAMS, "*/bias", "*", "/bias"),
    "mask of less": lambda: init(TREE, {"kernel": True}),
    "mask of more": lambda: init(TREE, {**SELECTORS["dict"], "scale": True}),
    "mask of much less": lambda: init({**TREE, **MANY}, {"kernel": True}),
    "mask of above": lambda: init(CONTAINERS["nested"], {"layers": True}),
    "mask of letters": lambda: init(PARAMS, {"dense": "*", "bias": False}),
    "mask of numbers": lambda: init(PARAMS, {"dense": {"kernel": 1, "bias": True}, "bias": False}),
    "mask of arrays": lambda: init(TREE, {"kernel": np.ones(2, bool), "bias": False}),
    "function of two": lambda: init(TREE, lambda path, leaf: True),
    "transformation": lambda: init(TREE, optax_bridge.sgd(0.1)),
    "not called": lambda: init(TREE, optax_bridge.path_mask(lambda path, _: path.endswith)),  # type: ignore[arg-type]
    "text": lambda: init(TREE, optax_bridge.path_mask(lambda path, _: path)),  # type: ignore[arg-type]
    "nothing": lambda: init(TREE, is_kernel, "/biass"),
    "nothing, strict": lambda: init(TREE, is_kernel, "/biass", strict=True),
    "nothing of many": lambda: init(MANY, "kernel"),
    "nothing of five": lambda: init(dict([*MANY.items()][:5]), "kernel"),
    "nothing of nothing": lambda: init({}, "kernel", strict=True),
    "nothing frozen": lambda: str(optax_bridge.frozen(nothing, optax_bridge.sgd(1)).init(TREE)),
    "nothing frozen, strict": lambda: optax_bridge.frozen(
        nothing, optax_bridge.sgd(1), strict=True
    ).init(TREE),
    "all frozen": lambda: str(optax_bridge.frozen("*", optax_bridge.sgd(1)).init(TREE)),
    "nothing masked": lambda: nothing(TREE),
    "nothing masked, strict": lambda: optax_bridge.path_mask("kernel", strict=True)(TREE),
    "nothing traversed": lambda: optax_bridge.traversal_mask(ModelParamTraversal(lambda *_: True))(
        {}
    ),
    "strict": lambda: ANY.path_mask("*", strict=1.5),
    "no traversal": lambda: ANY.traversal_mask("*/bias"),
    "no glob": lambda: ANY.path_mask(3),
    "function of one": lambda: ANY.path_mask(len),
    "built in": lambda: ANY.path_mask(max) and None,
}


def test_what_is_chosen_and_what_is_wrong_is_said(recorded: Any):
    recorded("groups.txt", SAID)


def test_a_selector_may_be_built_in_and_parameters_a_state_of_nnx():
    leaves = ParamLeaves({"a": True, "b": {"c": False}})
    assert select(dict, leaves) == [True, False]
    variables = nnx.State({"a": nnx.Param(jnp.ones(1)), "b": {"c": nnx.Param(jnp.ones(1))}})
    traversal = ModelParamTraversal(lambda path, _: path == "/b/c")
    assert select(traversal, ParamLeaves(variables)) == [False, True]


PARAMS = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "bias": jnp.ones(1)}


@pytest.mark.parametrize(
    "pattern, count",
    [("*/bias", 2), ("/bias", 1), ("/dense/*", 2), ("*", 3), ("*/Bias", 0), ("bias", 0), ("", 0)],
)
def test_a_text_is_a_glob_on_paths_wherever_leaves_are_chosen(pattern: str, count: int):
    tx = optax_bridge.multi_optimizer((pattern, optax_bridge.sgd(1.0)), strict=count > 0)
    with warnings.catch_warnings(action="ignore", category=optax_bridge.NothingSelectedWarning):
        new, _ = take_step(tx, PARAMS, tx.init(PARAMS), PARAMS)
        mask = optax_bridge.path_mask(pattern)(PARAMS)
    moved = jax.tree.map(lambda leaf: bool((leaf == 0).all()), new)
    assert moved == mask and sum(jax.tree.leaves(mask)) == count
    assert optax_bridge.group_counts(PARAMS, pattern)[0].leaves == count
    if 0 < count < 3:
        frozen_tx = optax_bridge.frozen(pattern, optax_bridge.sgd(1.0))
        kept, _ = take_step(frozen_tx, PARAMS, frozen_tx.init(PARAMS), PARAMS)
        assert jax.tree.map(lambda leaf: bool((leaf == 1).all()), kept) == mask


def test_numpy_s_and_jax_s_booleans_are_leaves_of_a_mask():
    mask = {"dense": {"kernel": np.bool_(True), "bias": jnp.array(False)}, "bias": True}
    assert select(mask, ParamLeaves(PARAMS)) == [True, False, True]


def test_frozen_leaves_are_left_out_of_the_global_norm():
    params = CONTAINERS["dict"]
    grads = {"kernel": jnp.full((2, 2), 0.5), "bias": jnp.full(2, 1e6)}
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0))
    frozen = optax_bridge.frozen(is_kernel, tx)
    state = optax_bridge.TrainState.create(
        apply_fn=None, params=params, tx=optax_bridge.frozen({"kernel": False, "bias": True}, tx)
    )
    new = state.apply_gradients(grads=grads)
    np.testing.assert_array_equal(new.params["bias"], BIAS)
    np.testing.assert_array_equal(new.params["kernel"], KERNEL - 0.5)  # of norm 1: not clipped
    updates: Any = frozen.update(grads, frozen.init(params), params)[0]
    np.testing.assert_array_equal(updates["kernel"], 0)
