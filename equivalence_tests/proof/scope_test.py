import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests import prove_equivalence
from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.scope import with_axes, with_other_sizes
from equivalence_tests.proof.testing import leafwise
from optax_bridge import from_legacy

PARAMS = {"kernel": jnp.zeros((4, 3)), "bias": jnp.zeros(3)}


def doubled_where(condition: Callable[[Any], bool]) -> optax.GradientTransformation:
    """Gradient descent at 0.1, at 0.2 for the gradients for which Python says so."""
    return optax.stateless(
        lambda grads, params: jax.tree.map(lambda g: -0.1 * g * (2 if condition(g) else 1), grads)
    )


ONE_RANK = {
    "ndim ==": lambda g: g.ndim == 6,
    "ndim >=": lambda g: g.ndim >= 6,
    "len of the shape": lambda g: len(g.shape) > 5,
    "np.ndim": lambda g: np.ndim(g) == 6,
    "len": lambda g: g.ndim > 5 and len(g) > 5,
}
ONE_SIZE = {
    "getattr": lambda g: getattr(g, "sha" + "pe") == (640,),
    "text of the array": lambda g: "640" in repr(g),
    "type": lambda g: jax.typeof(g) == jax.ShapeDtypeStruct((640,), g.dtype),
    "in a set of shapes and dtypes": lambda g: (
        jax.ShapeDtypeStruct(g.shape, g.dtype) in {jax.ShapeDtypeStruct((640,), g.dtype)}
    ),
    "aval": lambda g: str(g.aval) == "float32[640]",
    "no axes": lambda g: g.ndim == 0,  # a number of axes that is among those tried
    "four axes": lambda g: g.ndim == 4,
    "five axes": lambda g: g.ndim == 5,
    "np.shape": lambda g: np.shape(g) == (640,),
    "jnp.size": lambda g: jnp.size(g) == 640,
}


@pytest.mark.parametrize("name", ONE_RANK)
def test_a_side_that_looks_at_the_number_of_axes_is_proved_for_those_that_were_tried(name: str):
    proof = prove_equivalence(doubled_where(ONE_RANK[name]), optax.sgd(0.1), PARAMS)
    assert proof.scope.coverage == "0 to 5 axes"
    assert "for arrays of 0 to 5 axes of any length" in str(proof)
    assert any("scope_test.py" in look for look in proof.scope.looks)


@pytest.mark.parametrize("name", ONE_SIZE)
def test_a_side_that_asks_for_a_size_is_proved_for_the_shapes_given(name: str):
    proof = prove_equivalence(doubled_where(ONE_SIZE[name]), optax.sgd(0.1), PARAMS)
    assert proof.verdict == "identical"
    assert proof.scope.coverage == "given"
    assert "only for these shapes: ['bias'] [3], ['kernel'] [4, 3]" in str(proof)


OF_SHAPES = {
    "number": lambda p, g: p - g / g.size * 6,
    "constant": lambda p, g: p - g * jnp.asarray(g.ndim - 1),
    "power": lambda p, g: p - g ** (g.ndim - 1),
}


@pytest.mark.parametrize("name", OF_SHAPES)
def test_what_is_computed_of_a_shape_is_for_that_shape(name: str):
    sides = leafwise(OF_SHAPES[name]), leafwise(lambda p, g: p - g)
    proof = prove_equivalence(*sides, {"k": jnp.ones((2, 3))})
    assert proof.verdict in (IDENTICAL, REALS) and not proof.general


@pytest.mark.parametrize("name", ["Adam", "Momentum"])
def test_a_side_that_never_looks_is_proved_for_any_shape(name: str):
    definition = getattr(legacy_optim, name)(0.1)
    scope = prove_equivalence(definition, from_legacy(definition), PARAMS).scope
    assert (scope.coverage, scope.looks) == ("any", ())


def test_other_shapes_are_of_any_size_of_one_element_and_of_more():
    params = {"k": jax.ShapeDtypeStruct((3,), jnp.float32)}
    trees = [*with_axes(params, (0, 2)), *with_other_sizes(params)]
    scalar, symbols, *numbers = [tree["k"].shape for tree in trees]
    assert scalar == () and [str(size) for size in symbols] == ["n0", "n1"]
    assert numbers == [(1,), (2, 4)]


def test_the_scope_names_dtypes_leaves_and_settings():
    params = {"head": jnp.zeros(3, jnp.bfloat16), "body": jnp.zeros(3)}
    proof = prove_equivalence(
        lambda hp: optax.sgd(hp["rate"]),
        lambda hp: optax.sgd(hp["rate"]),
        params,
        hyper_params={"rate": 0.1},
    )
    assert "and all rate" in str(proof)
    assert "2 leaves: ['body'] in float32; ['head'] in bfloat16" in str(proof)
    data = json.loads(proof.to_json())["scope"]
    assert data["leaves"] == {"params['body']": "float32", "params['head']": "bfloat16"}
    assert (data["settings"], data["steps"], data["coverage"]) == (["rate"], "any", "any")
