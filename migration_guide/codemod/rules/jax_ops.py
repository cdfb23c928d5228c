# pyright: strict
"""`jax.ops.index_update(x, i, y)` becomes `x.at[i].set(y)`.

Before:

    x = jax.ops.index_update(x, jax.ops.index[1:, 0], y)
    x = jax.ops.index_add(x, i, y)

After:

    x = x.at[1:, 0].set(y)
    x = x.at[i].add(y)

JAX removed the functions in favour of the property.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import attribute
from migration_guide.codemod.writing.context import Context, Expression, New

_METHODS = {
    "jax.ops.index_update": "set",
    "jax.ops.index_add": "add",
    "jax.ops.index_mul": "multiply",
    "jax.ops.index_min": "min",
    "jax.ops.index_max": "max",
}

IN_DEFINITIONS = True
REMOVES = ANSWERS_FOR = frozenset(_METHODS)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    method = _METHODS.get(context.name(original.func))
    if method is None:
        return None
    if len(original.args) != 3 or any(arg.keyword is not None or arg.star for arg in original.args):
        context.by_hand(original, f"x.at[index].{method}(value)")
        return None
    x, index, value = (arg.value for arg in updated.args)
    old = original.args[1].value
    if isinstance(old, cst.Subscript) and context.name(old.value) == "jax.ops.index":
        assert isinstance(index, cst.Subscript)
        place = index.slice
    else:
        place = [cst.SubscriptElement(cst.Index(index))]
    if not isinstance(x, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
        x = x.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    at = cst.Subscript(attribute(x, "at"), place)
    return updated.with_changes(func=attribute(at, method), args=[cst.Arg(value)])


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """A function that is not called, but given on."""
    method = _METHODS.get(context.name(original))
    if method is not None and context.call_of(original) is None:
        context.by_hand(original, f"lambda x, index, value: x.at[index].{method}(value)")
