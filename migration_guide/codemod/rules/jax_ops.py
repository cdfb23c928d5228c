# pyright: strict
"""`jax.ops.index_update(x, i, y)` becomes `x.at[i].set(y)`.

Before:

    x = jax.ops.index_update(x, jax.ops.index[1:, 0], y)
    x = jax.ops.index_add(x, i, y)
    x = jax.ops.index_add(x, [0, 1], y)

After:

    x = x.at[1:, 0].set(y)
    x = x.at[i].add(y)
    x = x.at[jax.numpy.array([0, 1])].add(y)

JAX removed the functions in favour of the property.
"""

import libcst as cst

from legacy_optim.gone import remedies
from migration_guide.codemod.reading.tree import attribute, dotted_name, index_of
from migration_guide.codemod.writing.context import Context, Expression, New

IN_DEFINITIONS = True
REMOVES = ANSWERS_FOR = frozenset(remedies.INDEXED)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    method = remedies.INDEXED.get(context.name(original.func))
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
        inside, new = index_of(old), index_of(index)
        if inside is not None and new is not None:
            place = [cst.SubscriptElement(cst.Index(_index(context, inside, new)))]
    else:
        place = [cst.SubscriptElement(cst.Index(_index(context, old, index)))]
    if not isinstance(x, cst.Name | cst.Attribute | cst.Subscript | cst.Call):
        x = x.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    at = cst.Subscript(attribute(x, "at"), place)
    return updated.with_changes(func=attribute(at, method), args=[cst.Arg(value)])


def _index(
    context: Context, original: cst.BaseExpression, index: cst.BaseExpression
) -> cst.BaseExpression:
    """An index; a list, which `x.at` refuses, as the array or the tuple that it stood for."""
    values = context.analysis.aliases(original)
    lists = [v for v in values if isinstance(v, cst.List | cst.ListComp) or _is_list_call(v)]
    if not lists:
        return index
    several = [v for v in lists if isinstance(v, cst.List) and any(map(_is_axis, v.elements))]
    function = cst.Name("tuple") if several else context.reference("jax.numpy.array")
    return cst.Call(function, [cst.Arg(index)])


def _is_list_call(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Call) and dotted_name(node.func) == "list"


def _is_axis(element: cst.BaseElement) -> bool:
    """True if an element of a list makes each of its elements the index of an axis."""
    value = element.value
    is_slice = isinstance(value, cst.Call) and dotted_name(value.func) == "slice"
    is_none = isinstance(value, cst.Name) and value.value == "None"
    return is_slice or is_none or isinstance(value, cst.List | cst.Tuple | cst.Ellipsis)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """A function that is not called, but given on."""
    method = remedies.INDEXED.get(context.name(original))
    if method is not None and context.call_of(original) is None:
        context.by_hand(original, f"lambda x, index, value: x.at[index].{method}(value)")
