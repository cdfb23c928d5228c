"""Canaries: what `_internals` takes from other libraries is there, and does what is relied on."""

import subprocess
import sys
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType

from legacy_optim import ModelParamTraversal
from optax_bridge import _internals


@pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")
def test_a_mesh_is_known_however_it_was_set():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    assert _internals.mesh_that_is_set() is None and _internals.mesh_in_with() is None
    with mesh:
        assert _internals.mesh_in_with() == mesh, "jax: thread_resources"
    with jax.set_mesh(mesh):
        assert _internals.mesh_that_is_set() == mesh
        jax.jit(lambda: pytest.fail("a mesh") if _internals.mesh_that_is_set() else None)()


def test_a_trace_within_another_is_another():
    states = [_internals.trace_state(), _internals.trace_state()]

    def inner(x: Any) -> Any:
        states.append(_internals.trace_state())
        return x

    jax.make_jaxpr(inner)(1.0)
    assert states[0] == states[1] != states[2], "jax: get_opaque_trace_state"


def test_what_is_computed_one_operation_after_another_is_not_staged():
    seen = {}

    def noted(name: str) -> Any:
        def function(x: Any) -> Any:
            seen[name] = _internals.are_traced(x, None)
            return x

        return function

    noted("array")(jnp.ones(2))
    jax.vmap(noted("vmap"))(jnp.ones(2))
    jax.grad(noted("grad"))(1.0)
    jax.jit(noted("jit"))(1.0)
    jax.jit(jax.grad(noted("grad in jit")))(1.0)
    jax.eval_shape(noted("eval_shape"), 1.0)
    assert [name for name, is_staged in seen.items() if is_staged] == ["jit", "eval_shape"], (
        "jax: DynamicJaxprTracer"
    )


@pytest.mark.filterwarnings("ignore:.*Traversal. will be deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", [ModelParamTraversal, flax.traverse_util.ModelParamTraversal])
def test_a_traversal_by_path_is_its_function(kind: Any):
    def predicate(path: str, value: Any) -> bool:
        return path.endswith("/a") and value is not None

    assert _internals.path_predicate(kind(predicate)) is predicate, "ModelParamTraversal._filter_fn"
    own = type("Own", (kind,), {"iterate": lambda self, inputs: iter(())})
    assert _internals.path_predicate(own(predicate)) is None


@pytest.mark.parametrize("name", _internals.PLACES)
def test_every_name_is_somewhere(name: str):
    assert _internals._find(name) is not None, f"jax: {_internals.PLACES[name]}"


WITHOUT_ANY = """
from optax_bridge import _internals
for name in _internals.PLACES:
    _internals.PLACES[name] = ()
import jax, jax.numpy as jnp, optax, pytest
import optax_bridge, optax_bridge.spmd.trainer, equivalence_tests, legacy_optim
from optax_bridge.correspondence import ENTRIES
from optax_bridge.spmd.examples import regression

params = {"a": jnp.ones((2, 3)), "b": jnp.ones((2, 3))}
transformations = [optax.adam(0.1), optax_bridge.adam(0.1), optax_bridge.adafactor(0.1)]
for entry in ENTRIES.values():
    case = entry.cases[0]
    transformations.append(optax_bridge.from_legacy(entry.definition(case, case.learning_rate)))
for tx in transformations:
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    after = jax.eval_shape(lambda state: state.apply_gradients(grads=state.params), state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
step = jax.jit(lambda state: state.apply_gradients(grads=state.params))
assert int(step(step(state)).step) == 2
within = optax.chain(optax.clip(1.0), optax_bridge.adam(0.1))
state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=within)
with pytest.raises(_internals.MissingNameError, match="does not have. Use a release of JAX"):
    state.apply_gradients(grads=params)
"""


@pytest.mark.filterwarnings("ignore")
def test_the_core_trains_without_any_of_them():
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_ANY]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
