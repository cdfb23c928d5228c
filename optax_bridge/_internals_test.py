"""Canaries: what `_internals` takes from other libraries is there, and does what is relied on."""

from typing import Any

import flax
import flax.traverse_util
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from legacy_optim import ModelParamTraversal
from optax_bridge import _internals


def test_an_abstract_mesh_puts_sharding_into_types():
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Explicit,))
    sharding = NamedSharding(mesh, PartitionSpec("x"))  # type: ignore[arg-type]
    given = jax.ShapeDtypeStruct((4,), jnp.float32, sharding=sharding)
    with _internals.abstract_mesh_in_scope(mesh):
        (out,) = jax.make_jaxpr(lambda x: 2 * x)(given).out_avals
    assert out.sharding.spec == PartitionSpec("x"), "jax: types do not carry shardings along"


@pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")
def test_a_mesh_is_known_however_it_was_set():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
    assert _internals.mesh_that_is_set() is None and _internals.mesh_in_with() is None
    with mesh:
        assert _internals.mesh_in_with() == mesh, "jax: thread_resources"
    set_mesh = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh  # type: ignore[attr-defined]
    with set_mesh(mesh):
        assert _internals.mesh_that_is_set() == mesh, "jax: get_mesh, get_concrete_mesh"
        if hasattr(jax.sharding, "get_mesh"):  # without it, jit knows the mesh, too
            jax.jit(lambda: pytest.fail("a mesh") if _internals.mesh_that_is_set() else None)()


def test_x64_is_switched_in_a_scope():
    with _internals.enable_x64(True):
        assert jnp.result_type(float) == jnp.float64, "jax: enable_x64"


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
            seen[name] = _internals.staged(x, None)
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


@pytest.mark.skipif(
    not flax.__version__.startswith("0.10."), reason="later variables can be replaced"
)
def test_a_variable_state_keeps_its_metadata_in_a_dict():
    kind: Any = nnx.VariableState  # type: ignore[attr-defined]
    state = nnx.state(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
    leaf, *_ = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, kind))
    changed = _internals.with_variable_metadata(leaf, "sharding", ("x",))
    assert changed.get_metadata()["sharding"] == ("x",), "flax: VariableState._var_metadata"


@pytest.mark.filterwarnings("ignore:.*Traversal. will be deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", [ModelParamTraversal, flax.traverse_util.ModelParamTraversal])
def test_a_traversal_by_path_is_its_function(kind: Any):
    def predicate(path: str, value: Any) -> bool:
        return path.endswith("/a") and value is not None

    assert _internals.path_predicate(kind(predicate)) is predicate, "ModelParamTraversal._filter_fn"
    own = type("Own", (kind,), {"iterate": lambda self, inputs: iter(())})
    assert _internals.path_predicate(own(predicate)) is None
