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

from legacy_optim import gone
from migration_guide.codemod.writing.context import Context

# What `import jax` alone imports; other new names are left to the rule for names that are gone.
_IMPORTED = ("flax.jax_utils", "jax", "jax.nn", "jax.numpy", "jax.random", "jax.sharding")
EQUAL = {"jax.host_id": "jax.process_index", "jax.host_count": "jax.process_count"} | {
    name: entry.new
    for name in gone.names()
    if (entry := gone.find(name)) and name.startswith("jax.") and entry.new
    if entry.new.rpartition(".")[0] in _IMPORTED
}
BY_HAND = {
    "jax.host_ids": "list(range(jax.process_count()))",
    "jax.lib.xla_bridge.get_backend": "jax.devices()[0].client",
}

IN_DEFINITIONS = True
ANSWERS_FOR = {*EQUAL, *BY_HAND}
REMOVES = {*EQUAL, "jax.config"}


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> None:
    """A class of arrays that is called."""
    del updated
    name = context.name(original.func)
    if EQUAL.get(name) == "jax.Array":
        context.by_hand(
            original, f"{name} is gone, and jax.Array makes none: use jax.numpy.asarray"
        )


def rewrite_reference(
    context: Context, original: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """See the module."""
    name = context.name(original)
    if name in BY_HAND:
        context.by_hand(original, f"JAX has removed {name}: {BY_HAND[name]}")
        return None
    new = EQUAL.get(name)
    if new is None:
        return None
    alias, _, last = new.rpartition(".")
    if alias == "jax.numpy" == name.rpartition(".")[0] and isinstance(updated, cst.Attribute):
        return updated.with_changes(attr=cst.Name(last))  # keeps `jnp.`
    if alias == "flax.jax_utils":
        context.needed.add("flax")
        return cst.parse_expression(new)
    return context.reference(new)
