"""The names that this package takes from other libraries where they have no public place.

Each is looked up when its feature is used, so that a release without it loses that feature alone.
`_internals_test.py` says which is gone.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any

import flax.traverse_util
import jax
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.sharding import Mesh

from legacy_optim.traverse_util import ModelParamTraversal
from optax_bridge.metadata.trees import Leaf

# Name -> its places, the public one first, where some releases have one.
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    # Which program JAX traces at the moment. Without it: an error where an exact transformation is
    # within another one, `optax.chain` say; by itself it trains.
    "trace_state": (
        ("jax.extend.core", "get_opaque_trace_state"),  # from jax 0.10 on
        ("jax._src.core", "get_opaque_trace_state"),
    ),
    # The type of arrays in a program that is traced. Without it: parameters that are alike are
    # traced one by one, which takes longer and computes the same.
    "traced_array": (
        ("jax.interpreters.partial_eval", "DynamicJaxprTracer"),
        ("jax._src.interpreters.partial_eval", "DynamicJaxprTracer"),
    ),
    # The mesh of `with mesh:`, which JAX gives up for `jax.set_mesh`. Without it: as if none was
    # set, and code that needs one says to use `jax.set_mesh`.
    "thread_resources": (("jax._src.mesh", "thread_resources"),),
}


class MissingNameError(RuntimeError):
    """A name that a feature needs is in none of the places where earlier releases had it."""


@functools.cache
def _find(name: str) -> Any:
    """Returns the object that a name of `PLACES` refers to; None if no place has it."""
    for module, attribute in PLACES[name]:
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError):
            continue
    return None


def _require(name: str, feature: str) -> Any:
    value = _find(name)
    if value is None:
        places = ", ".join(".".join(place) for place in PLACES[name]) or "any place"
        raise MissingNameError(
            f"{feature}: expected {places}, which jax {jax.__version__} does not have. Use a "
            "release of JAX that README.md names, or a newer optax-bridge."
        )
    return value


def trace_state() -> object:
    """Returns JAX's current trace, which differs within `jax.jit` or `jax.lax.cond`."""
    feature = "an exact transformation within another transformation, such as optax.chain"
    return _require("trace_state", feature)()


def trace_state_if_known() -> object:
    """Returns `trace_state()`, and None where JAX does not tell."""
    return None if _find("trace_state") is None else trace_state()


def are_traced(*values: Leaf) -> bool:
    """True if these are all arrays of a program that is being traced, by `jax.jit` say."""
    traced_array = _find("traced_array")
    if traced_array is None:
        return False
    return all(value is None or isinstance(value, traced_array) for value in values)


def mesh_that_is_set() -> Mesh | None:
    """Returns the mesh of `jax.set_mesh`; None while `jax.jit` traces."""
    try:
        mesh = jax.sharding.get_mesh()
    except ValueError:  # while jit traces
        return None
    return None if mesh.empty else mesh


def mesh_in_with() -> Mesh | None:
    """Returns the mesh of `with mesh:`, which JAX shows in no public place; None without one."""
    resources = _find("thread_resources")
    mesh = None if resources is None else resources.env.physical_mesh
    return None if mesh is None or mesh.empty else mesh


def path_predicate(traversal: object) -> Callable[[str, Leaf], object] | None:
    """Returns the function on paths that a `ModelParamTraversal`, ours or Flax's, consists of."""
    flax_traversal = getattr(flax.traverse_util, "ModelParamTraversal", ModelParamTraversal)
    by_path = (ModelParamTraversal.iterate, flax_traversal.iterate)
    if getattr(type(traversal), "iterate", None) not in by_path:
        return None
    return getattr(traversal, "_filter_fn", None)


def program_within(eqn: JaxprEqn) -> ClosedJaxpr | None:
    """The program of what JAX keeps whole, `searchsorted` since 0.12; None of other equations."""
    if eqn.primitive.name != "call_hi_primitive":
        return None
    return jax.make_jaxpr(eqn.params["_prim"].expand)(*(var.aval for var in eqn.invars))
