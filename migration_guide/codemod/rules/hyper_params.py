"""`definition.hyper_params` becomes the transformation's own, by Optax's names.

Before:

    lr = optimizer.optimizer_def.hyper_params.learning_rate
    hps = optimizer.optimizer_def.hyper_params  # of a MultiOptimizer
    optimizer.apply_gradient(g, hyper_params=[hps[0].replace(learning_rate=a),
    hps[1].replace(learning_rate=b)])

After:

    lr = optimizer.tx.hyper_params["learning_rate"]
    hps = optimizer.tx.inner
    optimizer.apply_gradients(grads=g, hyper_params=[{"learning_rate": a}, {"learning_rate": b}])

This project's transformations keep what they were constructed with; those of public Optax do not,
so the rule for constructors writes the former in a file that reads hyper-parameters.
"""

import libcst as cst

from migration_guide.codemod.context import Context, attribute
from migration_guide.codemod.names import port_names


def rewrite_attribute(
    context: Context, original: cst.Attribute, updated: cst.Attribute
) -> cst.BaseExpression | None:
    """See the module."""
    name = original.attr.value
    if name == "hyper_params" and context.is_definition(original.value):
        above = context.parent(original)
        reads = isinstance(above, cst.Attribute) and above.attr.value != "replace"
        if _is_multiple(context) and not reads:
            return updated.with_changes(attr=cst.Name("inner"))
        return None
    if not context.is_hyper_params(original.value) or name == "replace":
        return None
    port = port_name(context, name)
    if port is None:
        context.by_hand(
            original, f".{name} has another name in each transformation: see `optax-bridge recipe`"
        )
        return None
    mapping: cst.BaseExpression = updated.value
    direct = (
        isinstance(original.value, cst.Attribute) and original.value.attr.value == "hyper_params"
    )
    if _is_multiple(context) and not direct:
        mapping = attribute(mapping, "hyper_params")
    index = cst.SubscriptElement(cst.Index(cst.SimpleString(f'"{port}"')))
    return cst.Subscript(mapping, [index], lpar=updated.lpar, rpar=updated.rpar)


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """`hp.replace(learning_rate=lr)` of one group: a dict of what this step overrides."""
    if not _is_replace(context, original) or not _is_multiple(context):
        return None
    elements = []
    for arg in updated.args:
        port = None if arg.keyword is None else port_name(context, arg.keyword.value)
        if port is None or arg.star:
            context.by_hand(
                original, "give the overridden hyper-parameters by the names of optax_bridge"
            )
            return None
        elements.append(cst.DictElement(cst.SimpleString(f'"{port}"'), arg.value))
    return cst.Dict(elements)


def as_overrides(
    context: Context, old: cst.BaseExpression, new: cst.BaseExpression
) -> tuple[str, cst.BaseExpression] | bool | None:
    """The (keyword, value) for `hyper_params=`; None if it stays, False if nobody can tell."""
    if _is_multiple(context):
        return None
    if isinstance(old, cst.Call) and _is_replace(context, old) and len(old.args) == 1:
        assert isinstance(new, cst.Call)
        name = old.args[0].keyword
        port = port_name(context, name.value) if name is not None else None
        if port is not None:
            return port, new.args[0].value
    return False


def port_name(context: Context, legacy: str) -> str | None:
    """A hyper-parameter's name in the ports of what this file constructs, if they agree on one."""
    classes = frozenset(
        entry.legacy.__name__
        for call in context.analysis.facts.calls
        if (entry := context.analysis.names.entry(call.func)) is not None
        and not any(hp.variadic for hp in entry.hyper_params)
    )
    names = port_names(legacy, classes) or port_names(legacy, frozenset())
    return next(iter(names)) if len(names) == 1 else None


def _is_replace(context: Context, node: cst.Call) -> bool:
    return (
        isinstance(node.func, cst.Attribute)
        and node.func.attr.value == "replace"
        and context.is_hyper_params(node.func.value)
    )


def _is_multiple(context: Context) -> bool:
    """Whether this file subscripts hyper-parameters or iterates over them: those of groups."""
    facts = context.analysis.facts
    subscripted = any(context.is_hyper_params(node.value) for node in facts.subscripts)
    return subscripted or any(context.is_hyper_params(node) for node in facts.iterated)
