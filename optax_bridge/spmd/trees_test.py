from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from optax_bridge.recorded_test import refused
from optax_bridge.spmd.trees import (
    Summable,
    TensorSpec,
    VDict,
    cast_floats,
    check_jax_type,
    complete_partition_spec_tree,
    expand_vdicts,
    flatten_items,
    get_recursively,
    match_regex_rules,
    non_empty_leaf_merge_fn,
    prune_empty,
    prune_tree,
    raise_for_cycles,
    register_per_param_settings,
    safe_not,
    set_recursively,
    shapes,
    tree_merge,
    tree_paths,
    vectorized_tree_map,
)


class Pair(NamedTuple):
    left: object
    right: object


def test_paths():
    tree = {"a": 1, "b": [2, {"c": 3}], "n": Pair(4, None)}
    assert tree_paths(tree) == {"a": "a", "b": ["b/0", {"c": "b/1/c"}], "n": Pair("n/left", None)}
    assert flatten_items(tree, ".") == [("a", 1), ("b.0", 2), ("b.1.c", 3), ("n.left", 4)]
    assert flatten_items(tree, is_leaf=lambda x: isinstance(x, list))[1] == ("b", [2, {"c": 3}])
    assert shapes({"x": jnp.zeros((2, 3)), "y": "z"}) == {"x": (2, 3), "y": "z"}


def test_vectorized_tree_map():
    tree = {
        "x": VDict(w=jnp.ones((2, 3)), i=VDict(u=jnp.ones((2, 3, 4)))),
        "y": jnp.ones(3),
        "e": VDict(),
    }
    sums = vectorized_tree_map(lambda a, b: (a + b).sum(), tree, tree)
    assert shapes(sums) == {"x": VDict(w=(2,), i=VDict(u=(2, 3))), "y": (), "e": VDict()}
    assert isinstance(sums["x"], VDict) and isinstance(sums["x"]["i"], VDict)
    np.testing.assert_array_equal(sums["x"]["i"]["u"], np.full((2, 3), 8.0))
    assert sums["e"] is not None and repr(sums["e"]) == "VDict({})"


def test_expand_vdicts():
    inner = VDict(u=jnp.arange(6).reshape(2, 3))
    tree = expand_vdicts({"x": VDict(w=jnp.ones((2, 3)), i=inner), "e": VDict(), "y": 1})
    assert shapes(tree["x"]) == [{"w": (3,), "i": [{"u": ()}] * 3}] * 2
    assert tree["x"][1]["i"][2]["u"] == 5
    assert (tree["e"], tree["y"]) == (VDict(), 1)


@pytest.mark.parametrize(
    "tree", [VDict(a="x"), VDict(a=jnp.ones(())), VDict(a=jnp.ones(2), b=jnp.ones(3))]
)
def test_expand_vdicts_refuses(tree):
    with refused(ValueError, "VDict"):
        expand_vdicts(tree)


@pytest.mark.parametrize(
    ("axes", "spec"),
    [(None, PartitionSpec()), (("data", None), PartitionSpec("data", None))],
)
def test_sharding_of_a_spec(axes, spec):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    tensor = TensorSpec((8, 2), jnp.float32, axes)
    with refused(ValueError, "set_mesh"):
        _ = tensor.sharding
    with jax.set_mesh(mesh):
        assert tensor.sharding == NamedSharding(mesh, spec)


def test_rules_and_dicts():
    rules = [("a", 2), ("a.*", 1), ("ab", 3)]  # the first that fits the whole
    assert match_regex_rules("ab", rules=rules) == 1
    assert match_regex_rules("ba", rules=rules, default_value=3) == 3
    tree = {"a": {"b": 1}}
    assert get_recursively(tree, "a/b") == 1 and get_recursively(tree, ()) is tree
    with refused(KeyError, "a/c"):
        get_recursively(tree, "a/c/d")
    set_recursively(tree, value=2, path="x.y", separator=".")
    assert tree == {"a": {"b": 1}, "x": {"y": 2}}
    with refused(ValueError, "a/b"):
        set_recursively(tree, value=2, path="a/b/c")


def test_pruning():
    asked = []
    tree = {"a": VDict(b={}, c=1), "d": 2}
    pruned = prune_tree(tree, lambda path, part: asked.append(path) or path == "a/c")
    assert asked == ["a/b", "a/c", "a", "d"]
    assert pruned == {"a": VDict(b={}), "d": 2} and isinstance(pruned["a"], VDict)
    assert tree == {"a": VDict(b={}, c=1), "d": 2}
    assert prune_empty({"a": {"b": {}}, "c": 1}) == {"c": 1}


def test_merging():
    a, b = {"x": {"y": 1}, "z": None}, {"x": {"w": [2]}, "z": 3}
    merged = tree_merge(a, secondary=b, leaf_merge_fn=non_empty_leaf_merge_fn)
    assert merged == {"x": {"y": 1, "w": [2]}, "z": 3}
    assert merged["x"]["w"] is not b["x"]["w"]
    for other in ({"x": 1}, {"x": {"y": 2}}):
        with refused(ValueError, "x"):
            tree_merge({"x": {"y": "x"}}, secondary=other, leaf_merge_fn=non_empty_leaf_merge_fn)


def test_prefix_of_specs():
    structure = jax.tree.structure({"a": [1, 2], "b": {"c": 3}, "d": None})
    spec = PartitionSpec("x")
    full = complete_partition_spec_tree(structure, {"a": spec, "b": None, "d": None})
    assert full == {"a": [spec, spec], "b": {"c": None}, "d": None}
    assert complete_partition_spec_tree(structure, spec)["b"] == {"c": spec}
    with pytest.raises(ValueError, match="no prefix"):
        complete_partition_spec_tree(structure, {"a": spec})


def test_cycles():
    tree: dict[str, Any] = {"a": [1]}
    raise_for_cycles({"x": tree, "y": tree})
    tree["a"].append(tree)
    with refused(ValueError, "cycle"):
        raise_for_cycles(tree)


def test_types():
    check_jax_type(args=[1, None, jnp.ones(1)], kwargs={"k": {"a": 1.0}})
    with refused(ValueError, r"args\[1\]"):
        check_jax_type(args=[1, ["a"]])
    with refused(ValueError, r"^Hm .*kwargs\[k\]"):
        check_jax_type(kwargs={"k": np.ones(1)}, msg="Hm")
    assert isinstance(jnp.ones(1), Summable) and not isinstance(None, Summable)


def test_casts_and_masks():
    tree = {"a": jnp.ones(1), "b": jnp.ones(1, jnp.int32), "c": jnp.ones(1, jnp.float16)}
    dtypes = jax.tree.map(lambda x: x.dtype.name, cast_floats(tree, jnp.bfloat16))
    assert dtypes == {"a": "bfloat16", "b": "int32", "c": "float16"}
    with refused(ValueError, "float16"):
        cast_floats(tree, jnp.float16)
    assert safe_not(None) is None and not safe_not(True)
    assert register_per_param_settings({"a": 1}, description="scales") == {"a": 1}
