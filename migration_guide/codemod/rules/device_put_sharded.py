# pyright: strict
"""`jax.device_put_sharded` becomes a function of the file that does the same.

Before:

    batch = jax.device_put_sharded(shards, jax.local_devices())

After:

    def put_sharded(shards, devices):
        ...

    batch = put_sharded(shards, jax.local_devices())

JAX removed it, and no single function of JAX replaces it. `optax-bridge run` does the same.
"""

import libcst as cst

from migration_guide.codemod.writing.context import Context, Expression, New

_NAME = "put_sharded"
_SOURCE = '''
def {name}(shards, devices):
    """Stacks the shards along a new leading axis, which is split over the devices."""
    mesh = jax.sharding.Mesh(list(devices), ("devices",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    return jax.tree.map(lambda *leaves: jax.device_put(jax.numpy.stack(leaves), split), *shards)
'''
_NAMES = frozenset({"jax.device_put_sharded", "jax.api.device_put_sharded"})

IN_DEFINITIONS = True
REMOVES = ANSWERS_FOR = _NAMES


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    if context.name(original) not in _NAMES:
        return None
    context.needed.add("jax")
    return cst.Name(context.function(_NAME, _SOURCE))
