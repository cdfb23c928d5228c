"""Random keys of contexts."""

import hashlib

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.sharding import AxisType, PartitionSpec


def child_key(key: jax.Array | None, name: str) -> jax.Array | None:
    """The random key of a child context, from its parent's and its name."""
    if key is None:
        return None
    seed = int(hashlib.md5(name.encode(), usedforsecurity=False).hexdigest(), 16) % (2**31 - 1)
    mesh = jax.sharding.get_abstract_mesh()
    compiled = isinstance(key, Tracer)
    if compiled and not mesh.empty and all(kind == AxisType.Auto for kind in mesh.axis_types):
        # Otherwise the compiler may cut the making of the key along the mesh, which costs more.
        both: tuple[jax.Array, jax.Array] = jax.lax.with_sharding_constraint(
            (key, jnp.int32(seed)), PartitionSpec()
        )
        return jax.random.fold_in(*both)
    return jax.random.fold_in(key, seed)
