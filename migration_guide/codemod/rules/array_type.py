# pyright: strict
"""`type(x) is jnp.DeviceArray` becomes `isinstance(x, jax.Array)`.

Before:

    if type(x) is jnp.DeviceArray: ...
    if type(x) not in (numpy.ndarray, jnp.DeviceArray): ...
    if type(x).__name__ == "DeviceArray": ...
    show = {jnp.DeviceArray: str}.get(type(x))

After:

    if isinstance(x, jax.Array): ...
    if not (isinstance(x, jax.Array) or type(x) is numpy.ndarray): ...
    # optax-bridge: jax.Array is abstract, ...
    if type(x).__name__ == "DeviceArray": ...
    # optax-bridge: jax.Array is abstract, ...
    show = {jax.Array: str}.get(type(x))

`jax.Array` is the type of no array: what compares a type with it is never true.
"""

import itertools

import libcst as cst

from legacy_optim import gone
from migration_guide.codemod.reading.tree import last_name
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import Context, Expression, New

RUNS_AFTER = ("gone_names",)
IN_DEFINITIONS = True
_ABSTRACT = (
    "jax.Array is abstract, the type of no array itself, so this is never true: ask "
    "isinstance(x, jax.Array)"
)
_KEY = (
    "jax.Array is abstract, the type of no array itself, so what is looked up by type(x) is never "
    "found under it: ask isinstance(x, jax.Array)"
)
_KEPT_BY_TYPE = ("copyreg.pickle", "flax.serialization.register_serialization_state")
_NAMES = ("DeviceArray", "_DeviceArray", "ShardedDeviceArray", "DeviceArrayBase")
_ASSERTIONS = ("assertEqual", "assertIs", "assertIsNot", "assertNotEqual", "assertIn")


def rewrite_comparison(context: Context, original: cst.Comparison, updated: cst.Comparison) -> New:
    """See the module."""
    operands = [original.left, *(part.comparator for part in original.comparisons)]
    classes = [node for operand in operands for node in _classes(operand)]
    if any(last_name(operand) in ("__name__", "__qualname__") for operand in operands):
        if any(constants.text(context.analysis, node) in _NAMES for node in classes):
            context.by_hand(original, _ABSTRACT)
        return None
    if not any(_is_array_class(context, node) for node in classes):
        if _inspected_value(original.left) is not None and _is_in_classes(context, operands[1:]):
            context.by_hand(original, _ABSTRACT)
        return None
    new = _isinstance(context, original, updated) if len(operands) == 2 else None
    if new is None:
        context.by_hand(original, _ABSTRACT)
    return new


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """`assertEqual(type(x), jnp.DeviceArray)`, what is registered for a type, a class called."""
    name = context.name(original.func)
    if _is_old_array_class(name):
        context.by_hand(
            original, f"{name} is gone, and jax.Array makes none: use jax.numpy.asarray"
        )
    is_by_type = name in _KEPT_BY_TYPE and bool(original.args)
    if is_by_type and _is_array_class(context, original.args[0].value):
        context.by_hand(original, _KEY)
    if last_name(original.func) in _ASSERTIONS:
        values = [node for arg in original.args for node in _classes(arg.value)]
        if any(_is_array_class(context, value) for value in values):
            context.by_hand(original, _ABSTRACT)


def rewrite_reference(context: Context, original: Expression, _: Expression) -> None:
    """The class as a key of a dict, or in a set."""
    if not _is_array_class(context, original):
        return
    above, *outer = itertools.islice(context.ancestors(original), 4)
    is_key = isinstance(above, cst.DictElement) and above.key is original
    if isinstance(above, cst.Element):
        is_key = isinstance(outer[0], cst.Set) and not isinstance(outer[1], cst.ComparisonTarget)
    elif isinstance(above, cst.Index):  # of a SubscriptElement of a Subscript
        is_key = isinstance(outer[2], cst.AssignTarget)
    if is_key:
        context.by_hand(original, _KEY)


def _isinstance(
    context: Context, original: cst.Comparison, updated: cst.Comparison
) -> cst.BaseExpression | None:
    """The comparison by `isinstance`; None where what it asks of is no `type(x)` written out."""
    operator = updated.comparisons[0].operator
    operand, right = updated.left, updated.comparisons[0].comparator
    old_left, old_right = original.left, original.comparisons[0].comparator
    if isinstance(operator, cst.Is | cst.IsNot | cst.Equal | cst.NotEqual):
        if _is_array_class(context, old_left):
            operand, right, old_right = right, operand, old_left
        is_one = not isinstance(old_right, cst.Tuple | cst.List | cst.Set)
        asked, others = [right] if is_one else [], list[cst.BaseElement]()
    elif isinstance(right, cst.Tuple | cst.List | cst.Set):
        assert isinstance(old_right, cst.Tuple | cst.List | cst.Set)
        pairs = list(zip(old_right.elements, right.elements, strict=True))
        asked = [new.value for old, new in pairs if _is_array_class(context, old.value)]
        others = [new for old, new in pairs if not _is_array_class(context, old.value)]
    else:
        return None
    value = _inspected_value(operand)
    if value is None or not asked or (others and not _is_plain(value)):
        return None
    args = [cst.Arg(value), cst.Arg(asked[0])]
    new: cst.BaseExpression = cst.Call(cst.Name("isinstance"), args)
    negated = isinstance(operator, cst.IsNot | cst.NotEqual | cst.NotIn)
    if others:
        new = cst.BooleanOperation(new, cst.Or(), _type_in(operand, others))
        is_operand = isinstance(context.parent(original), cst.BooleanOperation | cst.UnaryOperation)
        if negated or (is_operand and not updated.lpar):
            new = new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    if negated:
        new = cst.UnaryOperation(cst.Not(), new)
    return new.with_changes(lpar=updated.lpar, rpar=updated.rpar) if updated.lpar else new


def _type_in(operand: cst.BaseExpression, others: list[cst.BaseElement]) -> cst.Comparison:
    """`type(x) is numpy.ndarray`, and `type(x) in (int, float)` of several."""
    values = [other.value for other in others]
    if len(values) == 1:
        return cst.Comparison(operand, [cst.ComparisonTarget(cst.Is(), values[0])])
    classes = cst.Tuple([cst.Element(value) for value in values])
    return cst.Comparison(operand, [cst.ComparisonTarget(cst.In(), classes)])


def _inspected_value(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """The `x` of `type(x)` and of `x.__class__`."""
    if isinstance(node, cst.Attribute) and node.attr.value == "__class__":
        return node.value
    if isinstance(node, cst.Call) and len(node.args) == 1 and not node.args[0].star:
        is_type = isinstance(node.func, cst.Name) and node.func.value == "type"
        return node.args[0].value if is_type else None
    return None


def _is_plain(node: cst.BaseExpression) -> bool:
    """True if an expression can be evaluated twice."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _classes(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Tuple | cst.List | cst.Set):
        return [element.value for element in node.elements]
    return [node]


def _is_in_classes(context: Context, operands: list[cst.BaseExpression]) -> bool:
    """True if one of some variables is a tuple or list with a class of arrays."""
    names = [node for node in operands if isinstance(node, cst.Name)]
    values = [constants.assigned_value(context.analysis, name) for name in names]
    lists = [value for value in values if isinstance(value, cst.Tuple | cst.List)]
    return any(_is_array_class(context, node) for each in lists for node in _classes(each))


def _is_array_class(context: Context, node: cst.BaseExpression) -> bool:
    name = context.name(node)
    return name == "jax.Array" or _is_old_array_class(name)


def _is_old_array_class(name: str) -> bool:
    entry = gone.find(name) if name else None
    return entry is not None and entry.new == "jax.Array"
