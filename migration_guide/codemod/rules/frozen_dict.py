# pyright: strict
"""A FrozenDict's methods become the functions of `flax.core`, which take dicts as well.

Before:

    model_state, params = variables.pop("params")
    variables = variables.copy({"params": params})
    params = params.unfreeze()

After:

    model_state, params = flax.core.pop(variables, "params")
    variables = flax.core.copy(variables, {"params": params})
    params = flax.core.unfreeze(params)

Modules returned a FrozenDict then, whose `pop` returns the remaining entries as well and whose
`copy` takes replacements; they return a dict now. Only a collection of Linen's, taken apart into
two names, is popped so, and only a `copy` of such with something to replace is meant: a dict's own
takes nothing. `unfreeze` and `pretty_repr` become functions where a value's origin or its name says
that it is one of Linen's collections. A test for a FrozenDict, `isinstance(params, FrozenDict)`, is
left for a person.
"""

import re

import libcst as cst

from migration_guide.codemod.inference.kinds import Function, Instance
from migration_guide.codemod.reading.tree import index_of, keyword_of, last_name, text_of
from migration_guide.codemod.writing.context import Context, New

_VARIABLES = re.compile(r"(^|_)(variables|params|state|states|stats|collections?)$")
PERHAPS = "if a module's init returned this, it is now a dict: flax.core.{}(it) takes either"
NO_LONGER = (
    "a module's init and apply now return a dict, not a FrozenDict: if this may be such a result, "
    "test for (dict, flax.core.FrozenDict), or the other branch is taken"
)
_METHODS = ("unfreeze", "pretty_repr")
_MAKERS = ("init", "init_with_output", "apply", "freeze", "FrozenDict")
_COLLECTIONS = ("params", "batch_stats", "cache", "params_axes")


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    if _asks_for_frozen(context, original):
        context.by_hand(original, NO_LONGER)
        return None
    func, old = updated.func, original.func
    if not isinstance(func, cst.Attribute) or not isinstance(old, cst.Attribute):
        return None
    if func.attr.value in _METHODS and not original.args and _is_method(context, old):
        if not _is_frozen(context, old.value, set()):
            context.remark(original, PERHAPS.format(func.attr.value))
            return None
        function = context.reference(f"flax.core.{func.attr.value}")
        return updated.with_changes(func=function, args=[cst.Arg(func.value)])
    if len(updated.args) != 1:
        return None
    is_copy = func.attr.value == "copy" and not context.name(old)
    if is_copy and _adds(old.value, original.args[0]):
        added = updated.args[0].with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
        args = [cst.Arg(func.value), added]
        return updated.with_changes(func=context.reference("flax.core.copy"), args=args)
    if func.attr.value != "pop":
        return None
    if context.name(old) or not _is_collection(original.args[0]):
        return None
    if not _is_unpacked(context.parent(original)):
        return None
    return updated.with_changes(
        func=context.reference("flax.core.pop"),
        args=[cst.Arg(func.value), updated.args[0]],
    )


def _asks_for_frozen(context: Context, call: cst.Call) -> bool:
    """True if this is `isinstance(x, FrozenDict)`, with no other kind of dict."""
    is_asked = last_name(call.func) == "isinstance" and len(call.args) == 2
    return is_asked and _are_frozen(context, call.args[1].value)


def _are_frozen(context: Context, kind: cst.BaseExpression) -> bool:
    """True if a class, or one of several, is FrozenDict, and none is another kind of dict."""
    classes = [e.value for e in kind.elements] if isinstance(kind, cst.Tuple) else [kind]
    names = {context.name(node).rpartition(".")[2] or last_name(node) for node in classes}
    is_ours = any(context.name(node).startswith("flax.core.") for node in classes)
    return is_ours and "FrozenDict" in names and not names & {"dict", "Mapping", "MutableMapping"}


def _is_method(context: Context, method: cst.Attribute) -> bool:
    """True if a method that is named as one of a FrozenDict may be that, and no module's or own."""
    atoms = context.analysis.kind(method.value)
    is_own = method.attr.value in context.analysis.facts.methods or last_name(method.value) in (
        "self",
        "cls",
    )
    return not (context.name(method) or is_own or any(isinstance(a, Instance) for a in atoms))


def _is_frozen(context: Context, node: cst.BaseExpression, seen: set[cst.CSTNode]) -> bool:
    """True if an expression is a module's output, or a part of it."""
    if node in seen:
        return False
    seen.add(node)
    if isinstance(node, cst.Call):
        if last_name(node.func) in _MAKERS:
            return True
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "copy":
            return _is_frozen(context, node.func.value, seen)
        functions = [a.node for a in context.analysis.kind(node.func) if isinstance(a, Function)]
        results = [value for f in functions for value in context.analysis.facts.returns.get(f, ())]
        return any(_is_frozen(context, value, seen) for value in results)
    if isinstance(node, cst.Subscript):
        is_one = text_of(index_of(node)) in _COLLECTIONS
        return is_one or _is_frozen(context, node.value, seen)
    if isinstance(node, cst.Name):
        values = context.analysis.assigned_to(node, within_tuples=True)
        if any(_is_frozen(context, value, seen) for value in values):
            return True
    name = last_name(node)
    return name == "target" or bool(_VARIABLES.search(name))


def _adds(holder: cst.BaseExpression, arg: cst.Arg) -> bool:
    """True if `copy` is given a mapping, written out or by a name that such things have."""
    if arg.star or keyword_of(arg) not in ("", "add_or_replace"):
        return False
    by_call = isinstance(arg.value, cst.Call) and last_name(arg.value.func) in (
        "dict",
        "FrozenDict",
    )
    named = any(_VARIABLES.search(last_name(node)) for node in (holder, arg.value))
    return arg.keyword is not None or by_call or isinstance(arg.value, cst.Dict) or named


def _is_collection(arg: cst.Arg) -> bool:
    return arg.keyword is None and not arg.star and text_of(arg.value) in _COLLECTIONS


def _is_unpacked(statement: cst.CSTNode | None) -> bool:
    """True if a statement is `a, b = ...`."""
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    return (
        isinstance(target, cst.Tuple | cst.List)
        and len(target.elements) == 2
        and all(isinstance(element, cst.Element) for element in target.elements)
    )
