# pyright: strict
"""`jax.host_id` and other JAX names that are gone get their equals.

Before:

    from jax.config import config
    if jax.host_id() == 0: ...
    def f(x: jnp.DeviceArray): ...

After:

    if jax.process_index() == 0: ...
    def f(x: jax.Array): ...

Each was renamed, without a change of what it does. What has no equal of one name is left for a
person.
"""

import libcst as cst

from migration_guide.codemod.context import Context

_EQUAL = {
    "jax.host_id": "jax.process_index",
    "jax.host_count": "jax.process_count",
    "jax.config.config": "jax.config",
    "jax.xla.DeviceArray": "jax.Array",
    "jax.interpreters.xla.DeviceArray": "jax.Array",
    "jax.numpy.DeviceArray": "jax.Array",
    "jax.interpreters.pxla.ShardedDeviceArray": "jax.Array",
    "jax.random.KeyArray": "jax.Array",
    "jax.numpy.product": "jax.numpy.prod",
    "jax.numpy.cumproduct": "jax.numpy.cumprod",
    "jax.numpy.alltrue": "jax.numpy.all",
    "jax.numpy.sometrue": "jax.numpy.any",
    "jax.nn.normalize": "jax.nn.standardize",
    "jax.device_put_replicated": "flax.jax_utils.replicate",
    "jax.ShapedArray": "jax.core.ShapedArray",
    "jax.abstract_arrays.ShapedArray": "jax.core.ShapedArray",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.maps.Mesh": "jax.sharding.Mesh",
    "jax.interpreters.xla._DeviceArray": "jax.Array",
    "jax.lib.xla_bridge.device_count": "jax.device_count",
    "jax.lib.xla_bridge.local_device_count": "jax.local_device_count",
    "jax.lib.xla_bridge.process_index": "jax.process_index",
    "jax.numpy.round_": "jax.numpy.round",
    "jax.numpy.row_stack": "jax.numpy.vstack",
    "jax.numpy.trapz": "jax.numpy.trapezoid",
    "jax.ops.index": "jax.numpy.s_",
    "jax.random.PRNGKeyArray": "jax.Array",
    "jax.random.shuffle": "jax.random.permutation",
    "jax.xla._DeviceArray": "jax.Array",
    "jax.pxla.ShardedDeviceArray": "jax.Array",
}
_BY_HAND = {
    "jax.curry": "use functools.partial",
    "jax.device_put_sharded": "stack the shards, and jax.device_put them with a NamedSharding",
    "jax.host_ids": "list(range(jax.process_count()))",
    "jax.lax.tie_in": "it returned its second argument",
    "jax.lib.xla_bridge.get_backend": "jax.devices()[0].client",
    "jax.numpy.in1d": "jnp.isin(jnp.ravel(x), values)",
    "jax.numpy.NINF": "-jnp.inf",
    "jax.numpy.NZERO": "-0.0",
    "jax.numpy.PZERO": "0.0",
}

IN_DEFINITIONS = True
ANSWERS_FOR = {*_EQUAL, *_BY_HAND}
REMOVES = {*_EQUAL, "jax.config"}


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> None:
    """A class of arrays that is called."""
    del updated
    name = context.name(original.func)
    if _EQUAL.get(name) == "jax.Array":
        context.by_hand(
            original, f"{name} is gone, and jax.Array makes none: use jax.numpy.asarray"
        )


def rewrite_reference(
    context: Context, original: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """See the module."""
    name = context.name(original)
    if name in _BY_HAND:
        context.by_hand(original, f"JAX has removed {name}: {_BY_HAND[name]}")
        return None
    new = _EQUAL.get(name)
    if new is None:
        return None
    alias, _, last = new.rpartition(".")
    if alias == "jax.numpy" == name.rpartition(".")[0] and isinstance(updated, cst.Attribute):
        return updated.with_changes(attr=cst.Name(last))  # keeps `jnp.`
    if alias == "flax.jax_utils":
        context.needed.add("flax")
        return cst.parse_expression(new)
    return context.dotted(new)
