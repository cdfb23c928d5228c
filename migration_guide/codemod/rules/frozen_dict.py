# pyright: strict
"""A FrozenDict's `pop` and `copy` become the functions of `flax.core`, which take dicts as well.

Before:

    model_state, params = variables.pop("params")
    variables = variables.copy({"params": params})

After:

    model_state, params = flax.core.pop(variables, "params")
    variables = flax.core.copy(variables, {"params": params})

Modules returned a FrozenDict then, whose `pop` returns the rest as well and whose `copy` takes what
to replace; they return a dict now. Only a collection of Linen's, taken apart into two names, is
popped so, and only a `copy` of such with something to replace is meant: a dict's own takes nothing.
"""

import re

import libcst as cst

from migration_guide.codemod.context import Context, separated
from migration_guide.codemod.tree import last_name

_VARIABLES = re.compile(r"(^|_)(variables|params|state|states|stats|collections?)$")
_COLLECTIONS = ("params", "batch_stats", "cache", "params_axes")


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    func, old = updated.func, original.func
    if not isinstance(func, cst.Attribute) or not isinstance(old, cst.Attribute):
        return None
    if len(updated.args) != 1:
        return None
    is_copy = func.attr.value == "copy" and not context.name(old)
    if is_copy and _adds(old.value, original.args[0]):
        added = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        args = separated([cst.Arg(func.value), added])
        return updated.with_changes(func=context.dotted("flax.core.copy"), args=args)
    if func.attr.value != "pop":
        return None
    if context.name(old) or not _is_collection(original.args[0]):
        return None
    if not _taken_apart(context.parent(original)):
        return None
    return updated.with_changes(
        func=context.dotted("flax.core.pop"),
        args=separated([cst.Arg(func.value), updated.args[0]]),
    )


def _adds(holder: cst.BaseExpression, arg: cst.Arg) -> bool:
    """Whether `copy` is given a mapping, written out or by a name that such things have."""
    if arg.star or (arg.keyword is not None and arg.keyword.value != "add_or_replace"):
        return False
    by_call = isinstance(arg.value, cst.Call) and last_name(arg.value.func) in (
        "dict",
        "FrozenDict",
    )
    named = any(_VARIABLES.search(last_name(node)) for node in (holder, arg.value))
    return arg.keyword is not None or by_call or isinstance(arg.value, cst.Dict) or named


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
