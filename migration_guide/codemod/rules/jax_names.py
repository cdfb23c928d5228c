"""`jax.host_id` and other JAX names that are gone get their equals.

Before:

    from jax.config import config
    if jax.host_id() == 0: ...
    def f(x: jnp.DeviceArray): ...

After:

    if jax.process_index() == 0: ...
    def f(x: jax.Array): ...

Each was renamed, without a change of what it does.
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
}


def rewrite_reference(
    context: Context, original: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """See the module."""
    new = _EQUAL.get(context.name(original))
    if new is None:
        return None
    alias, _, last = new.rpartition(".")
    if alias == "jax.numpy" and isinstance(updated, cst.Attribute):
        return updated.with_changes(attr=cst.Name(last))  # keeps `jnp.`
    if alias == "flax.jax_utils":
        context.needed.add("flax")
        return cst.parse_expression(new)
    return context.dotted(new)
