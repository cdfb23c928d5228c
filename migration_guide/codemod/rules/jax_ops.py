# pyright: strict
"""`jax.ops.index_update(x, i, y)` becomes `x.at[i].set(y)`.

Before:

    x = jax.ops.index_update(x, jax.ops.index[1:, 0], y)
    x = jax.ops.index_add(x, jnp.argmax(z), y)
    x = jax.ops.index_add(x, [0, 1], y)
    x = jax.ops.index_add(x, i, y)

After:

    def as_index(indices):
        ...

    x = x.at[1:, 0].set(y)
    x = x.at[jnp.argmax(z)].add(y)
    x = x.at[jax.numpy.array([0, 1])].add(y)
    x = x.at[as_index(i)].add(y)

JAX removed the functions in favour of the property, which takes no lists.
"""

import re

import libcst as cst

from legacy_optim.gone import remedies
from migration_guide.codemod.reading.tree import attribute, dotted_name, index_of, method_call
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import Context, Expression, New

IN_DEFINITIONS = True
REMOVES = ANSWERS_FOR = frozenset(remedies.INDEXED)

# Calls that return no list, and what makes an index of its subscript.
_ARRAY = re.compile(
    r"(jax\.)?numpy\.(?!.*(split|meshgrid|broadcast_arrays|gradient|tolist)$)|(int|len|slice|tuple)$"
)
_INDICES = ("jax.ops.index", "jax.numpy.s_", "jax.numpy.index_exp", "numpy.s_", "numpy.index_exp")
_MOST_BINDINGS = 8  # of an index and the names in it
_SOURCE = '''
def {name}(indices):
    """Returns what `x.at` takes, which refuses lists; a list for several axes becomes a tuple."""
    if not isinstance(indices, list):
        return indices
    of_axes = (slice, list, tuple, type(None), type(...))
    is_tuple = any(isinstance(one, of_axes) or getattr(one, "ndim", 0) for one in indices)
    return tuple(indices) if is_tuple else (indices,)
'''


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
    """An index as `x.at` takes it: as it is if it is surely no list, which `x.at` refuses."""
    if _is_no_list(context, original, frozenset()):
        return index
    if _is_of_integers(context, original):
        function = context.reference("jax.numpy.array")
    else:
        function = cst.Name(context.function("as_index", _SOURCE))
    return cst.Call(function, [cst.Arg(index)])


def _is_of_integers(context: Context, node: cst.BaseExpression) -> bool:
    """True for a list of numbers that are written out."""
    value = constants.assigned_value(context.analysis, node) if isinstance(node, cst.Name) else node
    if not isinstance(value, cst.List) or not value.elements:
        return False
    numbers = (getattr(element.value, "expression", element.value) for element in value.elements)
    return all(isinstance(number, cst.Integer) for number in numbers)


def _is_no_list(
    context: Context, node: cst.BaseExpression | None, seen: frozenset[cst.CSTNode]
) -> bool:
    """True if an expression is surely no list, whenever the names in it are assigned."""
    if isinstance(node, cst.Name) and node.value not in ("None", "True", "False"):
        bound = {assignment.node for assignment in context.analysis.names.assignments(node)}
        new, seen = bound - seen, seen | bound
        is_known = bool(bound) and len(seen) <= _MOST_BINDINGS
        return is_known and all(_binds_no_list(context, binding, seen) for binding in new)
    if isinstance(node, cst.IfExp):
        return all(_is_no_list(context, value, seen) for value in (node.body, node.orelse))
    if isinstance(node, cst.BinaryOperation):
        known = [_is_no_list(context, value, seen) for value in (node.left, node.right)]
        repeats = isinstance(node.operator, cst.Multiply)
        return not isinstance(node.operator, cst.Add | cst.Multiply) or sum(known) > repeats
    if isinstance(node, cst.Subscript):
        if context.name(node.value) in _INDICES:
            return index_of(node) is None or _is_no_list(context, index_of(node), seen)
        a, base = context.analysis, node.value
        base = constants.assigned_value(a, base) if isinstance(base, cst.Name) else base
        return isinstance(base, cst.Call) and _ARRAY.match(context.name(base.func)) is not None
    if isinstance(node, cst.Call):
        holder, method = method_call(node)
        name = context.name(node.func)
        if name or holder is None:
            return _ARRAY.match(name or dotted_name(node.func) or "") is not None
        return method != "tolist" and _is_no_list(context, holder, seen)
    plain = cst.Name | cst.Integer | cst.Tuple | cst.Ellipsis | cst.Comparison | cst.UnaryOperation
    return isinstance(node, plain)


def _binds_no_list(context: Context, bound: cst.CSTNode, seen: frozenset[cst.CSTNode]) -> bool:
    """True if what a binding gives a name is surely no list."""
    parents = context.analysis.parents
    above, counting = parents.get(bound), "range"
    if isinstance(above, cst.Element):
        whole = parents[above]
        is_first = isinstance(whole, cst.Tuple) and whole.elements[0] is above
        above, counting = parents[whole] if is_first else None, "enumerate"
    if isinstance(above, cst.For | cst.CompFor):
        return isinstance(above.iter, cst.Call) and dotted_name(above.iter.func) == counting
    if counting == "range" and isinstance(above, cst.AssignTarget):
        above = parents[above]
        return isinstance(above, cst.Assign) and _is_no_list(context, above.value, seen)
    return isinstance(above, cst.AugAssign)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """A function that is not called, but given on."""
    method = remedies.INDEXED.get(context.name(original))
    if method is not None and context.call_of(original) is None:
        context.by_hand(original, f"lambda x, index, value: x.at[index].{method}(value)")
