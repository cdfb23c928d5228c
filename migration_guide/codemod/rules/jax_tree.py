# pyright: strict
"""`jax.tree_map`, `jax.tree_multimap` and the like become `jax.tree.map` and the like.

Before:

    grads = jax.tree_multimap(lambda a, b: a + b, grads, more)
    leaves = jax.tree_leaves(params)

After:

    grads = jax.tree.map(lambda a, b: a + b, grads, more)
    leaves = jax.tree.leaves(params)

JAX removed the old names; the functions are the same.
"""

from migration_guide.codemod.writing.context import Context, Expression, New

_KEPT = ("all", "flatten", "leaves", "map", "reduce", "structure", "transpose", "unflatten")
_EQUAL = {f"jax.tree_{name}": f"jax.tree.{name}" for name in _KEPT} | {
    "jax.tree_multimap": "jax.tree.map",
    "jax.tree_util.tree_multimap": "jax.tree.map",
    "jax.treedef_is_leaf": "jax.tree_util.treedef_is_leaf",
}

IN_DEFINITIONS = True
REMOVES = ANSWERS_FOR = frozenset(_EQUAL)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    new = _EQUAL.get(context.name(original))
    return context.reference(new) if new else None
