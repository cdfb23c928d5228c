"""`rest, params = variables.pop("params")` becomes `flax.core.pop(variables, "params")`.

Before:

    model_state, params = variables.pop("params")

After:

    model_state, params = flax.core.pop(variables, "params")

Modules returned a FrozenDict then, whose `pop` returns the rest as well; they return a dict now.
`flax.core.pop` takes either. Only a collection of Linen's, taken apart into two names, is meant.
"""

import libcst as cst

from migration_guide.codemod.context import Context, separated

_COLLECTIONS = ("params", "batch_stats", "cache", "params_axes")


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    func = updated.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "pop" or len(updated.args) != 1:
        return None
    if context.name(original.func) or not _is_collection(original.args[0]):
        return None
    if not _taken_apart(context.parent(original)):
        return None
    return updated.with_changes(
        func=context.dotted("flax.core.pop"),
        args=separated([cst.Arg(func.value), updated.args[0]]),
    )


def _is_collection(arg: cst.Arg) -> bool:
    value = arg.value
    return (
        arg.keyword is None
        and not arg.star
        and isinstance(value, cst.SimpleString)
        and value.evaluated_value in _COLLECTIONS
    )


def _taken_apart(statement: cst.CSTNode | None) -> bool:
    """Whether a statement is `a, b = ...`."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    return (
        isinstance(target, cst.Tuple | cst.List)
        and len(target.elements) == 2
        and all(isinstance(element, cst.Element) for element in target.elements)
    )
