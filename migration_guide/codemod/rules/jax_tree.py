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

import libcst as cst

from migration_guide.codemod.context import Context

_EQUAL = {
    "jax.tree_map": "jax.tree.map",
    "jax.tree_multimap": "jax.tree.map",
    "jax.tree_util.tree_multimap": "jax.tree.map",
    "jax.tree_flatten": "jax.tree.flatten",
    "jax.tree_leaves": "jax.tree.leaves",
    "jax.tree_reduce": "jax.tree.reduce",
    "jax.tree_structure": "jax.tree.structure",
    "jax.tree_transpose": "jax.tree.transpose",
    "jax.tree_unflatten": "jax.tree.unflatten",
    "jax.treedef_is_leaf": "jax.tree_util.treedef_is_leaf",
    "jax.tree_all": "jax.tree.all",
}

IN_DEFINITIONS = True
REMOVES = ANSWERS_FOR = frozenset(_EQUAL)


def rewrite_reference(
    context: Context, original: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """See the module."""
    del updated
    new = _EQUAL.get(context.name(original))
    return context.dotted(new) if new else None
