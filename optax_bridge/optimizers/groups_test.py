"""Groups of leaves: the legacy meaning, whatever holds the parameters and whatever chooses them."""

import warnings
from typing import Any, NamedTuple, cast

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


KERNEL, BIAS = jnp.ones((2, 2)), jnp.ones(2)
CONTAINERS = {
    "dict": {"kernel": KERNEL, "bias": BIAS},
    "frozen": FrozenDict({"kernel": KERNEL, "bias": BIAS}),
    "named tuple": Pair(KERNEL, BIAS),
    "dataclass": Layer(KERNEL, BIAS),
    "nested": {"layers": [{"kernel": KERNEL}, {"bias": BIAS}]},
}
is_kernel = optax_bridge.path_mask(lambda path, _: path.endswith("kernel"))


@pytest.mark.parametrize("params", CONTAINERS.values(), ids=CONTAINERS)
def test_unmatched_leaves_never_move_and_have_no_state(params: Any):
    tx = optax_bridge.multi_optimizer((is_kernel, optax_bridge.momentum(0.5)))
    state: Any = tx.init(params)
    assert [leaf.shape for leaf in jax.tree.leaves(state.inner)] == [(), (2, 2)]
    updates, _ = tx.update(params, state, params)
    for new in (take_step(tx, params, state, params)[0], optax.apply_updates(params, updates)):
        assert jax.tree.structure(new) == jax.tree.structure(params)
        by_shape = {leaf.shape: leaf for leaf in jax.tree.leaves(new)}
        np.testing.assert_array_equal(by_shape[2, 2], 0.5 * KERNEL)
        np.testing.assert_array_equal(by_shape[2,], BIAS)


@pytest.mark.parametrize(
    "selector",
    [
        {"kernel": True, "bias": False},
        FrozenDict({"kernel": True, "bias": False}),
        lambda params: {"kernel": True, "bias": False},
        ModelParamTraversal(lambda path, value: path == "/kernel"),
        t_identity["kernel"],
        is_kernel,
    ],
    ids=["dict", "frozen", "function", "by name", "by item", "by path"],
)
@pytest.mark.parametrize(
    "params", [CONTAINERS["dict"], CONTAINERS["frozen"]], ids=["dict", "frozen"]
)
def test_selectors(selector: Any, params: Any):
    tx = optax_bridge.multi_optimizer((selector, optax_bridge.sgd(1.0)))
    new, _ = take_step(tx, params, tx.init(params), params)
    np.testing.assert_array_equal(new["kernel"], 0 * KERNEL)
    np.testing.assert_array_equal(new["bias"], BIAS)


@pytest.mark.parametrize("params", [Pair(KERNEL, BIAS), Layer(KERNEL, BIAS)], ids=["pair", "class"])
def test_a_traversal_by_attribute(params: Any):
    tx = optax_bridge.multi_optimizer((t_identity.kernel, optax_bridge.sgd(1.0)))
    new, _ = take_step(tx, params, tx.init(params), params)
    np.testing.assert_array_equal(new.kernel, 0 * KERNEL)
    np.testing.assert_array_equal(new.bias, BIAS)


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
    more = {**CONTAINERS["dict"], **{str(i): BIAS for i in range(5)}}
    with pytest.raises(ValueError, match=r"\['0', '1', '2', '3', '4'\]$"):
        tx.init(more)


def test_three_are_no_group():
    group: Any = (is_kernel, optax.sgd(0.1), 1)
    with pytest.raises(TypeError, match=r"groups\[0\]: expected a pair .* found tuple"):
        optax_bridge.multi_optimizer(group)


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


def test_groups_of_stock_transformations():
    tx = optax_bridge.multi_optimizer((is_kernel, optax.sgd(0.5)))
    params = CONTAINERS["dict"]
    new, _ = take_step(tx, params, tx.init(params), params)
    np.testing.assert_array_equal(new["kernel"], 0.5 * KERNEL)
    np.testing.assert_array_equal(new["bias"], BIAS)


def test_traversal_mask_for_optax_masked():
    mask = optax_bridge.traversal_mask(ModelParamTraversal(lambda path, _: "bias" in path))
    assert mask(FrozenDict({"a": {"bias": 1.0, "kernel": 2.0}})) == FrozenDict(
        {"a": {"bias": True, "kernel": False}}
    )


def test_built_in_functions_have_no_signature_to_look_at():
    two, one = cast(Any, (max, len))
    optax_bridge.path_mask(two)
    with pytest.raises(TypeError, match="of two arguments"):
        optax_bridge.path_mask(one)
    with pytest.raises(TypeError, match=r"path_mask\(function\) makes one"):
        tx = optax_bridge.multi_optimizer((lambda path, leaf: True, optax_bridge.sgd(0.1)))
        tx.init({"w": KERNEL})


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
