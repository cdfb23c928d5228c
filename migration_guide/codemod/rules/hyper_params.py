"""`definition.hyper_params` becomes the transformation's own: mappings, by Optax's names.

Before:

    lr = optimizer.optimizer_def.hyper_params.learning_rate
    hps = optimizer.optimizer_def.hyper_params  # of a MultiOptimizer
    hps = [hp.replace(learning_rate=lr) for hp in hps]
    optimizer = optimizer.apply_gradient(grad, hyper_params=hps)
    changed = optimizer.optimizer_def.update_hyper_params(learning_rate=lr)

After:

    lr = optimizer.tx.hyper_params["learning_rate"]
    hps = [tx.hyper_params for tx in optimizer.tx.inner]
    hps = [hp | {"learning_rate": lr} for hp in hps]
    optimizer = optimizer.apply_gradients(grads=grad, hyper_params=hps)
    changed = [tx.hyper_params | {"learning_rate": lr} for tx in optimizer.tx.inner]

Where nothing takes groups apart and nothing reads the result, `update_hyper_params` becomes the
changes alone, which a step takes for one optimizer as well as for groups. Where a file has both,
and the two are not written alike, a person says which of them an expression is of.

This project's transformations keep their hyper-parameters; those of public Optax do not,
so the rule for constructors writes the former in a file that reads hyper-parameters. A definition
that stays legacy code keeps its own: of a wrapped subclass of MultiOptimizer the list is
`optimizer.tx.hyper_params["hyper_params"]`.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import (
    HYPER_PARAMS,
    LEGACY,
    OWN_GROUPS,
    within,
)
from migration_guide.codemod.inference.legacy_arguments import ADD
from migration_guide.codemod.reading.names import port_names
from migration_guide.codemod.reading.tree import (
    index_of,
    keyword,
    keyword_of,
    last_name,
    method_call,
    names_bound,
    walk,
)
from migration_guide.codemod.writing.context import Context, New

# Functions of Python that take all groups' hyper-parameters at once.
_OF_SEVERAL = ("zip", "enumerate", "list", "tuple", "len", "reversed", "map")

_WHOSE = (
    "the kind of optimizer is unclear: for a subclass of MultiOptimizer the list is "
    'optimizer.tx.hyper_params["hyper_params"], with the old names and .replace(...); for '
    "multi_optimizer [tx.hyper_params for tx in optimizer.tx.inner], mappings with the new names"
)
_BOTH = (
    "this file makes a single optimizer and groups, and it is unclear which one this is: for "
    "multi_optimizer use [tx.hyper_params for tx in optimizer.tx.inner], which a step takes as "
    "hyper_params=; for a single one optimizer.tx.hyper_params, a mapping, which a step takes as "
    "**. In place of replace and update_hyper_params, use | {...} on such a mapping"
)
_FIXED = (
    "hyper-parameters of a transformation cannot be set afterwards: make a new one with them, or "
    "pass them at each step, .apply_gradients(grads=..., learning_rate=...)"
)


def rewrite_attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> New:
    """See the module."""
    name = original.attr.value
    if name == "hyper_params" and context.is_definition(original.value):
        above = context.parent(original)
        if isinstance(above, cst.AssignTarget | cst.AugAssign | cst.AnnAssign):
            context.by_hand(original, _FIXED)
            return None
        kind = context.analysis.kind(original.value)
        if LEGACY in kind:
            return None
        if OWN_GROUPS in kind:
            name = context.string(original, "hyper_params")
            return cst.Subscript(updated, [cst.SubscriptElement(cst.Index(name))])
        # A field of it, or its `replace`; by its new name where this ran before.
        of_one = original not in context.once(_sequences) and (
            isinstance(above, cst.Attribute)
            or _is_by_name(above)
            or original in context.once(_singles)
        )
        if not context.once(_is_multiple) or of_one:
            return None
        if context.analysis.program.own_groups:  # which keep legacy hyper-parameters
            context.by_hand(original, _WHOSE)
            return None
        if original not in context.once(_sequences) and context.once(_makes_both):
            context.by_hand(original, _BOTH)
            return None
        every = cst.CompFor(cst.Name("tx"), cst.Attribute(updated.value, cst.Name("inner")))
        return cst.ListComp(cst.parse_expression("tx.hyper_params"), every)
    if not _is_mapping(context, original.value) or name == "replace":
        return None
    port = port_name(context, name)
    if port is None:
        context.by_hand(
            original,
            f".{name} has another name in each transformation: see `optax-bridge recipe`; of a "
            "definition of your own it has the old one",
        )
        return None
    index = cst.SubscriptElement(cst.Index(context.string(original, port)))
    return cst.Subscript(updated.value, [index], lpar=updated.lpar, rpar=updated.rpar)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """`hp.replace(learning_rate=lr)`: all of them, with those that this step overrides."""
    if not (_is_replace(context, original) or _is_update(context, original)):
        return None
    elements = []
    for arg in updated.args:
        port = port_name(context, keyword_of(arg)) if arg.keyword is not None else None
        if port is None or arg.star:
            context.by_hand(
                original, "give the overridden hyper-parameters by the names of optax_bridge"
            )
            return None
        elements.append(cst.DictElement(context.string(original, port), arg.value))
    assert isinstance(updated.func, cst.Attribute)
    if _is_update(context, original):
        is_multiple = context.once(_is_multiple)
        if not is_multiple and (not context.once(_is_read) or _is_given(context, original)):
            return cst.Dict(elements, lpar=[], rpar=[])
        if original not in context.once(_sequences) and context.once(_makes_both):
            context.by_hand(original, _BOTH)
            return None
        if not is_multiple:
            holder = cst.Attribute(updated.func.value, cst.Name("hyper_params"))
            return _with_changes(context, original, holder, elements)
        merged = cst.BinaryOperation(
            cst.parse_expression("tx.hyper_params"), cst.BitOr(), cst.Dict(elements)
        )
        every = cst.CompFor(cst.Name("tx"), cst.Attribute(updated.func.value, cst.Name("inner")))
        return cst.ListComp(merged, every)
    return _with_changes(context, original, updated.func.value, elements)


def _with_changes(
    context: Context, call: cst.Call, mapping: cst.BaseExpression, elements: list[cst.DictElement]
) -> cst.BaseExpression:
    """`mapping | {...}` in place of a call, in brackets where something is read of it."""
    above = context.parent(call)
    bracketed = bool(call.lpar) or not isinstance(above, cst.Attribute | cst.Subscript)
    merged = cst.BinaryOperation(
        mapping, cst.BitOr(), cst.Dict(elements), lpar=call.lpar, rpar=call.rpar
    )
    return merged if bracketed else _in_brackets(merged)


def as_overrides(
    context: Context, old: cst.BaseExpression, new: cst.BaseExpression
) -> cst.Arg | None:
    """The argument for `hyper_params=`; None if it stays, a list with an item per group."""
    if context.once(_is_multiple):
        return None
    if isinstance(old, cst.Call) and len(old.args) == 1:
        single = new.right if isinstance(new, cst.BinaryOperation) else new
        is_replace = _is_replace(context, old) and len(context.once(_constructed_classes)) < 2
        if isinstance(single, cst.Dict) and (is_replace or _is_update(context, old)):
            (element,) = single.elements
            name = old.args[0].keyword
            port = port_name(context, name.value) if name is not None else None
            if port is not None and isinstance(element, cst.DictElement):
                return keyword(port, element.value)
    if not context.is_hyper_params(old):
        return None
    plain = isinstance(new, cst.Name | cst.Attribute | cst.Call | cst.Subscript) or new.lpar
    return cst.Arg(new if plain else _in_brackets(new), star="**")


def is_one(context: Context, node: cst.BaseExpression) -> bool:
    """True if an expression is the hyper-parameters of a definition, or a list of several'."""
    is_single = context.is_hyper_params(node)
    if not context.once(_is_multiple):
        return is_single
    is_list = not is_single and HYPER_PARAMS in within(context.analysis.kind(node))
    return is_list or not context.once(_makes_both)


def port_name(context: Context, legacy: str) -> str | None:
    """A hyper-parameter's name in the ports of this file's optimizers, if they agree on it."""
    classes = frozenset(context.once(_constructed_classes))
    names = port_names(legacy, classes) if classes else frozenset()
    if context.once(_makes_own):
        names |= {legacy}  # what `wrap_definition` wraps keeps its names
    names = names or port_names(legacy, frozenset())
    return next(iter(names)) if len(names) == 1 else None


def _constructed_classes(context: Context) -> list[str]:
    """The legacy classes that this file constructs, one for each call."""
    return [
        entry.legacy.__name__
        for _, entry in context.analysis.constructions
        if not entry.takes_groups
    ]


def _makes_own(context: Context) -> bool:
    """True if it makes definitions of the program's own classes."""
    return any(map(context.analysis.makes_own_definition, context.analysis.facts.calls))


def _in_brackets(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _is_replace(context: Context, node: cst.Call) -> bool:
    holder, method = method_call(node)
    return holder is not None and method == "replace" and _is_mapping(context, holder)


def _is_update(context: Context, node: cst.Call) -> bool:
    return method_call(node)[1] == "update_hyper_params" and _is_mapping(context, node)


def _is_mapping(context: Context, node: cst.BaseExpression) -> bool:
    """True if hyper-parameters are a mapping now, and not those of legacy code."""
    return context.is_hyper_params(node) and LEGACY not in context.analysis.kind(node)


def _is_by_name(node: cst.CSTNode | None) -> bool:
    """True if a mapping is asked for a name: `tx.hyper_params["b1"]`."""
    return isinstance(index_of(node), cst.SimpleString)


def _is_given(context: Context, call: cst.Call) -> bool:
    """True if a step is given the call's value, as `hyper_params=`."""
    above = context.parent(call)
    return isinstance(above, cst.Arg) and keyword_of(above) == "hyper_params"


def _is_read(context: Context) -> bool:
    """True if this file reads a hyper-parameter of a mapping."""
    return any(
        _is_mapping(context, node.value) and node.attr.value != "replace"
        for node in context.analysis.facts.attributes
    )


def _makes_both(context: Context) -> bool:
    """True if this file makes an optimizer outside a MultiOptimizer, and groups or their loops."""
    calls = context.analysis.constructions
    groups = [call for call, entry in calls if entry.takes_groups]
    has_groups = bool(groups) or context.once(_is_multiple)
    named = {
        node.value
        for call in groups
        for arg in call.args
        for node in walk(arg)
        if isinstance(node, cst.Name)
    }
    return has_groups and any(
        call not in groups and not _goes_into(context, call, groups, named) for call, _ in calls
    )


def _goes_into(context: Context, call: cst.Call, groups: list[cst.Call], named: set[str]) -> bool:
    """True if a call is written within one of `groups`, or in the value of a name in them."""
    is_returned = False
    for node in context.ancestors(call):
        if node in groups:
            return True
        is_returned |= isinstance(node, cst.Return)
        match node:
            case cst.Assign():
                targets = [name.value for t in node.targets for name in names_bound(t.target)]
                targets += [last_name(t.target) for t in node.targets]
            case cst.Call(func=cst.Attribute(value=holder)) if last_name(node.func) in ADD:
                targets = [last_name(holder)]
            case cst.FunctionDef() if is_returned:
                targets = [node.name.value]
            case _:
                continue
        if not named.isdisjoint(targets):
            return True
    return False


def _is_multiple(context: Context) -> bool:
    """True if this file takes hyper-parameters apart by index or by loop: those of groups."""
    return bool(context.once(_sequences))


def _sequences(context: Context) -> frozenset[cst.CSTNode]:
    """The hyper-parameters that are taken apart so."""
    facts = context.analysis.facts
    sequences = [
        *(node.value for node in facts.subscripts if not _is_by_name(node)),
        *(iterable for _, iterable in facts.loops),
        *(value for target, value in facts.assignments if isinstance(target, cst.Tuple | cst.List)),
        *(a.value for c in facts.calls if last_name(c.func) in _OF_SEVERAL for a in c.args),
    ]
    return frozenset(
        value
        for node in sequences
        if context.is_hyper_params(node)
        for value in (node, *_assigned_values(context, node))
    )


def _singles(context: Context) -> frozenset[cst.CSTNode]:
    """The hyper-parameters that a variable holds of which one is read, or replaced."""
    return frozenset(
        value
        for node in context.analysis.facts.attributes
        if node.attr.value not in ADD
        for value in _assigned_values(context, node.value)
    )


def _assigned_values(context: Context, node: cst.CSTNode) -> list[cst.BaseExpression]:
    """The values of a variable; none of anything else."""
    return context.analysis.assigned_to(node) if isinstance(node, cst.Name) else []
