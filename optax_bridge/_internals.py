"""All that `optax_bridge` takes from other libraries without a public name.

`_internals_test.py` says what changed when one of them is no longer there.
"""

from collections.abc import Callable
from typing import Any

import flax.traverse_util
import jax

from legacy_optim.traverse_util import ModelParamTraversal


def abstract_mesh_in_scope(mesh: Any) -> Any:
    """A scope in which arrays' types are sharded over this mesh; an empty one: over none."""
    scope = getattr(jax.sharding, "use_abstract_mesh", None)
    if scope is None:  # before jax 0.6.2 it had no public name
        from jax._src.mesh import use_abstract_mesh as scope
    return scope(mesh)


def trace_state() -> Any:
    """What JAX traces now; not equal to what it was outside of `jax.jit` or `jax.lax.cond`."""
    from jax._src.core import get_opaque_trace_state  # public in newer releases only

    return get_opaque_trace_state()


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
