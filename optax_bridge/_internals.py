"""All that `optax_bridge` takes from other libraries without a public name in each version.

`_internals_test.py` says what changed when one of them is no longer there.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import flax.traverse_util
import jax
import jax.experimental
from jax._src.core import get_opaque_trace_state
from jax._src.mesh import get_concrete_mesh, thread_resources, use_abstract_mesh
from jax._src.xla_bridge import backends_are_initialized as backends_are_initialized
from jax.interpreters.partial_eval import DynamicJaxprTracer
from jax.sharding import Mesh

from legacy_optim.traverse_util import ModelParamTraversal

# Within it, arrays of this thread may be float64, or may not; it has moved in jax 0.8.
enable_x64: Callable[[bool], AbstractContextManager[None]] = (
    vars(jax)["enable_x64"] if hasattr(jax, "enable_x64") else vars(jax.experimental)["enable_x64"]
)
# Of any tree, the same tree: XLA does not know that both are equal. Its types are unknown.
optimization_barrier: Any = vars(jax.lax)["optimization_barrier"]
# A scope in which arrays' types are sharded over an abstract mesh; an empty one: over none. Public
# since jax 0.6.2.
abstract_mesh_in_scope = use_abstract_mesh


def mesh_that_is_set() -> Mesh | None:
    """The mesh of `jax.set_mesh`; None while `jax.jit` traces, which knows its axes alone.

    In a JAX without `jax.sharding.get_mesh`, that of `use_mesh`, and jit knows it, too.
    """
    try:
        mesh = getattr(jax.sharding, "get_mesh", get_concrete_mesh)()
    except ValueError:  # while jit traces
        return None
    return None if mesh is None or mesh.empty else mesh


def mesh_in_with() -> Mesh | None:
    """The mesh of `with mesh:`, which leaves no trace in what JAX makes public."""
    mesh = thread_resources.env.physical_mesh
    return None if mesh.empty else mesh


def trace_state() -> Any:
    """What JAX traces now; not equal to what it was outside of `jax.jit` or `jax.lax.cond`."""
    return get_opaque_trace_state()


def staged(*values: Any) -> bool:
    """Whether these are all arrays of a program that is being traced, by `jax.jit` say.

    None may be among them. What `jax.vmap` or `jax.grad` pass on is not: outside of `jax.jit` these
    compute one operation after another.
    """
    return all(value is None or isinstance(value, DynamicJaxprTracer) for value in values)


def with_variable_metadata(leaf: Any, name: str, value: Any) -> Any:
    """An `nnx.VariableState` of flax before 0.11, which had no way to replace its metadata."""
    leaf._var_metadata = {**leaf.get_metadata(), name: value}
    return leaf


def path_predicate(traversal: Any) -> Callable[[str, Any], Any] | None:
    """The function on paths that is all there is to a `ModelParamTraversal`, ours or Flax's.

    None for a traversal that does more, a subclass with an `iterate` of its own.
    """
    by_path = (ModelParamTraversal.iterate, flax.traverse_util.ModelParamTraversal.iterate)
    if getattr(type(traversal), "iterate", None) not in by_path:
        return None
    return traversal._filter_fn
