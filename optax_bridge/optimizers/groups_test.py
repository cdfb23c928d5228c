"""Groups of leaves: the legacy meaning, whatever holds the parameters and whatever chooses them."""

import warnings
from typing import Any, NamedTuple, cast

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


def test_overlap_names_the_leaves_and_the_groups():
    tx = optax_bridge.multi_optimizer(
        (is_kernel, optax_bridge.sgd(0.1)),
        (lambda params: jax.tree.map(lambda _: True, params), optax_bridge.sgd(0.1)),
    )
    with pytest.raises(ValueError, match=r"\['kernel'\].*groups \[0, 1\]"):
        tx.init(CONTAINERS["dict"])


def test_a_mask_of_another_tree_names_what_differs():
    tx = optax_bridge.multi_optimizer(({"kernel": True}, optax_bridge.sgd(0.1)))
    with pytest.raises(ValueError, match=r"differ at \['bias'\]"):
        tx.init(CONTAINERS["dict"])
    tx = optax_bridge.multi_optimizer(({**SELECTORS["dict"], "scale": True}, optax_bridge.sgd(0.1)))
    with pytest.raises(ValueError, match=r"differ at \['scale'\]"):
        tx.init(CONTAINERS["dict"])
    assert optax_bridge.group_counts(CONTAINERS["nested"], {"layers": True})[0].leaves == 2
    tx = optax_bridge.multi_optimizer(({"kernel": True}, optax_bridge.sgd(0.1)))
    more = {**CONTAINERS["dict"], **{str(i): BIAS for i in range(5)}}
    with pytest.raises(ValueError, match=r"\['0', '1', '2', '3', '4'\]$"):
        tx.init(more)


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
    with pytest.raises(ValueError, match="1 entries for 2 groups"):
        state.apply_gradients(grads=state.params, hyper_params=[{"learning_rate": 0.5}])
    with pytest.raises(TypeError, match=r"hyper_params\[1\].*learnig_rate.*decay, learning_rate"):
        state.apply_gradients(grads=state.params, hyper_params=[{}, {"learnig_rate": 0.5}])


def test_a_traversal_s_mask_is_asked_with_arrays_and_has_the_form_of_the_parameters():
    seen = []
    selector = ModelParamTraversal(lambda path, value: seen.append((path, value.shape)) or True)
    mask = optax_bridge.traversal_mask(selector)
    for params in ("frozen", "boxes"):
        assert mask(CONTAINERS[params]) == type(CONTAINERS[params])(kernel=True, bias=True)
    assert seen == 2 * [("/bias", (2,)), ("/kernel", (2, 2))]


def test_built_in_functions_have_no_signature_to_look_at():
    two, one = cast(Any, (max, len))
    optax_bridge.path_mask(two)
    with pytest.raises(TypeError, match="of two arguments"):
        optax_bridge.path_mask(one)


nothing = optax_bridge.path_mask(lambda path, _: "kernl" in path)
NOTHING_SELECTED = {
    "group": (
        lambda **strict: (
            optax_bridge.multi_optimizer(
                (is_kernel, optax_bridge.sgd(0.1)),
                (ModelParamTraversal(lambda path, _: "/biass" in path), optax_bridge.sgd(0.1)),
                **strict,
            ).init
        ),
        "multi_optimizer, group 1",
    ),
    "frozen": (
        lambda **strict: optax_bridge.frozen(nothing, optax_bridge.sgd(0.1), **strict).init,
        "frozen",
    ),
    "mask": (
        lambda **strict: optax_bridge.path_mask(lambda path, _: "kernl" in path, **strict),
        "this mask",
    ),
    "traversal": (
        lambda **strict: optax_bridge.traversal_mask(
            ModelParamTraversal(lambda path, _: "kernl" in path), **strict
        ),
        "this mask",
    ),
}


@pytest.mark.parametrize("case", NOTHING_SELECTED)
def test_a_selector_that_matches_nothing_says_so(case: str):
    """Candidates are paths as a selector gets them."""
    make, who = NOTHING_SELECTED[case]
    said = f"{who}: none of the 2 parameters is selected; their paths are '/bias', '/kernel'"
    with pytest.warns(UserWarning, match=said):
        make()(CONTAINERS["dict"])
    with pytest.raises(ValueError, match=f"{said}$"):
        make(strict=True)(CONTAINERS["dict"])
    with pytest.raises(ValueError, match=r"of the 6 .*'/4', \.\.\.$"):
        make(strict=True)({str(i): BIAS for i in range(6)})
    make(strict=True)({})  # of no parameters there is nothing to select


def test_a_selector_may_be_built_in_and_parameters_a_state_of_nnx():
    leaves = ParamLeaves({"a": True, "b": {"c": False}})
    assert select(dict, leaves) == [True, False]
    variables = nnx.State({"a": nnx.Param(jnp.ones(1)), "b": {"c": nnx.Param(jnp.ones(1))}})
    traversal = ModelParamTraversal(lambda path, _: path == "/b/c")
    assert select(traversal, ParamLeaves(variables)) == [False, True]


PARAMS = {"dense": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}, "bias": jnp.ones(1)}


@pytest.mark.parametrize(
    "pattern, count", [("*/bias", 2), ("/bias", 1), ("/dense/*", 2), ("*", 3), ("bias", 0), ("", 0)]
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


@pytest.mark.parametrize("leaf", ["yes", "", 1, 0.0, None.__class__, np.ones(2, bool), np.int8(1)])
def test_a_leaf_of_a_mask_is_a_boolean(leaf: Any):
    mask = {"dense": {"kernel": True, "bias": leaf}, "bias": False}
    with pytest.raises(TypeError, match=r"mask\['dense'\]\['bias'\]: expected True or False"):
        optax_bridge.multi_optimizer((mask, optax_bridge.sgd(1.0))).init(PARAMS)


def test_numpy_s_and_jax_s_booleans_are_leaves_of_a_mask():
    mask = {"dense": {"kernel": np.bool_(True), "bias": jnp.array(False)}, "bias": True}
    assert select(mask, ParamLeaves(PARAMS)) == [True, False, True]


def test_a_predicate_that_was_not_called_is_refused():
    mask = optax_bridge.path_mask(lambda path, _: path.endswith)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"selecting '/bias': expected True or False .* function"):
        mask(PARAMS)
    with pytest.raises(TypeError, match="found str '/bias'"):
        optax_bridge.path_mask(lambda path, _: path)(PARAMS)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [{"learning_rate": 0.1}, ["learning_rate"], "a", 0.1])
def test_hyper_params_are_one_mapping_for_each_group(own: Any):
    tx = optax_bridge.multi_optimizer(("*", optax_bridge.sgd()))
    with pytest.raises(TypeError, match="hyper_params: expected a list with one mapping for each"):
        tx.step(PARAMS, tx.init(PARAMS), PARAMS, hyper_params=own)


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
