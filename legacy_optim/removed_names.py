"""JAX names of `flax.optim`'s time that JAX has removed, and what answers now.

A table for `legacy_optim.shim`, which imports it after JAX: nothing here changes JAX.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp


class _Index:
    """`jax.ops.index`: `index[1:, 0]` is the index itself."""

    def __getitem__(self, key: Any) -> Any:
        return key


def _updater(method: str) -> Callable[[Any, Any, Any], jax.Array]:
    """`jax.ops.index_<method>` as `x.at[index].<method>(value)`."""

    def update(x: Any, idx: Any, y: Any, *unused: Any, **also_unused: Any) -> jax.Array:
        del unused, also_unused  # indices_are_sorted and unique_indices: promises, not behaviour
        return getattr(jnp.asarray(x).at[idx], method)(y)

    return update


def _in1d(ar1: Any, ar2: Any, **kwargs: Any) -> jax.Array:
    return jnp.isin(jnp.ravel(jnp.asarray(ar1)), ar2, **kwargs)


def _device_put_sharded(shards: Any, devices: Any) -> Any:
    """Stacks the shards along a new leading axis that is split over the devices."""
    mesh = jax.sharding.Mesh(list(devices), ("devices",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    return jax.tree.map(lambda *leaves: jax.device_put(jnp.stack(leaves), split), *shards)


def _device_put_replicated(x: Any, devices: Any) -> Any:
    """Stacks as many copies as there are devices, one on each."""
    return _device_put_sharded([x] * len(devices), devices)


def _tie_in(x: Any, y: Any) -> Any:
    del x
    return y


def _curry(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(functools.partial, function)


def _tree_multimap(function: Callable[..., Any], tree: Any, *rest: Any, **kwargs: Any) -> Any:
    return jax.tree.map(function, tree, *rest, **kwargs)


_TREE = {
    "tree_flatten": jax.tree_util.tree_flatten,
    "tree_leaves": jax.tree_util.tree_leaves,
    "tree_map": jax.tree_util.tree_map,
    "tree_multimap": _tree_multimap,
    "tree_reduce": jax.tree_util.tree_reduce,
    "tree_structure": jax.tree_util.tree_structure,
    "tree_transpose": jax.tree_util.tree_transpose,
    "tree_unflatten": jax.tree_util.tree_unflatten,
    "treedef_is_leaf": jax.tree_util.treedef_is_leaf,
}

_XLA = types.SimpleNamespace(DeviceArray=jax.Array, _DeviceArray=jax.Array)
_PXLA = types.SimpleNamespace(ShardedDeviceArray=jax.Array)

# Module -> name -> what answers where the module itself no longer does.
NAMES: dict[str, dict[str, Any]] = {
    "jax": {
        **_TREE,
        "xla": _XLA,
        "pxla": _PXLA,
        "host_id": jax.process_index,
        "host_count": jax.process_count,
        "host_ids": lambda: list(range(jax.process_count())),
        "device_put_replicated": _device_put_replicated,
        "device_put_sharded": _device_put_sharded,
        "ShapedArray": jax.core.ShapedArray,
        "curry": _curry,
    },
    "jax.tree_util": {"tree_multimap": _tree_multimap},
    "jax.ops": {
        "index": _Index(),
        "index_update": _updater("set"),
        "index_add": _updater("add"),
        "index_mul": _updater("multiply"),
        "index_min": _updater("min"),
        "index_max": _updater("max"),
    },
    "jax.numpy": {
        "DeviceArray": jax.Array,
        "NINF": -jnp.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "alltrue": jnp.all,
        "sometrue": jnp.any,
        "product": jnp.prod,
        "cumproduct": jnp.cumprod,
        "round_": jnp.round,
        "row_stack": jnp.vstack,
        "in1d": _in1d,
        "trapz": getattr(jnp, "trapezoid", None),
    },
    "jax.random": {
        "KeyArray": jax.Array,
        "PRNGKeyArray": jax.Array,
        "shuffle": jax.random.permutation,
    },
    "jax.lax": {"tie_in": _tie_in},
    "jax.nn": {"normalize": jax.nn.standardize},
    "jax.interpreters.xla": {"DeviceArray": jax.Array, "_DeviceArray": jax.Array},
    "jax.interpreters.pxla": {"ShardedDeviceArray": jax.Array},
    "jax.experimental": {"PartitionSpec": jax.sharding.PartitionSpec},
}

# Modules that are gone: name -> module whose attributes answer, or a table of names.
MODULES: dict[str, str | dict[str, Any]] = {
    "jax.config": {"config": jax.config},
    "jax.abstract_arrays": {"ShapedArray": jax.core.ShapedArray},
    "jax.experimental.optimizers": "jax.example_libraries.optimizers",
    "jax.experimental.stax": "jax.example_libraries.stax",
    "jax.experimental.maps": {"Mesh": jax.sharding.Mesh},
    "jax.lib.xla_bridge": {
        "device_count": jax.device_count,
        "local_device_count": jax.local_device_count,
        "process_index": jax.process_index,
        "get_backend": lambda platform=None: jax.devices(platform)[0].client,
    },
}

_PRE_LINEN = (
    "flax.nn, the modules before Linen, was removed in flax 0.4.0, and "
    "nothing here stands in for it: port the modules to flax.linen, or run the program with "
    "flax==0.3.6, the last release that has them. Its optimizers can move on their own"
)

# What nothing answers for: name -> what to say instead of "no such name".
GONE: dict[str, str] = {"flax.nn": _PRE_LINEN, "flax.deprecated": _PRE_LINEN}
